"""Compiled and packed training passes: the same outputs and gradients as the network in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.models.decima import device_tables, training_block
from loadmaster.models.decima.device_batch import DeviceMinibatches
from loadmaster.models.decima.device_tables import NOTHING, Sizes, Workspace
from loadmaster.models.decima.gradient import DecisionMinibatches
from loadmaster.models.decima.module import DecimaModule
from loadmaster.models.policy import ENTROPY
from loadmaster.models.ragged import Minibatches, PaddedMinibatches
from loadmaster.platform.rl.rollout import RolloutSpec, columns_of
from loadmaster.platform.systems.decima.rollout import DecimaEngine
from tests.models.decima.test_module import module_of

pytestmark = pytest.mark.slow

SETTINGS = DagSchedulingSettings(workload="toy", jobs=6, executors=5)


def recorded(module: DecimaModule) -> dict[str, Any]:
    """Columns of two rollouts; their decisions differ in stages, jobs, edges and levels."""
    recordings = DecimaEngine(SETTINGS).roll_out(module, [RolloutSpec(seed, 7) for seed in (1, 2)])
    return columns_of(recordings, [{}] * len(recordings))


def outputs_and_gradient(
    module: DecimaModule, batches: Minibatches, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, rows) log-probabilities and entropies; the gradient of a weighted sum of them."""
    module.zero_grad()
    output = module.forward_train(batches.select(rows))
    # Behind the rows there may be padding.
    found = torch.stack([output[name][: len(rows)] for name in (Columns.ACTION_LOGP, ENTROPY)])
    weights = torch.sin(torch.arange(found.numel(), dtype=torch.float32)).view_as(found)
    (found * weights).sum().backward()
    parts = [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in module.parameters()
    ]
    return found.detach(), torch.cat([part.flatten() for part in parts])


PRIOR = {"prior": {"scale": 0.5, "strength": 1.5, "limit_strength": 2.0, "beyond": 1.0}}


REMOVED: list[dict[str, Any]] = [
    {"limits": False},
    {"graph": False},
    {"summaries": False},
    {"graph": False, "summaries": False},
    {"path_inputs": False},
]


@pytest.mark.parametrize("network", [{}, *REMOVED, {"width": 5}, PRIOR])
def test_unpadded_passes_equal_the_network_in_torch(network: dict[str, Any]) -> None:
    module = module_of(SETTINGS.total_executors, **network)
    columns = recorded(module)
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(columns[Columns.ACTIONS])))
    expected = outputs_and_gradient(module, PaddedMinibatches(columns, "cpu"), rows)
    np.testing.assert_allclose(
        expected[0][0], columns[Columns.ACTION_LOGP][rows], atol=1e-5, err_msg="recorded"
    )
    compiled = DecisionMinibatches(columns, module.network)
    for own, other in zip(outputs_and_gradient(module, compiled, rows), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=2e-5)
    some = rows[:3]  # the same buffers, with values of the last pass in them
    own, other = (outputs_and_gradient(module, each, some) for each in (compiled, compiled))
    torch.testing.assert_close(own, other)
    torch.testing.assert_close(own[0], expected[0][:, :3], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("network", [{}, *REMOVED, PRIOR])
def test_fixed_tables_equal_unpadded_decisions(
    network: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minibatches of several sizes in the same tables, which hold the values of the one before."""
    monkeypatch.setattr(device_tables, "SPARE_ROWS", 1)
    monkeypatch.setattr(device_tables, "SPARE_OPTIONS", 1)
    module = module_of(SETTINGS.total_executors, **network)
    columns = recorded(module)
    count, space = len(columns[Columns.ACTIONS]), Workspace("cpu")
    fixed = DeviceMinibatches(columns, "cpu", space)
    compiled = DecisionMinibatches(columns, module.network)
    everything = torch.from_numpy(np.random.default_rng(0).permutation(count))
    sizes = set()
    for rows in (everything[:3], everything, everything[:1], everything[3:9]):
        expected = outputs_and_gradient(module, compiled, rows)
        found = outputs_and_gradient(module, fixed, rows)
        mask = fixed.select(rows)[Columns.LOSS_MASK]
        assert mask.tolist() == [1] * len(rows) + [0] * (len(mask) - len(rows))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=2e-5)
        sizes.add(fixed.fixed)
    assert len(sizes) == 2, "tables grow once"


def test_tables_that_grow_keep_room_for_rare_kinds() -> None:
    small = NOTHING.grown(Sizes((40,), (0,), 9, 4, 30, 20, (7, 5)))
    assert small == Sizes((2100,), (2048,), 2059, 2053, 2087, 2074, (25, 22))
    assert small.grown(Sizes((2099,), (2047,), 2058, 2052, 2086, 2073, (24, 21))) is small
    deeper = small.grown(Sizes((40, 1), (0, 1), 9, 4, 30, 20, (7, 5)))
    assert deeper == Sizes((2100, 2049), (2048, 2049), 2059, 2053, 2087, 2074, (25, 22))
    wider = deeper.grown(Sizes((2100, 0), (0, 0), 9, 4, 30, 20, (7, 5)))
    assert wider == deeper._replace(levels=(4778, 2049))


@pytest.mark.parametrize("columns_of_a_block", [1, 40, 4096])
def test_result_does_not_depend_on_the_size_of_blocks(
    columns_of_a_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one decision, of a few, and of as many as a block may hold."""
    module = module_of(SETTINGS.total_executors)
    columns = recorded(module)
    rows = torch.arange(len(columns[Columns.ACTIONS])).repeat(2)
    assert len(rows) > training_block.BLOCK_DECISIONS
    expected = outputs_and_gradient(module, DecisionMinibatches(columns, module.network), rows)
    monkeypatch.setattr(training_block, "TARGET_COLUMNS", columns_of_a_block)
    found = outputs_and_gradient(module, DecisionMinibatches(columns, module.network), rows)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
