"""The vector environment; its equality with single environments is tested in tests/contract."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from tests.envs.gpu_scheduling.policies import finish, first_come_first_fit

pytestmark = pytest.mark.slow


def test_results_equal_single_environments() -> None:
    """Episodes of different sizes share the tables."""
    single = GpuSchedulingEnv(jobs=40)
    single.reset(seed=0)
    actions = first_come_first_fit(single.runner)
    vector = GpuSchedulingVectorEnv(3, jobs=40)
    vector.reset(seed=6)
    batched = {agent: np.stack([actions[agent]] * 3) for agent in AGENTS}
    results = {}
    while len(results) < 3:
        over = vector.step(batched)[2]
        for index in np.flatnonzero(over):
            results.setdefault(int(index), vector.result(int(index)))
    for index, result in results.items():
        single.reset(seed=6 + index)
        finish(single, first_come_first_fit)
        expected = single.result()
        assert np.array_equal(result.finish_s, expected.finish_s)
        assert np.array_equal(result.fee, expected.fee)
        assert np.array_equal(result.jobs.duration_s, expected.jobs.duration_s)
        assert (result.seed, result.epochs) == (6 + index, expected.epochs)
    assert len({tuple(result.jobs.instances) for result in results.values()}) == 3


@pytest.mark.parametrize("copy", [True, False])
def test_observations_are_views_without_copy(copy: bool) -> None:
    vector = GpuSchedulingVectorEnv(2, jobs=30, copy=copy)
    seen, _ = vector.reset(seed=0)
    kept = {name: table.copy() for name, table in seen.items()}
    vector.step({agent: vector.action_space[agent].sample() for agent in AGENTS})
    assert all(np.array_equal(kept[name], seen[name]) for name in kept) is copy


def test_missing_and_misshapen_actions_are_refused() -> None:
    vector = GpuSchedulingVectorEnv(2, jobs=5, max_queue=4)
    vector.reset(seed=0)
    with pytest.raises(InputError, match="'ordering'"):
        vector.step({})
    with pytest.raises(InputError, match=r"\(2, 8\); expected \(2, 4, 8\)"):
        vector.step({ORDERING: np.zeros((2, 4)), PLACEMENT: np.zeros((2, 8))})
