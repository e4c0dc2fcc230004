"""DAS's rollouts: many clusters stepped together, one forward pass for both agents of all."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.vector import GpuSchedulingVectorEnv
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.rllib.film import Rows
from loadmaster.platform.rllib.vector_engine import VectorEngine

COST = "jct_s"
QUEUE = Rows(
    mask="job_mask",
    tables=frozenset({"jobs", "job_mask", "heeded", "held", "rack_held"}),
    actions=frozenset({ORDERING, PLACEMENT}),
)


def das_engine(settings: GpuSchedulingSettings) -> VectorEngine:
    """A `RolloutEngine` for DasModule."""
    workload, plain = load_workload(settings), settings.model_dump()

    def make(count: int, horizon_s: float | None) -> GpuSchedulingVectorEnv:
        return GpuSchedulingVectorEnv(count, workload, copy=False, **plain)

    return VectorEngine(make, outcome, COST, QUEUE)


def outcome(envs: GpuSchedulingVectorEnv, index: int) -> Mapping[str, float]:
    """Of an episode that has just ended."""
    result = envs.result(index)
    return {COST: result.mean_jct_s, "fee": float(result.fee.mean())}
