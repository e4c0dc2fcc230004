"""Training on Ray: the same curve with any number of workers, after kills and resumes."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.systems.decima.rollout import DecimaEngine
from loadmaster.platform.systems.decima.training import RECIPE, DecimaTraining
from loadmaster.platform.training.mixture import mixed_settings
from loadmaster.platform.training.trainer import Trainer, starting_weights
from tests.bundles import make_bundle

pytestmark = pytest.mark.slow

CLOCKS = ("seconds", "decisions_per_s", "workers")
SAVED = 2  # the iteration after which the run below was saved
Row = dict[str, float]
Uninterrupted = tuple[list[Row], Path]
Start = Callable[..., Trainer]


def tiny(
    workers: int = 0, prior: dict[str, float] | None = None, **training: Any
) -> DecimaTraining:
    values = {
        "network": {"prior": prior},
        "environment": {"workload": "toy", "jobs": 3, "executors": 4},
        "rollouts": {"sequences": 2, "per_sequence": 3, "workers": workers},
        "training": {"learning_rate": {"first": 0.01, "last": 0.01}, **training},
        "validation": {"every": 1, "sequences": 3},
    }
    return build_settings(DecimaTraining, values)


def row_of(trainer: Trainer) -> Row:
    """Results of an iteration without timings."""
    return {name: value for name, value in trainer.step().items() if not name.endswith(CLOCKS)}


@pytest.fixture(scope="module")
def uninterrupted(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Rows of four iterations without workers, and the checkpoint of iteration SAVED."""
    checkpoint = tmp_path_factory.mktemp("uninterrupted") / "saved"
    trainer = Trainer(RECIPE, tiny())
    rows = [row_of(trainer) for _ in range(SAVED)]
    trainer.save(checkpoint)
    rows += [row_of(trainer) for _ in range(2)]
    trainer.stop()
    return rows, checkpoint


def test_restored_trainer_continues_the_curve(
    start: Start, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    """RLlib may drop a pending set_state; our runners get the weights with each request."""
    (*_, saved, third, fourth), checkpoint = uninterrupted
    trainer = start(RECIPE, tiny(workers=1), resumed=True)
    trainer.restore(checkpoint)
    assert trainer.iteration == SAVED
    assert trainer.validate() == pytest.approx(saved["validation"])
    for before in (third, fourth):
        assert row_of(trainer) == pytest.approx(before)
    with pytest.raises(InputError, match=r"nowhere cannot be restored .* expected a whole one"):
        trainer.restore(tmp_path / "nowhere")


class KilledEngine(DecimaEngine):
    """Kills its process after a rollout if the file `kill_file` exists, and removes the file."""

    def __init__(self, config: DecimaTraining, kill_file: Path) -> None:
        super().__init__(config.environment)
        self.kill_file = kill_file

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        recordings = super().roll_out(module, assignments)
        with suppress(FileNotFoundError):
            self.kill_file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return recordings


def test_workers_do_not_change_the_curve_and_a_killed_one_is_replaced(
    start: Start, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    kill_file = tmp_path / "kill"

    def algorithm(config: DecimaTraining) -> Any:
        return RECIPE.algorithm(config).rollout_engine(
            engine=partial(KilledEngine, config, kill_file)
        )

    trainer = start(replace(RECIPE, algorithm=algorithm), tiny(workers=2))
    # But for the order of sums. Where a gradient is 0 but for rounding, Adam makes whole steps of
    # it, so that in later iterations a few decisions may be others.
    assert row_of(trainer) == pytest.approx(uninterrupted[0][0], rel=0.02, abs=1e-3)
    kill_file.touch()
    figures = trainer.step()
    assert not kill_file.exists()
    assert 0 < figures["rollouts"] < 6  # the other worker's half was learnt from
    assert figures["workers"] == 1
    assert any(trainer.step()["workers"] == 2 for _ in range(200))
    assert trainer.step()["rollouts"] == 6


@pytest.mark.parametrize("prior", [None, {"scale": 0.3}])
def test_training_starts_from_a_policy_with_the_same_network(
    start: Start, tmp_path: Path, prior: dict[str, float] | None
) -> None:
    bundle = make_bundle(tmp_path / "begun", **RECIPE.network(tiny(prior=prior)))
    config = tiny(prior=prior, warm_start=str(bundle))
    torch.testing.assert_close(start(RECIPE, config).weights(), load_bundle(bundle).weights)
    with pytest.raises(InputError, match="is a policy of 'decima'; expected one of 'sure'"):
        starting_weights(replace(RECIPE, system="sure"), config)


def test_averaging_keeps_the_mean_of_the_latest_weights(start: Start, tmp_path: Path) -> None:
    trainer, resumed = (start(RECIPE, tiny(averaging=3), resumed) for resumed in (False, True))
    name, seen = "network.score_stage.0.bias", []
    for _ in range(3):
        trainer.step()
        seen.append(trainer.algorithm.module_weights()[name])
    kept = trainer.weights()["score_stage.0.bias"].numpy()
    assert kept == pytest.approx(sum(seen) / 3, abs=1e-6)
    assert kept != pytest.approx(seen[-1], abs=1e-6)
    trainer.save(tmp_path / "saved")
    resumed.restore(tmp_path / "saved")
    assert resumed.validate() == trainer.validate()
    assert resumed.weights()["score_stage.0.bias"].tolist() == kept.tolist()


@pytest.mark.parametrize("prior", [None, {"scale": 0.3}])
def test_evolution_resumes(start: Start, tmp_path: Path, prior: dict[str, float] | None) -> None:
    search = {"weights": ["tilt_*"], "population": 6, "spread": 1.0}
    config = tiny(prior=prior, method="evolution", evolution=search)
    trainer, resumed = (start(RECIPE, config, resumed) for resumed in (False, True))
    first, row = trainer.weights(), row_of(trainer)
    trainer.save(tmp_path / "saved")
    resumed.restore(tmp_path / "saved")
    assert row_of(resumed) == row_of(trainer)
    changed = {name for name, table in trainer.weights().items() if (table != first[name]).any()}
    parts = {"tilt_stage.weight", "tilt_limit.weight"}
    parts |= {"tilt_prior", "tilt_job", "tilt_key"} if prior else set()
    assert changed == parts
    assert row["decisions"] > 0
    assert row["rollouts"] == 6 * config.rollouts.sequences


MIXTURE = ({"jobs": 2}, {"executors": 8}, {"arrivals": "poisson", "load": 0.5})


def test_costs_of_a_mixture_are_relative_to_the_rule() -> None:
    config = tiny(prior={"scale": 0.18363, "stay": 1.4}).model_copy(update={"mixture": MIXTURE})
    assert RECIPE.metric(config).name == "relative_cost"
    costs = RECIPE.baselines(config, [4, 5, 6])
    assert costs["srpt-caps"] == pytest.approx(100)
    members = mixed_settings(config.environment, MIXTURE)
    settings = members[5 % 3]
    fifo, rule = (
        run_episode(name, settings, 5, load_workload(settings)).mean_jct_s
        for name in ("fifo", "srpt-caps")
    )
    assert RECIPE.baselines(config, [5])["fifo"] == pytest.approx(100 * fifo / rule)


def test_evolution_over_a_mixture_changes_the_weights_of_the_prior(start: Start) -> None:
    search = {"weights": ["tilt_job", "tilt_key"], "population": 6, "spread": 0.5}
    config = tiny(prior={"reach": 0.5}, method="evolution", evolution=search)
    trainer = start(RECIPE, config.model_copy(update={"mixture": MIXTURE}))
    before, row = trainer.weights(), row_of(trainer)
    assert 50 < row["cost_mean"] < 200
    after = trainer.weights()
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"tilt_job", "tilt_key"}


def test_a_wrong_setting_of_a_mixture_is_named() -> None:
    config = tiny().model_copy(update={"mixture": ({"executor": 3},)})
    with pytest.raises(InputError, match="executor"):
        RECIPE.check(config)
