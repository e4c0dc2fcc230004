"""One episode from first arrival to last completion, under a heuristic, in compiled code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.baselines import Baseline
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.metrics import last_of_finished, mean_of_finished

# The exogenous input of an episode: which jobs arrive when, and when the episode is cut off.


def draw_jobs(
    settings: DagSchedulingSettings, workload: Workload, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(jobs, 2): arrival in ms, template. Templates are uniform; gaps exponential, whole ms."""
    templates = rng.integers(len(workload.job_names), size=settings.total_jobs)
    gaps = rng.exponential(
        mean_interarrival_s(settings, workload) * 1000, size=settings.streamed_jobs
    )
    arrivals = np.zeros(settings.total_jobs, np.int64)
    arrivals[settings.jobs_at_start :] = np.cumsum(gaps.astype(np.int64))
    return np.stack([arrivals, templates], axis=1)


def mean_interarrival_s(settings: DagSchedulingSettings, workload: Workload) -> float:
    """The mean interarrival time, from `load` (work offered per executor) where that is set."""
    if settings.load is None:
        return settings.interarrival_s
    work_s = float(workload.bank.work_ms.mean()) / 1000
    return work_s / (settings.load * settings.total_executors)


def draw_horizon_ms(settings: DagSchedulingSettings, rng: np.random.Generator) -> int:
    """A geometric number of seconds: memoryless, so no policy can foresee the end."""
    if settings.horizon_s is None:
        return int(at.NEVER) - 1
    return 1000 * int(rng.geometric(min(1.0, 1 / settings.horizon_s)))


@dataclass(frozen=True)
class ScheduleTrace:
    """What every executor did: one row per task run or move between jobs."""

    executor: NDArray[np.int32]  # (rows,)
    job: NDArray[np.int32]  # (rows,) number in the episode's job sequence
    stage: NDArray[np.int32]  # (rows,) number within the job
    start_ms: NDArray[np.int64]  # (rows,)
    end_ms: NDArray[np.int64]  # (rows,)
    moving: NDArray[np.int8]  # (rows,) 1: the executor is on its way to that job


@dataclass(frozen=True)
class EpisodeResult:
    """The outcome of an episode: what happened to every job of the sequence."""

    policy: str
    seed: int
    arrival_s: NDArray[np.float64]  # (jobs,)
    completion_s: NDArray[np.float64]  # (jobs,) nan where the horizon came first
    template: NDArray[np.int64]  # (jobs,)
    work_s: NDArray[np.float64]  # (jobs,) executor-seconds of the template
    end_s: float
    executors: int
    decisions: int
    tasks: int
    trace: ScheduleTrace | None

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """(jobs,) time in system; nan for unfinished jobs."""
        return self.completion_s - self.arrival_s

    @property
    def mean_jct_s(self) -> float:
        """Over finished jobs; nan if there are none."""
        return mean_of_finished(self.jct_s)

    @property
    def makespan_s(self) -> float:
        """When the last finished job was done; nan if there is none."""
        return last_of_finished(self.completion_s)


def initial_state(
    settings: DagSchedulingSettings,
    workload: Workload,
    seed: int,
    record: bool = False,
    slots: int = 0,
) -> SimState:
    """The start of the episode that `seed` names: same seed, same jobs, same luck."""
    rng = np.random.default_rng(seed)
    arrivals = draw_jobs(settings, workload, rng)
    luck = int(rng.integers(1 << 62))
    horizon_ms = draw_horizon_ms(settings, rng)
    rows = 4 * settings.total_executors + 10_000 if record else 0
    return at.new_state(settings, workload, arrivals, luck, horizon_ms, rows, slots)


@compiled
def run(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    rule: int,
    alpha: float,
    threshold: float,
    release: bool,
) -> int:
    """Let a heuristic decide until the episode ends or a table is full; the status."""
    while True:
        status = advance(state, bank)
        if status != at.DECIDE:
            return status
        observe(state, bank, view, rows)
        seed, count = state.setup[at.SEED], state.clock[at.DECISIONS]
        row, limit = decide(rule, alpha, threshold, release, view, seed, count)
        apply_action(state, bank, view, rows, row, limit)


def run_baseline(state: SimState, bank: JobTemplates, baseline: Baseline) -> SimState:
    """Run to the end, giving the tables more room whenever they are full; the final state."""
    view, rows = buffers_for(state, bank)
    while True:
        status = run(
            state, bank, view, rows, baseline.rule, baseline.alpha, baseline.threshold,
            baseline.release,
        )  # fmt: skip
        if status == at.GROW_TRACE:
            state = at.with_more_trace(state)
        elif status == at.GROW_JOBS:
            state = at.with_more_slots(state)
            view, rows = buffers_for(state, bank)
        else:
            return state


def buffers_for(state: SimState, bank: JobTemplates) -> tuple[Observation, NDArray[np.int64]]:
    """Observation tables that hold whatever the state's own tables can."""
    slots, stages = len(state.jobs), len(state.stages)
    most_edges = int(np.diff(bank.child_first[bank.first_stage]).max(initial=0))
    return blank_observation(stages, slots, max(1, slots * most_edges)), np.zeros(stages, np.int64)


def episode_result(
    state: SimState, workload: Workload, settings: DagSchedulingSettings, policy: str, seed: int
) -> EpisodeResult:
    """Read the outcome off a state."""
    done = state.completed_ms != at.NONE
    template = state.arrivals[:, 1].copy()
    trace = None
    if len(state.trace):
        table = state.trace[: state.clock[at.TRACE_ROWS]]
        trace = ScheduleTrace(
            executor=table[:, at.TRACE_EXECUTOR].astype(np.int32),
            job=table[:, at.TRACE_JOB].astype(np.int32),
            stage=table[:, at.TRACE_STAGE].astype(np.int32),
            start_ms=table[:, at.TRACE_START].copy(),
            end_ms=table[:, at.TRACE_END].copy(),
            moving=table[:, at.TRACE_MOVING].astype(np.int8),
        )
    return EpisodeResult(
        policy=policy,
        seed=seed,
        arrival_s=state.arrivals[:, 0] / 1000,
        completion_s=np.where(done, state.completed_ms / 1000, np.nan),
        template=template,
        work_s=workload.bank.work_ms[template] / 1000,
        end_s=float(state.clock[at.NOW]) / 1000,
        executors=settings.total_executors,
        decisions=int(state.clock[at.DECISIONS]),
        tasks=int(state.clock[at.FINISHED_TASKS]),
        trace=trace,
    )
