"""SURE's rollouts and training: recordings, their minibatches, and iterations."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.policy import DECISION
from loadmaster.models.ragged import Ragged, Windows, leaves
from loadmaster.models.sure.module import SureModule
from loadmaster.platform.rl.rollout import RolloutSpec, columns_of
from loadmaster.platform.systems.sure.rollout import SureEngine
from loadmaster.platform.systems.sure.training import RECIPE, SureTraining
from loadmaster.platform.training.trainer import Trainer

SMALL = {"width": 8, "snapshots": 4, "neighbours": 2}
JOBS = ("small-1", "medium-1")  # 10 and 21 tasks
ENVIRONMENT = StreamScalingSettings(minutes=60, history=20)


def module_of(**network: Any) -> Any:
    torch.manual_seed(1)
    settings = {"network": {**SMALL, "prior": {"log_odds": 0.5}, **network}}
    module: Any = SureModule(observation_space=None, action_space=None, model_config=settings)
    for weight in module.network.parameters():  # heads begin as zeros: nothing would depend on them
        torch.nn.init.normal_(weight, std=0.2) if weight.dim() > 1 else None
    return module


def engine(**changed: Any) -> SureEngine:
    return SureEngine(ENVIRONMENT.model_copy(update=changed), JOBS)


SPECS = [RolloutSpec(4, 11), RolloutSpec(4, 12), RolloutSpec(5, 13, keep=0.5)]


@pytest.mark.parametrize(
    "network",
    [
        {}, {"sampler": "random"}, {"sampler": "temporal"}, {"sampler": "spatial"},
        {"sampler": "none"}, {"actions": "job"},
    ],
)  # fmt: skip
def test_recorded_decisions_have_the_probability_with_which_they_were_drawn(
    network: dict[str, Any],
) -> None:
    module = module_of(**network)
    recordings = engine().roll_out(module, SPECS)
    columns = columns_of(recordings, [{}] * len(SPECS))
    batches = module.minibatches(columns, "cpu")
    rows = torch.arange(len(columns[Columns.ACTION_LOGP]))[::3]
    batch = batches.select(rows)
    found = module.forward_train(batch)
    torch.testing.assert_close(
        found[Columns.ACTION_LOGP], batch[Columns.ACTION_LOGP], rtol=1e-4, atol=1e-4
    )
    gates = torch.from_numpy(columns[Columns.ACTIONS]["gate"])[rows]
    assert 0 < gates.sum() < len(gates)
    tasks = torch.tensor([10, 21])[(torch.from_numpy(columns[Columns.OBS]["snapshots"].counts)[rows]
                                    > 20 * 10).long()]  # fmt: skip
    expected = 1 + tasks + tasks * gates  # gate, draws, and changes where it acted
    assert torch.equal(torch.bincount(found[DECISION]), expected)


def test_rollouts_of_a_sequence_share_job_and_load_and_are_repeatable() -> None:
    module = module_of()
    first, second, third = engine().roll_out(module, SPECS)
    assert first.decisions == second.decisions == 12
    assert len(third.kept) < 12
    sizes = [len(own.observations["tasks"].items) for own in (first, second, third)]
    assert sizes == [10, 10, 21]
    start = [own.observations["snapshots"].items[: 20 * 10] for own in (first, second)]
    assert np.array_equal(*start)  # before the first decision
    assert not np.array_equal(first.rollout.reward, second.rollout.reward)
    (again,) = engine().roll_out(module, SPECS[1:2])
    assert np.array_equal(again.rollout.reward, second.rollout.reward)
    greedy, other = engine().judge(module, [4, 5])
    assert [score.value for score in engine().judge(module, [4])] == [greedy.value]
    assert greedy.loss == -greedy.value
    assert other.decisions == 12


def test_snapshots_are_recorded_once() -> None:
    """A recording takes little more memory than its snapshots; its windows twelve times as much."""
    day = engine(minutes=720, history=60)
    (recording,) = day.roll_out(module_of(), [RolloutSpec(4, 11)])
    snapshots = recording.observations["snapshots"]
    tables = [
        column.items if isinstance(column, Ragged | Windows) else column
        for column in (*leaves(recording.observations), *leaves(recording.actions))
    ]
    whole = sum(table.nbytes for table in tables) + recording.log_probability.items.nbytes
    assert len(snapshots.items) == (60 + 720) * 10
    assert whole < 1.5 * snapshots.items.nbytes
    assert snapshots.counts.sum() > 8 * len(snapshots.items)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "reinforce"])
def test_iterations(ray_session: None, method: str) -> None:
    values = {
        "environment": {"minutes": 120, "history": 20},
        "network": SMALL,
        "jobs": JOBS,
        "rollouts": {"workers": 0, "sequences": 2, "per_sequence": 2},
        "training": {"method": method, "minibatches": 2, "epochs": 2},
        "validation": {"every": 1, "sequences": 2},
    }
    trainer = Trainer(RECIPE, build_settings(SureTraining, values))
    before = trainer.weights()
    rows = [trainer.step() for _ in range(2)]
    after = trainer.weights()
    trainer.stop()
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert {"loss/kl", "loss/gaussian", "loss/mutual_information"} <= set(rows[0])
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for part in ("score_heads", "encoder", "change", "gate", "log_std"):
        assert any(name.startswith(part) for name in changed), part


def test_baselines_run_on_the_same_jobs_as_the_policy() -> None:
    values = {"environment": {"minutes": 60}, "jobs": JOBS}
    found = RECIPE.baselines(build_settings(SureTraining, values), [4, 5])
    assert "random" not in found
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"jobs": ["small-1", "smal-2"]}, "small-2"),
        ({"jobs": []}, "jobs is empty"),
        ({"training": {"critic": {"kind": "v"}}}, "sure has no critic"),
    ],
)
def test_bad_settings_are_one_line(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected) as fault:
        RECIPE.check(build_settings(SureTraining, values))
    assert "\n" not in str(fault.value)
