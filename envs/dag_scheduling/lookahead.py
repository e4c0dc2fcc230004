"""Search at every decision: try several actions, play each to the end by a rule, take the best.

With foresight the rollouts have the true future of the episode, and the cost never exceeds the
rule's. Without it, every rollout has a future that a scheduler could draw itself: durations of
unstarted tasks, ends of running ones given how long they run, and later arrivals of a stream. All
actions are tried in the same futures. The rule's action is kept unless another one is better by a
margin in standard errors of the paired differences.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import (
    Ints,
    compiled,
    njit_inline,
    njit_internal,
    splitmix64,
    uniform,
)
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.baselines import Baseline, Rule
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.exact_search import copy_state
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.placement import profile_level, update_tournament
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    episode_result,
    initial_state,
    mean_interarrival_s,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import NEVER, NONE, SimState, clone_state, with_more_slots
from loadmaster.envs.errors import InputError

RACE_FROM = 2  # futures after which an action that is no better than the rule's is dropped
_TRACE_ROWS = 4096  # between two decisions; the search consumes them

# Columns of `running`, one row an executor: its last task or move.
START_MS, END_MS, WAVE, RUNNING_JOB, RUNNING_STAGE = range(5)
# Columns of `options`.
ROW, LIMIT, GRANTED = range(3)


@dataclass(frozen=True)
class Lookahead:
    """A search: its rule, and how much it tries at a decision."""

    rule: Baseline
    foresight: bool = False
    options: int = 3  # jobs, by least work left, whose best stages are tried
    futures: int = 6  # drawn at a decision; with foresight there is one
    arrivals: int = 10  # of a stream that each drawn future has
    margin: float = 1.0  # standard errors by which another action must be better


class Buffers(NamedTuple):
    """Tables of the rollouts: a state with the future, its copy for one action, its observation."""

    future: SimState
    copy: SimState  # shares `setup` and `arrivals` with `future`
    observation: Observation
    rows: Ints
    options: Ints  # (options, 3)
    differences: NDArray[np.float64]  # (options, 2) sums of differences to the rule, and squares


def run_lookahead(
    settings: DagSchedulingSettings, workload: Workload, seed: int, search: Lookahead
) -> EpisodeResult:
    """Run the episode of `seed` under a search; thread-safe."""
    check_searchable(settings)
    streamed = settings.streamed_jobs > 0
    ahead = search.arrivals if streamed and not search.foresight else 0
    slots = settings.jobs_at_start + 2 * ahead + 8 if ahead else settings.total_jobs
    state = initial_state(settings, workload, seed, slots=slots)
    rows = _TRACE_ROWS + 2 * settings.total_executors
    state = state._replace(trace=np.zeros((rows, 4), np.int32), trace_ms=np.zeros((rows, 2), int))
    bank, rule = workload.bank, search.rule.encoded
    running = np.full((settings.total_executors, 5), NONE, np.int64)
    gap_ms = 1000 * mean_interarrival_s(settings, workload)
    futures = 0 if search.foresight else search.futures
    buffers, view, view_rows = _allocate(state, ahead, search.options)
    while True:
        status = advance(state, bank)
        note_starts(state, running)
        if status == cols.GROW_JOBS:
            state = with_more_slots(state)
            buffers, view, view_rows = _allocate(state, ahead, search.options)
        elif status == cols.DECIDE:
            observe(state, bank, view, view_rows)
            tables = _with_arrivals(buffers, state, ahead) if ahead else buffers
            option = choose(
                state, bank, view, view_rows, tables, rule, running, search.options, futures, seed,
                gap_ms, search.margin,
            )  # fmt: skip
            row, limit, _ = buffers.options[option]
            apply_action(state, bank, view, view_rows, row, limit)
        elif status != cols.GROW_TRACE:
            break
    state = state._replace(trace=state.trace[:0], trace_ms=state.trace_ms[:0])
    name = "foresight" if search.foresight else "search"
    return episode_result(state, workload, settings, name, seed)


def check_searchable(settings: DagSchedulingSettings) -> None:
    """Refuse what the rollouts do not model."""
    for name, expected in (("objective", "jct"), ("estimates", "known"), ("horizon_s", None)):
        given = getattr(settings, name)
        if given != expected:
            wanted = "none" if expected is None else expected
            raise InputError(f"{name} is {given}; expected {wanted} for a search with rollouts")


def _allocate(state: SimState, ahead: int, jobs_tried: int) -> tuple[Buffers, Observation, Ints]:
    """Allocate the rollouts' tables, an observation without edges, and its rows."""
    future = clone_state(state)._replace(trace=state.trace[:0], trace_ms=state.trace_ms[:0])
    if ahead:
        jobs = len(state.arrivals) + ahead
        future = future._replace(
            arrivals=np.zeros((jobs, 2), np.int64), completed_ms=np.zeros(jobs, np.int64)
        )
    copy = clone_state(future)._replace(setup=future.setup, arrivals=future.arrivals)
    views = [blank_observation(len(state.stages), len(state.jobs), 0) for _ in range(2)]
    most = 3 * jobs_tried + 3  # and the rule's, the own job's, idling
    rows = np.zeros((2, len(state.stages)), np.int64)
    options, differences = np.zeros((most, 3), np.int64), np.zeros((most, 2))
    return Buffers(future, copy, views[0], rows[0], options, differences), views[1], rows[1]


def _with_arrivals(buffers: Buffers, state: SimState, ahead: int) -> Buffers:
    """Cut the arrivals of the rollouts to the next ones; all of them fit into the free slots."""
    free = len(state.jobs) - int(state.clock[cols.ACTIVE])
    arrivals = buffers.future.arrivals[: int(state.clock[cols.NEXT_JOB]) + min(ahead, free)]
    return buffers._replace(
        future=buffers.future._replace(arrivals=arrivals),
        copy=buffers.copy._replace(arrivals=arrivals),
    )


@compiled
def note_starts(state: SimState, running: Ints) -> None:
    """Move the trace into `running`: when each executor's task began, and in which wave."""
    for row in range(state.clock[cols.TRACE_ROWS]):
        facts, entry = state.trace[row], running[state.trace[row, cols.TRACE_EXECUTOR]]
        start = state.trace_ms[row, cols.TRACE_START]
        job, stage = facts[cols.TRACE_JOB], facts[cols.TRACE_STAGE]
        if facts[cols.TRACE_MOVING]:
            job = NONE
        elif entry[RUNNING_JOB] != job or entry[END_MS] < start:
            entry[WAVE] = FRESH
        else:
            entry[WAVE] = REST if entry[RUNNING_STAGE] == stage else FIRST
        entry[START_MS], entry[END_MS] = start, state.trace_ms[row, cols.TRACE_END]
        entry[RUNNING_JOB], entry[RUNNING_STAGE] = job, stage
    state.clock[cols.TRACE_ROWS] = 0


@compiled
def choose(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: Ints,
    buffers: Buffers,
    rule: Rule,
    running: Ints,
    jobs_tried: int,
    futures: int,
    seed: int,
    gap_ms: float,
    margin: float,
) -> int:
    """Return the number of the best of `buffers.options`, which it fills; 0 is the rule's action.

    `futures` 0 plays in the true future.
    """
    options, sums = buffers.options, buffers.differences
    row, limit = decide(rule, view, state.setup[cols.SEED], state.clock[cols.DECISIONS])
    count = fill_options(view, row, limit, jobs_tried, options)
    if count == 1:
        return 0
    best, least = 0, float(NEVER)
    if futures == 0:
        for option in range(count):
            cost = cost_of(state, bank, view, rows, buffers, rule, option, least)
            if cost < least:
                best, least = option, cost
        return best
    sums[:count] = 0.0
    alive = count - 1
    key = splitmix64(splitmix64(seed, NEVER), state.clock[cols.DECISIONS])
    for number in range(1, futures + 1):
        draw_future(state, bank, buffers.future, running, splitmix64(key, number), gap_ms)
        whole = cost_of(buffers.future, bank, view, rows, buffers, rule, 0, float(NEVER))
        for option in range(1, count):
            if options[option, GRANTED] < 0:
                continue
            cost = cost_of(buffers.future, bank, view, rows, buffers, rule, option, float(NEVER))
            sums[option, 0] += cost - whole
            sums[option, 1] += (cost - whole) ** 2
            if number >= RACE_FROM and number < futures and sums[option, 0] >= 0:
                options[option, GRANTED] = -1
                alive -= 1
        if alive == 0:
            return 0
    least = 0.0
    for option in range(1, count):
        mean = sums[option, 0] / futures
        variance = max(sums[option, 1] / futures - mean * mean, 0.0) / max(futures - 1, 1)
        if options[option, GRANTED] >= 0 and mean < least and mean < -margin * math.sqrt(variance):
            best, least = option, mean
    return best


@njit_inline
def fill_options(view: Observation, row: int, limit: int, jobs_tried: int, options: Ints) -> int:
    """Write the actions to try, the given one first; return how many have distinct effects.

    They are the stage with the longest critical path of each of the jobs with the least work left,
    with 1, half of and all executors it can use; of the executors' own job with all; and idling.
    """
    idle = len(view.schedulable) - 1
    count = add_option(view, row, limit, idle, options, 0)
    work, after = -1.0, -1
    for _ in range(jobs_tried):
        next_row = next_job_row(view, work, after)
        if next_row < 0:
            break
        after = view.stage_job[next_row]
        work = float(view.jobs[after, obs.WORK_LEFT_S])
        below = int(view.jobs[after, obs.MIN_LIMIT]) - 1
        most = executors_granted(view, next_row, NEVER)
        count = add_option(view, next_row, below + most, idle, options, count)
        count = add_option(view, next_row, below + max(most // 2, 1), idle, options, count)
        count = add_option(view, next_row, below + 1, idle, options, count)
    best, path = -1, -1.0
    for own in range(int(view.cluster[obs.STAGES])):
        is_own = view.schedulable[own] and view.jobs[view.stage_job[own], obs.IS_SOURCE] == 1
        if is_own and view.stages[own, obs.CRITICAL_S] > path:
            best, path = own, float(view.stages[own, obs.CRITICAL_S])
    if best >= 0:
        below = int(view.jobs[view.stage_job[best], obs.MIN_LIMIT]) - 1
        most = below + executors_granted(view, best, NEVER)
        count = add_option(view, best, most, idle, options, count)
    if view.schedulable[idle]:
        count = add_option(view, idle, 1, idle, options, count)
    return count


@njit_internal
def next_job_row(view: Observation, work: float, after: int) -> int:
    """Find the best stage of the job that follows (work left, job) in that order; -1: none."""
    best = -1
    for row in range(int(view.cluster[obs.STAGES])):
        job = view.stage_job[row]
        left = float(view.jobs[job, obs.WORK_LEFT_S])
        if view.schedulable[row] == 0 or left < work or (left == work and job <= after):
            continue
        if best >= 0:
            other = view.stage_job[best]
            least = float(view.jobs[other, obs.WORK_LEFT_S])
            longer = view.stages[row, obs.CRITICAL_S] > view.stages[best, obs.CRITICAL_S]
            if not (left < least or (other == job and longer)):
                continue
        best = row
    return best


@njit_internal
def add_option(
    view: Observation, row: int, limit: int, idle: int, options: Ints, count: int
) -> int:
    """Append an action unless one with the same effect is there; return the new count."""
    granted = 0 if row == idle else executors_granted(view, row, limit)
    for option in range(count):
        if options[option, ROW] == row and options[option, GRANTED] == granted:
            return count
    options[count, ROW], options[count, LIMIT], options[count, GRANTED] = row, limit, granted
    return count + 1


@njit_internal
def cost_of(
    start: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: Ints,
    buffers: Buffers,
    rule: Rule,
    option: int,
    stop_at: float,
) -> float:
    """Return the job-milliseconds of the episode after an action; NEVER from `stop_at` on."""
    state, clock, view_then = buffers.copy, buffers.copy.clock, buffers.observation
    copy_state(start, state)
    row, limit = buffers.options[option, ROW], buffers.options[option, LIMIT]
    apply_action(state, bank, view, rows, row, limit)
    while advance(state, bank) == cols.DECIDE:
        if clock[cols.JOB_MS] >= stop_at:
            return float(NEVER)
        observe(state, bank, view_then, buffers.rows)
        row, limit = decide(rule, view_then, state.setup[cols.SEED], clock[cols.DECISIONS])
        apply_action(state, bank, view_then, buffers.rows, row, limit)
    return float(clock[cols.JOB_MS])


@compiled
def draw_future(
    state: SimState,
    bank: JobTemplates,
    future: SimState,
    running: Ints,
    key: int | np.uint64,
    gap_ms: float,
) -> None:
    """Copy the state and replace what no scheduler can know by draws keyed by `key`."""
    copy_state(state, future)
    future.clock[cols.TRACE_ROWS] = 0
    now, stride = state.clock[cols.NOW], state.setup[cols.STRIDE]
    count = len(state.stages)
    future.setup[cols.SEED] = np.int64(splitmix64(key, count))
    for position in range(state.clock[cols.ACTIVE]):
        first = state.order[position] * stride
        for stage in range(first, first + stride):
            future.stages[stage, cols.RNG_KEY] = np.int64(splitmix64(key, stage))
    when = float(now)
    for number in range(state.clock[cols.NEXT_JOB], len(future.arrivals)):
        count += 2
        when -= math.log(uniform(key, count)) * gap_ms
        future.arrivals[number, 0] = int(when)
        templates = len(bank.first_stage) - 1
        future.arrivals[number, 1] = min(int(uniform(key, count + 1) * templates), templates - 1)
    count += 2
    for executor in range(len(state.executors)):
        row = future.executors[executor]
        if row[cols.ACTIVITY] == cols.WORKING and row[cols.EVENT_MS] != NEVER:
            entry = running[executor]
            bits = splitmix64(key, count + executor)
            lasts = longer_duration(future, bank, row, entry[WAVE], now - entry[START_MS], bits)
            row[cols.EVENT_MS] = max(entry[START_MS] + lasts, now + 1)
            update_tournament(future.tree, future.executors, executor)


@njit_internal
def longer_duration(
    state: SimState, bank: JobTemplates, row: Ints, wave: int, elapsed: int, bits: np.uint64
) -> int:
    """Draw the duration of an executor's task from those in its list that exceed `elapsed`.

    The list is that of the executors at the job now. Without such a duration, return `elapsed`.
    """
    profile = state.stages[row[cols.STAGE], cols.PROFILE]
    level = profile_level(state, state.jobs[row[cols.JOB], cols.MEMBERS], bits)
    first = bank.wave_first[profile, wave, level]
    end = first + bank.wave_count[profile, wave, level]
    extra = 0
    if wave == FRESH and bank.cold_start[profile, level]:
        extra = state.setup[cols.WARMUP_MS]
    longer = 0
    for place in range(first, end):
        longer += bank.durations_ms[place] + extra > elapsed
    if longer == 0:
        return elapsed
    pick = int(uniform(np.int64(bits), 1) * longer)
    for place in range(first, end):
        if bank.durations_ms[place] + extra > elapsed:
            if pick == 0:
                return int(bank.durations_ms[place]) + extra
            pick -= 1
    return elapsed
