"""Fixtures: the system `example`, and sweep files of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.envs import registry as systems
from tests.platform.sweeps.example_system import EXAMPLE


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system `example` is registered."""
    monkeypatch.setattr(systems, "SYSTEMS", (*systems.SYSTEMS, EXAMPLE))


@pytest.fixture
def sweep_file(tmp_path: Path, example: None) -> Callable[[str], Path]:
    """Writes a sweep file of the system `example`; the argument follows three lines."""

    def write(rest: str) -> Path:
        path = tmp_path / "hill.yaml"
        path.write_text(f"# a comment\nsystem: example\npurpose: Walk down\n{rest}")
        return path

    return write
