"""Fixtures of the evaluation tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.platform.evaluation import adapters, charts
from tests.platform.evaluation.machine import MACHINE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Make `loadmaster evaluate machine` work in an empty folder; return the folder."""
    monkeypatch.setattr(adapters, "find_adapter", lambda name: MACHINE)
    return here


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the charts, which take a second to draw."""
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)
