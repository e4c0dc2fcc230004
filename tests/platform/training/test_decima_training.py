"""Decima's training on Ray: any number of workers, killed workers, resumed runs: the same curve."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadmaster.platform.rllib.recording import Assignment, Recording
from loadmaster.platform.rllib.runner import EngineRunner
from loadmaster.platform.rollouts.decima_engine import DecimaEngine
from loadmaster.platform.training.decima import RECIPE, DecimaTraining
from loadmaster.platform.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("ray_session")

TINY = {
    "environment": {"workload": "toy", "jobs": 3, "executors": 4},
    "rollouts": {"sequences": 2, "per_sequence": 3, "workers": 0},
    "training": {"iterations": 4, "learning_rate": {"first": 0.01, "last": 0.01}},
    "validation": {"every": 1, "sequences": 3},
}
CLOCKS = ("seconds", "decisions_per_s")


def tiny(workers: int = 0) -> DecimaTraining:
    rollouts = {**TINY["rollouts"], "workers": workers}
    return DecimaTraining.model_validate({**TINY, "rollouts": rollouts})


def without_clocks(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not name.endswith(CLOCKS)}


@pytest.fixture(scope="module")
def uninterrupted(ray_session: None) -> Iterator[list[dict[str, float]]]:
    trainer = Trainer(RECIPE, tiny())
    yield [without_clocks(trainer.step()) for _ in range(4)]
    trainer.stop()


def test_the_number_of_workers_changes_nothing_but_the_time(
    uninterrupted: list[dict[str, float]],
) -> None:
    trainer = Trainer(RECIPE, tiny(workers=2))
    try:
        for before in uninterrupted[:2]:
            assert without_clocks(trainer.step()) == pytest.approx(before)
    finally:
        trainer.stop()


def test_a_restored_trainer_goes_on_as_if_nothing_had_happened(
    uninterrupted: list[dict[str, float]], tmp_path: Path
) -> None:
    first = Trainer(RECIPE, tiny())
    for _ in range(2):
        first.step()
    first.save(tmp_path / "saved")
    first.stop()
    second = Trainer(RECIPE, tiny())
    second.restore(tmp_path / "saved")
    assert second.iteration == 2
    for before in uninterrupted[2:]:
        assert without_clocks(second.step()) == pytest.approx(before)
    second.stop()


class DeafRunner(EngineRunner):
    """Keeps the weights it was built with: what a restored RLlib worker may do by itself."""

    def _use(self, weights: Any) -> None:
        pass


@pytest.mark.parametrize("deaf", [False, True])
def test_restored_workers_act_on_the_restored_weights(deaf: bool, tmp_path: Path) -> None:
    """RLlib may drop a set_state that is under way; ours get their weights with each request.

    With runners that do not listen the same check fails, so it can.
    """
    trained = Trainer(RECIPE, tiny(workers=1))
    untrained = trained.validate()
    for _ in range(3):
        trained.step()
    reached = trained.validate()
    trained.save(tmp_path / "saved")
    trained.stop()
    assert reached != untrained
    recipe = RECIPE if not deaf else _with_runner(DeafRunner)
    restored = Trainer(recipe, tiny(workers=1))
    try:
        restored.restore(tmp_path / "saved")
        assert (restored.validate() == pytest.approx(reached)) is not deaf
    finally:
        restored.stop()


def _with_runner(runner: type) -> Any:
    from dataclasses import replace

    def algorithm(config: DecimaTraining) -> Any:
        return RECIPE.algorithm(config).env_runners(env_runner_cls=runner)

    return replace(RECIPE, algorithm=algorithm)


class MortalEngine(DecimaEngine):
    """Kills its process in the middle of a rollout, once: the file says that it was done."""

    def __init__(self, config: DecimaTraining, done: Path) -> None:
        super().__init__(config.environment)
        self.done = done

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        recordings = super().roll_out(module, assignments)
        try:
            self.done.touch(exist_ok=False)
        except FileExistsError:
            return recordings
        os.kill(os.getpid(), signal.SIGKILL)
        return recordings


def test_a_killed_worker_is_replaced_and_training_goes_on(tmp_path: Path) -> None:
    from dataclasses import replace
    from functools import partial

    done = tmp_path / "killed"

    def algorithm(config: DecimaTraining) -> Any:
        return RECIPE.algorithm(config).input_driven(engine=partial(MortalEngine, config, done))

    trainer = Trainer(replace(RECIPE, algorithm=algorithm), tiny(workers=2))
    try:
        first = trainer.step()
        assert done.exists()
        assert 0 < first["rollouts"] < 6  # the other worker's half was learnt from
        group = trainer.algorithm.env_runner_group
        for _ in range(20):
            trainer.step()
            if group.num_healthy_remote_env_runners() == 2:
                break
        assert group.num_healthy_remote_env_runners() == 2
        assert trainer.step()["rollouts"] == 6
    finally:
        trainer.stop()


def test_a_run_may_start_from_a_policy(tmp_path: Path) -> None:
    from loadmaster.models.bundle import save_bundle

    first = Trainer(RECIPE, tiny())
    for _ in range(2):
        first.step()
    reached = first.validate()
    save_bundle(
        tmp_path / "bundle",
        name="begun",
        system="decima",
        network=RECIPE.network(first.config),
        weights=first.weights(),
        trained={"environment": {}},
    )
    first.stop()
    training = {**TINY["training"], "start": str(tmp_path / "bundle")}
    second = Trainer(RECIPE, DecimaTraining.model_validate({**TINY, "training": training}))
    assert second.validate() == pytest.approx(reached)
    second.stop()
