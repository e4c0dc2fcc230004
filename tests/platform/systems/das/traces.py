"""A traced episode of an untrained policy."""

from __future__ import annotations

import pytest
import torch

from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.systems.das.decision_trace import DecisionTrace, trace_episode

SMALL = GpuSchedulingSettings(jobs=60, load=2.0)
ENVIRONMENT = {"jobs": 60, "load": 2.0, "preempt": True}
NETWORK = {"width": 16, "heads": 2, "layers": 1}
SEED = 3
Traced = tuple[EpisodeResult, DecisionTrace]


def untrained_policy() -> DasPolicy:
    torch.manual_seed(1)
    settings = GpuSchedulingSettings.model_validate(ENVIRONMENT)
    return DasPolicy(DasNetwork(DasSettings(**NETWORK)), settings)


@pytest.fixture(scope="module")
def traced() -> Traced:
    """An untrained policy that preempts, on a crowded cluster."""
    return trace_episode(untrained_policy(), SMALL, SEED, load_workload(SMALL))
