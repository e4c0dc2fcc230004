"""Run commands in this process and check what they print."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from loadmaster.platform.cli.main import main

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


class Cli:
    """Runs command lines and returns what they print."""

    def __init__(self, capsys: Captured) -> None:
        self._capsys = capsys

    def __call__(self, line: str, code: int = 0) -> Any:
        """Run a command that exits with `code`; return `out` and `err`."""
        self._capsys.readouterr()
        assert main(shlex.split(line)) == code
        return self._capsys.readouterr()

    def json(self, line: str, code: int = 0) -> Any:
        return json.loads(self(f"{line} --json", code).out)

    def error(self, line: str, code: int = 2) -> str:
        return error_line(shlex.split(line), self._capsys, code)


def error_line(arguments: Sequence[str], capsys: Captured, code: int = 2) -> str:
    """Run a command that fails with `code`; return its only line, which is on stderr."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    return err
