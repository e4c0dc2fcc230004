"""One episode from first arrival to last completion, under a heuristic, in compiled code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.baselines import Baseline
from loadmaster.envs.gpu_scheduling.baselines.mosa import run_annealed
from loadmaster.envs.gpu_scheduling.baselines.plans import new_search
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import Wishes
from loadmaster.envs.gpu_scheduling.preemption import replan
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.metrics import last_of_finished, mean_of_finished


@dataclass(frozen=True)
class PlacementTrace:
    """Who ran where and when: one row per job, machine and stretch of time."""

    job: NDArray[np.int64]  # (rows,)
    machine: NDArray[np.int64]  # (rows,)
    instances: NDArray[np.int64]  # (rows,)
    start_s: NDArray[np.float64]  # (rows,)
    end_s: NDArray[np.float64]  # (rows,)


@dataclass(frozen=True)
class EpisodeResult:
    """The outcome of an episode: what happened to each of its N jobs."""

    policy: str
    seed: int
    jobs: Jobs
    start_s: NDArray[np.float64]  # (N,) when it first ran; nan where it never did
    finish_s: NDArray[np.float64]  # (N,) nan where it never ended
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


@compiled
def run(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    placement: int,
    replans: bool,
    replan_s: float,
    wishes: Wishes,
) -> int:
    """Let a heuristic decide until the episode ends or the trace is full; the status.

    With `replans` and a `replan_s` of infinity everything is reconsidered at every event.
    """
    while True:
        status = advance(state, cluster, jobs, ordering)
        if status != at.DECIDE:
            return status
        if state.clock[at.QUEUED] == 0:
            continue
        now = state.times[at.NOW]
        if replans and (replan_s == np.inf or now >= state.times[at.NEXT_REPLAN]):
            replan(state, cluster, jobs, ordering, placement, wishes)
            state.times[at.NEXT_REPLAN] = now + replan_s
        else:
            run_scheduling_pass(state, cluster, jobs, ordering, placement, wishes)


def no_preferences(jobs: Jobs) -> Wishes:
    """For the rules that ask nobody."""
    return Wishes(np.zeros((1, 1)), np.zeros(len(jobs.arrival_s), np.int64))


def run_baseline(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    baseline: Baseline,
    luck: int,
    *,
    record: bool = False,
) -> SimState:
    """Run to the end, giving the trace more room whenever it is full; the final state."""
    by_user = baseline.ordering.rule == rules.DRF
    state = at.new_state(settings, cluster, jobs, luck, by_user=by_user, record=record)
    if baseline.ordering.by_the_clock:
        state.times[at.NEXT_REPLAN] = 0.0
    while _run_on(state, settings, cluster, jobs, baseline) == at.GROW_TRACE:
        state = at.with_more_trace(state)
    return state


def _run_on(
    state: SimState,
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    baseline: Baseline,
) -> int:
    if baseline.annealed:
        weights = settings.jct_weight, settings.fee_weight
        return run_annealed(state, cluster, jobs, new_search(cluster, jobs), *weights)
    ordering = baseline.ordering
    replan_s = settings.replan_s if ordering.by_the_clock else np.inf
    rules = ordering.rule, baseline.placement, ordering.replans
    return run(state, cluster, jobs, *rules, replan_s, no_preferences(jobs))


def episode_result(
    state: SimState, cluster: Cluster, jobs: Jobs, policy: str, seed: int
) -> EpisodeResult:
    """Read the outcome off a state."""
    trace = None
    if len(state.trace):
        rows = state.trace[: state.clock[at.TRACE_ROWS]]
        trace = PlacementTrace(
            job=rows[:, at.TRACE_JOB].astype(np.int64),
            machine=rows[:, at.TRACE_MACHINE].astype(np.int64),
            instances=rows[:, at.TRACE_COUNT].astype(np.int64),
            start_s=rows[:, at.TRACE_START].copy(),
            end_s=rows[:, at.TRACE_END].copy(),
        )
    return EpisodeResult(
        policy=policy,
        seed=seed,
        jobs=jobs,
        start_s=state.progress[:, at.FIRST_START_S].copy(),
        finish_s=state.progress[:, at.FINISHED_S].copy(),
        run_s=state.progress[:, at.RUN_S].copy(),
        fee=state.progress[:, at.FEE].copy(),
        gpu_s=float(state.times[at.GPU_S]),
        gpus=float(cluster.gpu_capacity.sum()) / WHOLE,
        epochs=int(state.clock[at.EPOCHS]),
        preemptions=int(state.clock[at.PREEMPTIONS]),
        trace=trace,
    )
