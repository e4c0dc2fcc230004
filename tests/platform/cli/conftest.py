"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.platform.cli.one_line import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)
