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
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.trial import Trial
from tests.platform.sweeps.example_system import TRAINER

RATE = "training.learning_rate.last"
SPACE = f"space: {{{RATE}: {{choice: [0.1, 0.2, 300]}}}}\n"
MakeTrial = Callable[..., Any]


@pytest.fixture
def make_trial(load: Callable[[str], Sweep]) -> MakeTrial:
    """Makes a trial of a sweep file, at a learning rate."""

    def make(rest: str, rate: float = 0.1) -> Any:
        class Local(Trial):
            def setup(self, config: dict[str, Any]) -> None:
                super().setup(config, load(SPACE + rest), TRAINER)

        return Local({RATE: rate})

    return make


@pytest.mark.parametrize(
    ("metric", "iterations"), [("", [4, 8, 12]), ("metric: return_mean\nmode: max", [1, 2, 3])]
)
def test_reports_come_with_the_metric(
    metric: str, iterations: list[int], make_trial: MakeTrial
) -> None:
    running = make_trial(f"base: {{validation.every: 4}}\n{metric}")
    assert [running.step()["iteration"] for _ in range(3)] == iterations


def test_unknown_metric_is_an_error(make_trial: MakeTrial) -> None:
    with pytest.raises(InputError, match=r"'retrun_mean'.* return_mean"):
        make_trial("metric: retrun_mean").step()


def test_divergence_reports_the_worst_value(make_trial: MakeTrial) -> None:
    report = make_trial("base: {validation.every: 5}", rate=300).step()
    assert (report["validation"], report["done"]) == (math.inf, True)


def test_reset_config_starts_another_trial(make_trial: MakeTrial) -> None:
    running = make_trial("base: {validation.every: 1}")
    running.step()
    assert running.reset_config({RATE: 0.2})
    assert running.step()["validation"] == pytest.approx(10 * (1 - 2 * 0.2))


def test_restore_falls_back_to_the_oldest_checkpoint(make_trial: MakeTrial, tmp_path: Path) -> None:
    running = make_trial("base: {validation.every: 1}")
    for number in (7, 8, 9):
        running.step()
        (tmp_path / f"checkpoint_{number:06d}").mkdir()
        running.save_checkpoint(str(tmp_path / f"checkpoint_{number:06d}"))
    for on_record, expected in ((8, 3), (9, 4), (5, 2)):
        path = tmp_path / f"checkpoint_{on_record:06d}"
        back = make_trial("base: {validation.every: 1}")
        back.restore(_TrainingResult(checkpoint=Checkpoint(str(path)), metrics={}))
        assert back.step()["iteration"] == expected


@pytest.mark.parametrize(
    ("workers", "resources", "expected"),
    [
        ("0", "", [{"CPU": 1}]),
        ("2", "", [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]),
        ("1", "cpus_per_trial: 2.5", [{"CPU": 1.5}, {"CPU": 1}]),
        ("0, resources.gpus: 1", "gpus_per_trial: 0.5", [{"CPU": 1, "GPU": 0.5}]),
        ("0, resources.gpus: 2", "", [{"CPU": 1, "GPU": 2}]),
    ],
)
def test_reserved_resources(
    workers: str, resources: str, expected: list[Any], load: Callable[[str], Sweep]
) -> None:
    base = f"base: {{rollouts.workers: {workers}}}\nresources: {{{resources}}}"
    assert load(SPACE + base).bundles({RATE: 0.1}) == expected
