"""A working folder, pretrained policies and commands, for tests of learned policies."""

from pathlib import Path

import pytest

from loadmaster.models import manifest as manifests
from loadmaster.platform.evaluation import comparison_charts
from tests.bundles import make_bundle


@pytest.fixture(autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without any pretrained policy."""
    folder = tmp_path_factory.mktemp("learned")
    monkeypatch.setattr(manifests, "pretrained_folder", lambda: folder / "pretrained")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    return folder / "here"


@pytest.fixture
def pretrained(here: Path) -> Path:
    """Four pretrained policies, trained on different settings."""
    folder = here.parent / "pretrained"
    stream = {"arrivals": "poisson"}
    for name, environment in {
        "batch": {},
        "makespan": {"objective": "makespan"},
        "slow": {**stream, "interarrival_s": 25.0},
        "fast": {**stream, "interarrival_s": 15.0},
    }.items():
        make_bundle(folder / f"decima-{name}", environment=environment)
    return folder


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_charts, "draw_all", lambda *_: None)
