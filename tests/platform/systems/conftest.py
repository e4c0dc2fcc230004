"""Where tests of learned policies work, and what ships there."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.models import manifest as ships
from loadmaster.platform.evaluation import charts
from tests.bundles import make_bundle


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and none of the shipped policies."""
    monkeypatch.setattr(ships, "pretrained_folder", lambda: tmp_path / "shipped")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Four policies that ship, trained on different settings."""
    stream = {"arrivals": "poisson"}
    for name, environment in {
        "batch": {},
        "makespan": {"objective": "makespan"},
        "slow": {**stream, "interarrival_s": 25.0},
        "fast": {**stream, "interarrival_s": 15.0},
    }.items():
        make_bundle(tmp_path / "shipped" / f"decima-{name}", environment=environment)
    return tmp_path / "shipped"


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)
