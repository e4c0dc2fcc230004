"""SURE's rollouts: compiled beside torch, independence of grouping, size of recordings."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.ragged import Ragged, Windows, leaves
from loadmaster.models.sure.batches import SNAPSHOTS
from loadmaster.models.sure.deciders import CompiledDecider, TorchDecider
from loadmaster.models.sure.module import SureModule
from loadmaster.platform.rl.rollout import Recording, RolloutSpec, columns_of
from loadmaster.platform.systems.sure import rollout
from loadmaster.platform.systems.sure.rollout import SureEngine

SMALL = {"width": 8, "snapshots": 4, "neighbours": 2}
WEEK_MIN = 10_080


def module_of(**network: Any) -> Any:
    torch.manual_seed(1)
    module: Any = SureModule(
        observation_space=None,
        action_space=None,
        model_config={"network": {"prior": {"log_odds": 0.5}, **network}},
    )
    for weight in module.network.parameters():
        torch.nn.init.normal_(weight, std=0.1) if weight.dim() > 1 else None
    return module


def engine(*jobs: str, **settings: Any) -> SureEngine:
    values = {"minutes": 60, "history": 20, **settings}
    return SureEngine(StreamScalingSettings(**values), jobs)


def tables(recording: Recording) -> Iterator[tuple[str, Any]]:
    """All arrays of a recording."""
    whole = {
        **recording.observations, **recording.actions, "log": recording.log_probability,
        "reward": recording.rollout.reward, "outlook": recording.rollout.outlook,
    }  # fmt: skip
    for name, column in whole.items():
        yield name, column.items if isinstance(column, Ragged | Windows) else column


@pytest.mark.parametrize(
    "network", [{}, {"sampler": "random"}, {"sampler": "spatial"}, {"actions": "job"}]
)
def test_compiled_rollouts_are_those_of_torch(
    network: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, specs = module_of(**SMALL, **network), [RolloutSpec(2, 7), RolloutSpec(3, 8, keep=0.5)]
    one = engine("small-2")
    compiled, scores = one.roll_out(module, specs), one.judge(module, [5])
    made = []

    def in_torch(network: Any, _: Any) -> TorchDecider:
        made.append(TorchDecider(network))
        return made[-1]

    monkeypatch.setattr(rollout, "decider_for", in_torch)
    for found, expected in zip(compiled, one.roll_out(module, specs), strict=True):
        own = dict(tables(expected))
        for name, table in tables(found):
            assert table.dtype == own[name].dtype, name
            assert table.shape == own[name].shape, name
            np.testing.assert_allclose(table, own[name], rtol=1e-4, atol=2e-4, err_msg=name)
    assert one.judge(module, [5])[0].value == pytest.approx(scores[0].value, abs=1e-6)
    assert len(made) == 2


def test_decisions_do_not_depend_on_the_episodes_that_run_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, one = module_of(**SMALL), engine("small-1", "small-2")
    specs = [RolloutSpec(seed, seed + 3) for seed in (0, 2, 1, 4)]
    together, scores = one.roll_out(module, specs), one.judge(module, range(3))
    monkeypatch.setattr(rollout, "TOGETHER", 1)
    for spec, found in zip(specs, together, strict=True):
        (alone,) = one.roll_out(module, [spec])
        for (name, table), (_, own) in zip(tables(found), tables(alone), strict=True):
            assert np.array_equal(table, own), name
    assert one.judge(module, range(3)) == scores


def test_what_is_not_compiled_is_decided_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(CompiledDecider, "__init__", refused)
    one, spec = engine("small-1", minutes=10), RolloutSpec(0, 1)
    for network in ({"sampler": "none"}, {"sampler": "full", "encoder": "recurrent"}):
        (recording,) = one.roll_out(module_of(**SMALL, **network), [spec])
        assert "drawn_snapshot" not in recording.actions
    with pytest.raises(AssertionError, match="compiled"):
        one.roll_out(module_of(**SMALL), [spec])


def test_windows_shorter_than_the_time_between_decisions_are_recorded() -> None:
    """As in the paper: a decision every 60 minutes on 59 snapshots."""
    module = module_of(**SMALL)
    specs = [RolloutSpec(1, 2)]
    one = engine("small-1", minutes=40, history=9, decide_every_min=10)
    columns = columns_of(one.roll_out(module, specs), [{}])
    assert len(columns[Columns.OBS][SNAPSHOTS].items) == 10 * 9 * (1 + 4)
    batch = module.minibatches(columns, "cpu").select(torch.arange(4))
    found = module.forward_train(batch)[Columns.ACTION_LOGP]
    ratio = (found - batch[Columns.ACTION_LOGP]).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)


def test_a_recorded_week_of_the_largest_job_is_little_more_than_its_snapshots() -> None:
    """With the shipped network: k1 = 10, k2 = 3."""
    one = engine("large-2", minutes=50, history=60)
    (recording,) = one.roll_out(module_of(), [RolloutSpec(0, 1)])
    snapshots = recording.observations[SNAPSHOTS].items
    a_minute = snapshots.nbytes / (60 + 50)
    columns = (*leaves(recording.observations), *leaves(recording.actions))
    items = [each.items if isinstance(each, Ragged | Windows) else each for each in columns]
    whole = sum(table.nbytes for table in items) + recording.log_probability.items.nbytes
    a_decision = (whole - snapshots.nbytes) / recording.decisions
    week = a_minute * (60 + WEEK_MIN)
    assert week + a_decision * WEEK_MIN / 5 < 1.5 * week
