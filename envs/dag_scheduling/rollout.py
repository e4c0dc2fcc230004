"""Episodes under a heuristic: arrivals, the initial state, the compiled loop and its result."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.baselines import Baseline, Rule
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import NEVER, NONE, SimState, enlarge, new_state
from loadmaster.envs.metrics import last_of_finished, mean_of_finished

_TRACE_ROWS_MAX = 1 << 24  # allocated in advance: 0.5 GB, of which only written pages count
WORK_EXPONENT = 5 / 3  # of the stages of all jobs, in `expected_work`; fitted


def draw_jobs(
    settings: DagSchedulingSettings, workload: Workload, rng: np.random.Generator
) -> Ints:
    """(jobs, 2) Draw arrivals in ms (exponential gaps, whole ms) and templates (uniform)."""
    templates = rng.integers(len(workload.job_names), size=settings.total_jobs)
    gaps = rng.exponential(
        mean_interarrival_s(settings, workload) * 1000, size=settings.streamed_jobs
    )
    arrivals = np.zeros(settings.total_jobs, np.int64)
    arrivals[settings.jobs_at_start :] = np.cumsum(gaps.astype(np.int64))
    return np.stack([arrivals, templates], axis=1)


def mean_interarrival_s(settings: DagSchedulingSettings, workload: Workload) -> float:
    """Return the mean interarrival time; from `load` (work per executor) where that is set."""
    if settings.load is None:
        return settings.interarrival_s
    work_s = float(workload.bank.work_ms.mean()) / 1000
    return work_s / (settings.load * settings.total_executors)


def draw_horizon_ms(settings: DagSchedulingSettings, rng: np.random.Generator) -> int:
    """Draw a geometric number of seconds, which is memoryless: no policy can foresee the end."""
    if settings.horizon_s is None:
        return int(NEVER) - 1
    return 1000 * int(rng.geometric(min(1.0, 1 / settings.horizon_s)))


def draw_sequence(
    settings: DagSchedulingSettings, workload: Workload, seed: int
) -> tuple[Ints, int, int]:
    """Jobs as in `draw_jobs`, key of the random durations, and end of the episode in ms."""
    rng = np.random.default_rng(seed)
    arrivals = draw_jobs(settings, workload, rng)
    durations_key = int(rng.integers(1 << 62))
    return arrivals, durations_key, draw_horizon_ms(settings, rng)


def expected_work(settings: DagSchedulingSettings, workload: Workload, seed: int) -> float:
    """Estimate the work of an episode from its jobs alone, relative to that of others.

    The more stages there are, the more decisions, and the more of them wait at each. In 120 batches
    of 20 jobs the stages that all decisions of an episode observed differed by 18% (standard
    deviation), and relative to this estimate by 7%. Tasks and work of the jobs explain no more.
    """
    arrivals, _, horizon_ms = draw_sequence(settings, workload, seed)
    stages = np.diff(workload.bank.first_stage)[arrivals[arrivals[:, 0] <= horizon_ms, 1]]
    return float(stages.sum()) ** WORK_EXPONENT


@dataclass(frozen=True)
class ScheduleTrace:
    """One row per task or move of an executor, in order of start. All fields are (rows,).

    Fields are views of the recorded tables: 33 bytes a row in all.
    """

    executor: NDArray[np.int32]
    job: NDArray[np.int32]  # number in order of arrival
    stage: NDArray[np.int32]  # number within the job
    start_ms: Ints
    end_ms: Ints
    moving: NDArray[np.int8]  # 1: a move to that job


@dataclass(frozen=True)
class EpisodeResult:
    """The outcome of an episode, job by job in order of arrival."""

    policy: str
    seed: int
    arrival_s: NDArray[np.float64]  # (jobs,)
    completion_s: NDArray[np.float64]  # (jobs,) nan where the horizon came first
    template: Ints  # (jobs,)
    work_s: NDArray[np.float64]  # (jobs,) executor-seconds of the template
    end_s: float
    executors: int
    decisions: int
    tasks: int
    trace: ScheduleTrace | None

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """(jobs,) Time in system; nan for unfinished jobs."""
        return self.completion_s - self.arrival_s

    @property
    def mean_jct_s(self) -> float:
        """Mean over finished jobs; nan if there are none."""
        return mean_of_finished(self.jct_s)

    @property
    def makespan_s(self) -> float:
        """Completion time of the last finished job; nan if there is none."""
        return last_of_finished(self.completion_s)


def initial_state(
    settings: DagSchedulingSettings,
    workload: Workload,
    seed: int,
    record: bool = False,
    slots: int = 0,
) -> SimState:
    """Build the start of the episode of `seed`, which fixes jobs, arrivals and durations.

    With `record`, the trace has rows for every task and some moves; it grows where moves need
    more. Memory is taken by the rows that are written, 32 bytes each.
    """
    arrivals, durations_key, horizon_ms = draw_sequence(settings, workload, seed)
    rows = 0
    if record:
        bank = workload.bank
        tasks = np.add.reduceat(bank.tasks, bank.first_stage[:-1])
        expected = int(tasks[arrivals[arrivals[:, 0] <= horizon_ms, 1]].sum())
        rows = min(expected * 9 // 8, _TRACE_ROWS_MAX) + 4 * settings.total_executors + 10_000
    return new_state(settings, workload, arrivals, durations_key, horizon_ms, rows, slots)


@compiled
def run(state: SimState, bank: JobTemplates, view: Observation, rows: Ints, rule: Rule) -> int:
    """Run a heuristic until the episode ends or a table is full; return the status."""
    while True:
        status = advance(state, bank)
        if status != cols.DECIDE:
            return status
        observe(state, bank, view, rows)
        row, limit = decide(rule, view, state.setup[cols.SEED], state.clock[cols.DECISIONS])
        apply_action(state, bank, view, rows, row, limit)


def run_baseline(state: SimState, bank: JobTemplates, baseline: Baseline) -> SimState:
    """Run to the end, enlarging full tables on the way; return the final state."""
    while (status := run(state, bank, *buffers_for(state, bank), baseline.encoded)) in cols.FULL:
        state = enlarge(state, status)
    return state


def buffers_for(state: SimState, bank: JobTemplates) -> tuple[Observation, Ints]:
    """Allocate an observation, and its `rows`, for as many jobs as the state has slots."""
    slots, stages = len(state.jobs), len(state.stages)
    most_edges = int(np.diff(bank.child_first[bank.first_stage]).max(initial=0))
    return blank_observation(stages, slots, max(1, slots * most_edges)), np.zeros(stages, np.int64)


def episode_result(
    state: SimState, workload: Workload, settings: DagSchedulingSettings, policy: str, seed: int
) -> EpisodeResult:
    """Read the outcome off a state."""
    done = state.completed_ms != NONE
    template = state.arrivals[:, 1].copy()
    trace = None
    if len(state.trace):
        rows = state.clock[cols.TRACE_ROWS]
        table, times = state.trace[:rows], state.trace_ms[:rows]
        trace = ScheduleTrace(
            executor=table[:, cols.TRACE_EXECUTOR],
            job=table[:, cols.TRACE_JOB],
            stage=table[:, cols.TRACE_STAGE],
            start_ms=times[:, cols.TRACE_START],
            end_ms=times[:, cols.TRACE_END],
            moving=table[:, cols.TRACE_MOVING].astype(np.int8),
        )
    return EpisodeResult(
        policy=policy,
        seed=seed,
        arrival_s=state.arrivals[:, 0] / 1000,
        completion_s=np.where(done, state.completed_ms / 1000, np.nan),
        template=template,
        work_s=workload.bank.work_ms[template] / 1000,
        end_s=float(state.clock[cols.NOW]) / 1000,
        executors=settings.total_executors,
        decisions=int(state.clock[cols.DECISIONS]),
        tasks=int(state.clock[cols.FINISHED_TASKS]),
        trace=trace,
    )
