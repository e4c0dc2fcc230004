"""Fixtures of the platform's tests."""

from pathlib import Path

import pytest

from tests.platform.cli.one_line import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the working directory; return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
