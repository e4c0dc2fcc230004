"""One trial without Ray: its reports, resources and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint

from loadmaster.envs.errors import InputError
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.trial import Trial
from tests.platform.sweeps.example_system import TRAINER

RATE = "training.learning_rate.last"


LoadSweep = Callable[[str], Sweep]


@pytest.fixture
def load(sweep_file: Callable[[str], Path]) -> LoadSweep:
    choice = f"space: {{{RATE}: {{choice: [0.1, 0.2, 300]}}}}\n"
    return lambda rest: load_sweep(sweep_file(choice + rest))


def trial(sweep: Sweep, rate: float = 0.1) -> Any:
    class Local(Trial):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config, sweep, TRAINER)

    return Local({RATE: rate})


def test_reports_come_with_the_metric(load: LoadSweep) -> None:
    running = trial(load("base: {validation.every: 4}"))
    assert [running.step()["iteration"] for _ in range(3)] == [4, 8, 12]
    often = trial(load("base: {validation.every: 4}\nmetric: return_mean\nmode: max"))
    assert [often.step()["iteration"] for _ in range(3)] == [1, 2, 3]


def test_unknown_metric_is_an_error(load: LoadSweep) -> None:
    with pytest.raises(InputError, match=r"'retrun_mean'.* return_mean"):
        trial(load("metric: retrun_mean")).step()


def test_divergence_reports_the_worst_value(load: LoadSweep) -> None:
    report = trial(load("base: {validation.every: 5}"), rate=300).step()
    assert report["validation"] == math.inf
    assert report["done"] is True


def test_reset_config_starts_another_trial(load: LoadSweep) -> None:
    running = trial(load("base: {validation.every: 1}"))
    running.step()
    assert running.reset_config({RATE: 0.2})
    assert running.step()["validation"] == pytest.approx(10 * (1 - 2 * 0.2))


def test_restore_falls_back_to_the_oldest_checkpoint(load: LoadSweep, tmp_path: Path) -> None:
    running = trial(load("base: {validation.every: 1}"))
    for number in (7, 8, 9):
        running.step()
        (tmp_path / f"checkpoint_{number:06d}").mkdir()
        running.save_checkpoint(str(tmp_path / f"checkpoint_{number:06d}"))
    for on_record, expected in ((8, 3), (9, 4), (5, 2)):
        path = tmp_path / f"checkpoint_{on_record:06d}"
        back = trial(load("base: {validation.every: 1}"))
        back.restore(_TrainingResult(checkpoint=Checkpoint(str(path)), metrics={}))
        assert back.step()["iteration"] == expected


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("base: {rollouts.workers: 0}", [{"CPU": 1}]),
        ("base: {rollouts.workers: 2}", [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]),
        (
            "base: {rollouts.workers: 1}\nresources: {cpus_per_trial: 2.5}",
            [{"CPU": 1.5}, {"CPU": 1}],
        ),
        (
            "base: {rollouts.workers: 0, resources.gpus: 1}\nresources: {gpus_per_trial: 0.5}",
            [{"CPU": 1, "GPU": 0.5}],
        ),
        ("base: {rollouts.workers: 0, resources.gpus: 2}", [{"CPU": 1, "GPU": 2}]),
    ],
)
def test_reserved_resources(rest: str, expected: list[dict[str, float]], load: LoadSweep) -> None:
    assert load(rest).bundles({RATE: 0.1}) == expected
