"""Fixtures: the system `example`, and sweep files of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.envs import registry as systems
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep
from tests.platform.sweeps.example_system import EXAMPLE


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system `example` is registered."""
    monkeypatch.setattr(systems, "SYSTEMS", (*systems.SYSTEMS, EXAMPLE))


@pytest.fixture
def sweep_file(tmp_path: Path, example: None) -> Callable[[str], Path]:
    """Writes a sweep file of `example`; text without a purpose follows three lines."""

    def write(text: str) -> Path:
        path = tmp_path / "hill.yaml"
        head = "" if "purpose:" in text else "# a comment\nsystem: example\npurpose: Walk down\n"
        path.write_text(head + text)
        return path

    return write


@pytest.fixture
def load(sweep_file: Callable[[str], Path]) -> Callable[..., Sweep]:
    """Writes such a file and loads it."""
    return lambda text, *given, **named: load_sweep(sweep_file(text), *given, **named)
