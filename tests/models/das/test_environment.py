"""DAS's network reads what the environment shows, and the environment does what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.models.das.network import DasNetwork
from tests.models.das.moments import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_few_decisions(variant: str) -> None:
    torch.manual_seed(0)
    network = DasNetwork(VARIANTS[variant])
    luck = torch.Generator().manual_seed(0)
    vector = GpuSchedulingVectorEnv(3, jobs=40, load=3.0)
    seen, _ = vector.reset(seed=0)
    for _ in range(12):
        observation = {name: torch.from_numpy(table) for name, table in seen.items()}
        decision = network.decide(observation, luck)
        judged = network.evaluate(observation, decision.actions)
        assert torch.isfinite(judged.ordering_log_prob + judged.placement_log_prob).all()
        torch.testing.assert_close(judged.placement_log_prob, decision.placement_log_prob)
        actions = {
            ORDERING: decision.actions.priority.numpy(),
            PLACEMENT: decision.barred.numpy(),
        }
        seen, rewards, _, _, info = vector.step(actions)
        assert np.isfinite(rewards).all()
        assert info["legal"].all()
