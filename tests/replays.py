"""Assertions shared by the tests of all replays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadmaster.platform.cli.main import main

if TYPE_CHECKING:
    from tests.browser import Browser


def assert_refused(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints one line of error and writes no file."""
    output = folder / "output"
    output.mkdir()
    assert main([*arguments, "-o", str(output / "page.html")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert list(output.iterdir()) == []


def assert_opens_by_itself(browser: Browser, address: str) -> None:
    """The page loads without errors and without network requests."""
    browser.open(address)
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.evaluate("document.getElementById('fault').hidden")
    assert browser.faults() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [address]
