"""Recorded episodes on a crowded cluster, of an untrained policy that preempts and of baselines."""

from functools import cache

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.systems.das import replay
from loadmaster.platform.systems.das.decision_trace import RecordedEpisode, Step
from loadmaster.platform.systems.das.evaluation import LearnedDas
from tests.models.das import builders

SMALL = GpuSchedulingSettings(jobs=60, load=2.0)
ENVIRONMENT = {"jobs": 60, "load": 2.0, "preempt": True}
SEED = 3


def untrained_policy() -> LearnedDas:
    settings = GpuSchedulingSettings.model_validate(ENVIRONMENT)
    return LearnedDas(builders.module_of(0, **builders.NETWORK).network, settings)


@cache
def recorded(policy: str = "das") -> RecordedEpisode:
    learned = untrained_policy() if policy == "das" else None
    return replay.run(policy, learned, SMALL, SEED, load_workload(SMALL), recorded=True)


def traced_steps() -> tuple[Step, ...]:
    return recorded().case.steps
