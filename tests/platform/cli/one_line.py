"""The check that a failing command prints one line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadmaster.platform.cli.main import main


def error_line(arguments: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Run a command that fails with `code`; return its only line, which is on stderr."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    return err
