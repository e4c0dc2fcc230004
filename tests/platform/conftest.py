"""Fixtures of the platform's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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


@pytest.fixture
def start(ray_session: None) -> Iterator[Callable[..., Any]]:
    """Build a trainer, which is stopped after the test."""
    from loadmaster.platform.training.trainer import Trainer

    with ExitStack() as stack:

        def build(*arguments: Any, **options: Any) -> Any:
            trainer = Trainer(*arguments, **options)
            stack.callback(trainer.stop)
            return trainer

        yield build
