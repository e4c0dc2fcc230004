"""What the tests of evaluation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.platform.evaluation import adapters as subjects
from loadmaster.platform.evaluation import charts
from tests.platform.evaluation.machine import MACHINE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`loadmaster evaluate machine` works in an empty folder; that folder."""
    monkeypatch.setattr(subjects, "find_subject", lambda name: MACHINE)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at tables alone: drawing takes a second."""
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)
