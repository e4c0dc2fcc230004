"""Episodes: draw them from a seed, and run heuristics on them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.errors import unknown_name
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs
from loadmaster.envs.gpu_scheduling.baselines import (
    BASELINES,
    DRF,
    FASTEST,
    NOMINAL,
    PROCESS,
    REPLAN_S,
    SRSF,
    Baseline,
)
from loadmaster.envs.gpu_scheduling.baselines.mosa import new_search, run_annealed
from loadmaster.envs.gpu_scheduling.calibration import tuned_baseline
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.gang_placement import best_gang
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs, Workload
from loadmaster.envs.gpu_scheduling.placement import PlacementPreferences, no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import migrates, replan, run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.speed_process import begin_process
from loadmaster.envs.gpu_scheduling.state import SimState, new_state, with_more_trace
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.metrics import last_of_finished, mean_of_finished


class Episode(NamedTuple):
    """Input of an episode, the same for every policy."""

    cluster: Cluster
    jobs: Jobs
    noise_seed: int  # of the runtime noise


def build_episode(
    settings: GpuSchedulingSettings, seed: int, workload: Workload | None = None
) -> Episode:
    """Build the episode of `seed`."""
    rng = np.random.default_rng(seed)
    cluster = build_cluster(settings)
    jobs = draw_jobs(settings, workload or load_workload(settings), cluster, rng)
    return Episode(cluster, jobs, int(rng.integers(1 << 62)))


@dataclass(frozen=True)
class PlacementTrace:
    """Finished allocations: one row per job, machine and interval."""

    job: NDArray[np.int64]  # (rows,)
    machine: NDArray[np.int64]  # (rows,)
    instances: NDArray[np.int64]  # (rows,)
    start_s: NDArray[np.float64]  # (rows,)
    end_s: NDArray[np.float64]  # (rows,)


@dataclass(frozen=True)
class EpisodeResult:
    """Outcome of an episode with N jobs."""

    policy: str
    seed: int
    jobs: Jobs
    start_s: NDArray[np.float64]  # (N,) first start; nan if it never ran
    finish_s: NDArray[np.float64]  # (N,) nan if it did not end
    run_s: NDArray[np.float64]  # (N,) time on machines
    fee: NDArray[np.float64]  # (N,) dollars
    gpu_s: float  # GPU-seconds in use
    gpus: float
    epochs: int
    preemptions: int
    trace: PlacementTrace | None

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """(N,) time in the system; nan for unfinished jobs."""
        return self.finish_s - self.jobs.arrival_s

    @property
    def queueing_s(self) -> NDArray[np.float64]:
        """(N,) time in the system without a machine."""
        return self.jct_s - self.run_s

    @property
    def mean_jct_s(self) -> float:
        """Over finished jobs; nan if there are none."""
        return mean_of_finished(self.jct_s)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last completion; nan if there is none."""
        return last_of_finished(self.finish_s - self.jobs.arrival_s[:1])


def run_episode(
    policy: str,
    settings: GpuSchedulingSettings,
    seed: int,
    workload: Workload | None = None,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a baseline on the episode of `seed`. Thread-safe."""
    if policy not in BASELINES:
        raise unknown_name("policy", policy, BASELINES)
    workload = workload or load_workload(settings)
    episode = build_episode(settings, seed, workload)
    baseline = tuned_baseline(policy, settings, workload)
    state = run_baseline(settings, episode, baseline, record=record)
    return episode_result(state, *episode[:2], policy, seed)


def run_baseline(
    settings: GpuSchedulingSettings, episode: Episode, baseline: Baseline, *, record: bool = False
) -> SimState:
    """Run a baseline to the end; return the final state."""
    ordering, (cluster, jobs, _) = baseline.ordering, episode
    state = new_state(settings, *episode, by_user=ordering.rule == DRF, record=record)
    replan_s = load_rule(settings, state, cluster, jobs, baseline)
    while True:
        if baseline.annealed:
            status = run_annealed(state, cluster, jobs, new_search(settings, cluster, jobs))
        else:
            rules = ordering.rule, baseline.placement, ordering.replans
            status = _run_rules(state, cluster, jobs, *rules, replan_s, no_preferences(jobs))
        if status != cols.GROW_TRACE:
            return state
        state = with_more_trace(state)


def load_rule(
    settings: GpuSchedulingSettings,
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    baseline: Baseline,
) -> float:
    """Write what a rule needs into a new state; return its replanning interval."""
    ordering = baseline.ordering
    state.rule[:] = baseline.values
    state.setup[cols.SPEED_SOURCE] = baseline.speeds if settings.speeds == "hidden" else NOMINAL
    knows = state.setup[cols.SPEED_SOURCE] == NOMINAL  # for the whole episode
    if knows and (ordering.rule == SRSF or baseline.placement >= FASTEST):
        _find_best_rates(state, cluster, jobs, no_preferences(jobs))
    if state.setup[cols.SPEED_SOURCE] == PROCESS:
        begin_process(state, cluster)
    if not ordering.at_intervals:
        return np.inf
    state.times[cols.NEXT_REPLAN] = 0.0
    return float(state.rule[REPLAN_S]) or settings.replan_s


@compiled
def _find_best_rates(
    state: SimState, cluster: Cluster, jobs: Jobs, preferences: PlacementPreferences
) -> None:
    """Write the speed of each job in the empty cluster."""
    for job in range(len(jobs.arrival_s)):
        speed = best_gang(state, cluster, jobs, state.free, job, FASTEST, preferences)[3]
        state.progress[job, cols.BEST_RATE] = speed


@compiled
def _run_rules(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    placement: int,
    replans: bool,
    replan_s: float,
    preferences: PlacementPreferences,
) -> int:
    """Run a heuristic until the episode ends or the trace is full; return the status.

    With `replans` and an infinite `replan_s` it replans at every event.
    """
    while True:
        status = advance(state, cluster, jobs, ordering)
        if status != cols.DECIDE:
            return status
        if state.clock[cols.QUEUED] == 0 and not (replans and migrates(state, placement)):
            continue
        now = state.times[cols.NOW]
        if replans and (replan_s == np.inf or now >= state.times[cols.NEXT_REPLAN]):
            replan(state, cluster, jobs, ordering, placement, preferences)
            state.times[cols.NEXT_REPLAN] = now + replan_s
        else:
            run_scheduling_pass(state, cluster, jobs, ordering, placement, preferences)


def episode_result(
    state: SimState, cluster: Cluster, jobs: Jobs, policy: str, seed: int
) -> EpisodeResult:
    """Extract the outcome from a state."""
    trace = None
    if len(state.trace):
        columns = state.trace[: state.clock[cols.TRACE_ROWS]].T.copy()
        trace = PlacementTrace(*columns[:3].astype(np.int64), *columns[3:])
    progress = state.progress.T.copy()
    return EpisodeResult(
        policy=policy,
        seed=seed,
        jobs=jobs,
        start_s=progress[cols.FIRST_START_S],
        finish_s=progress[cols.FINISHED_S],
        run_s=progress[cols.RUN_S],
        fee=progress[cols.FEE],
        gpu_s=float(state.times[cols.GPU_S]),
        gpus=float(cluster.gpu_capacity.sum()) / WHOLE,
        epochs=int(state.clock[cols.EPOCHS]),
        preemptions=int(state.clock[cols.PREEMPTIONS]),
        trace=trace,
    )
