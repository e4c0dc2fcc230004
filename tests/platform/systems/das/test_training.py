"""DAS's training on Ray: variants, critics, workers, resumed runs."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.network import Actions
from loadmaster.models.ragged import on_device, rows_of, taken
from loadmaster.platform.rl.rollout import RolloutSpec, columns_of
from loadmaster.platform.systems.das.training import RECIPE, DasTraining, baselines, check
from loadmaster.platform.training.trainer import starting_weights
from tests.bundles import make_bundle
from tests.models.das.builders import NETWORK
from tests.platform.systems.decima.test_training import Start, row_of

pytestmark = pytest.mark.slow

# (critic, communicate, process): every critic, and every variant of the network.
VARIANTS = [("none", False, True), ("v", True, False), ("q", True, True), ("v", False, False)]


def tiny(workers: int = 0, **changed: Any) -> DasTraining:
    environment = {"jobs": 12, "load": 3.0, "history": 4, **changed.pop("environment", {})}
    values = {
        "environment": environment,
        "network": {**NETWORK, "tau": 3, **changed.pop("network", {})},
        "rollouts": {"sequences": 2, "per_sequence": 2, "workers": workers, "keep": 1.0},
        "training": {"epochs": 2, "minibatches": 2, **changed},
        "validation": {"every": 1, "sequences": 2},
    }
    return build_settings(DasTraining, values)


@pytest.mark.parametrize(("kind", "communicate", "process"), VARIANTS)
def test_both_agents_are_updated(start: Start, kind: str, communicate: bool, process: bool) -> None:
    network = {"communicate": communicate, "process": process}
    trainer = start(RECIPE, tiny(network=network, critic={"kind": kind, "samples": 2}))
    before, row, after = trainer.weights(), row_of(trainer), trainer.weights()
    assert all(math.isfinite(value) for value in row.values())
    assert min(row["jct_s"], row["fee"], row["kl"]) > 0
    assert all(before[name].dtype == after[name].dtype == torch.float32 for name in before)
    changed = {name.split(".")[0] for name in before if (before[name] != after[name]).any()}
    assert changed == {"ordering", "placement"}


def test_runs_are_reproducible_when_resumed_and_with_workers(start: Start, tmp_path: Path) -> None:
    trainer = start(RECIPE, tiny())
    first = row_of(trainer)
    trainer.save(tmp_path / "saved")
    assert row_of(start(RECIPE, tiny())) == first
    resumed = start(RECIPE, tiny(workers=1), resumed=True)
    resumed.restore(tmp_path / "saved")
    assert row_of(resumed) == pytest.approx(row_of(trainer), rel=1e-3)


def test_warm_start_takes_matching_tables(start: Start, tmp_path: Path) -> None:
    """The linear skip paths of a network without the process."""
    bundle = make_bundle(tmp_path / "found", system="das", communicate=False, process=False)
    taken = {"warm_start": str(bundle), "weight_filter": ["*straight*"]}
    config = partial(tiny, network={"opening": "nothing"})
    before, after = (start(RECIPE, config(**more)).weights() for more in ({}, taken))
    found = load_bundle(bundle).weights
    for name, table in after.items():
        assert torch.equal(table, (found if "straight" in name else before)[name]), name
    assert sum("straight" in name for name in after) == 3
    assert after["ordering.straight.weight"].any()
    assert not before["ordering.straight.weight"].any()


def test_weights_that_the_network_lacks_are_rejected(tmp_path: Path) -> None:
    bundle = str(make_bundle(tmp_path / "found", system="das", process=False))
    taken = {"warm_start": bundle, "weight_filter": ["*open.bias"]}
    line = r"^training.weight_filter: .*ordering\.gate\.open\.bias.*\Z"
    with pytest.raises(InputError, match=line):
        starting_weights(RECIPE, tiny(**taken, network={"communicate": False}))


def test_learner_log_probs_equal_rollout(start: Start) -> None:
    """With queues of different lengths, which the learner pads."""
    algorithm = start(RECIPE, tiny(environment={"jobs": 30})).algorithm
    runner = algorithm.env_runner_group.local_env_runner
    recordings = runner.engine.roll_out(runner.module, [RolloutSpec(n, n) for n in range(3)])
    columns = columns_of(recordings, [{}] * len(recordings))
    queued = columns[Columns.OBS]["job_mask"].counts
    assert queued.min() < queued.max()
    batch = taken(on_device(columns, "cpu"), torch.arange(rows_of(columns)), "cpu")
    with torch.no_grad():
        found = runner.module.network(batch[Columns.OBS])
    actions = batch[Columns.ACTIONS]
    log_prob = found.log_prob(Actions(actions[ORDERING], actions[PLACEMENT]))
    torch.testing.assert_close(log_prob, batch[Columns.ACTION_LOGP], rtol=1e-4, atol=1e-4)
    assert found.entropy().shape == (len(queued), 2)


def test_baselines_are_no_oracles() -> None:
    seeds = range(2)
    shown = baselines(tiny(), seeds)
    assert "fifo-first-fit" in shown
    assert not any(BASELINES[name].oracle for name in shown)
    informed = baselines(tiny(environment={"durations": "known"}), seeds)
    assert "sjf-consolidate" in informed
    assert shown.items() <= informed.items()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"environment": {"workload": "pay-like"}}, "pai-like"),
        ({"horizon": {"first": 9, "last": 9}}, "training.horizon"),
        ({"environment": {"machines": [{"count": 1, "gpus": 8, "gpu": "V1", "cpus": 9}]}}, "'V1'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check(tiny(**settings))
