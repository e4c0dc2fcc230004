"""Episodes under a policy given by name."""

from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.exact_search import optimal_result
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    ScheduleTrace,
    episode_result,
    initial_state,
    run_baseline,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import unknown_name

__all__ = ["OPTIMAL", "EpisodeResult", "ScheduleTrace", "run_episode"]

OPTIMAL = "optimal"  # not a baseline: it knows the future and solves only tiny instances


def run_episode(
    policy: str,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload | None = None,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a named policy on the episode of `seed`; thread-safe."""
    if policy != OPTIMAL and policy not in BASELINES:
        raise unknown_name("policy", policy, [*BASELINES, OPTIMAL])
    if workload is None:
        workload = load_workload(settings)
    if policy == OPTIMAL:
        return optimal_result(settings, seed, workload, record=record)
    state = initial_state(settings, workload, seed, record)
    state = run_baseline(state, workload.bank, tuned_baseline(policy, settings, workload))
    return episode_result(state, workload, settings, policy, seed)
