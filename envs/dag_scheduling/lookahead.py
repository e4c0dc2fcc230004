"""Search at every decision: try several actions, play each to the end by a policy, take the best.

The policy is a rule, or one of `models` (`players.py`). With foresight the rollouts have the true
future of the episode, and the cost never exceeds the policy's. Without it, every rollout has a
future that a scheduler could draw itself (`drawn_futures.py`): durations of unstarted tasks, ends
of running ones given how long they run, and later arrivals of a stream. All actions are tried in
the same futures. The policy's action is kept unless another one is better by a margin in standard
errors of the paired differences.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_inline, njit_internal, splitmix64
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.drawn_futures import draw_future, note_starts
from loadmaster.envs.dag_scheduling.exact_search import copy_state
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.dag_scheduling.players import Player, PlayerFor, act
from loadmaster.envs.dag_scheduling.profiles import with_mean_durations
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

RACE_FROM = 2  # futures after which an action that is no better than the policy's is dropped
_TRACE_ROWS = 4096  # between two decisions; the search consumes them

# Columns of `options`.
ROW, LIMIT, GRANTED = range(3)


@dataclass(frozen=True)
class Lookahead:
    """A search: the policy that plays, and how much is tried at a decision."""

    player: PlayerFor
    foresight: bool = False
    options: int = 3  # jobs, by least work left, whose best stages are tried
    futures: int = 6  # drawn at a decision; with foresight there is one
    arrivals: int = 10  # of a stream that each drawn future has
    margin: float = 1.0  # standard errors by which another action must be better
    only_means: bool = False  # rollouts know the mean duration of a stage alone, as a service does


class Buffers(NamedTuple):
    """Tables of the rollouts: a state with the future, its copy for one action, its observation."""

    player: Player
    future: SimState
    copy: SimState  # shares `setup` and `arrivals` with `future`
    observation: Observation
    rows: Ints
    options: Ints  # (options, 3)
    differences: NDArray[np.float64]  # (options, 2) sums of differences to option 0, and squares


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
    bank = workload.bank
    known = with_mean_durations(bank) if search.only_means else bank  # of the rollouts
    running = np.full((settings.total_executors, 5), NONE, np.int64)
    gap_ms = 1000 * mean_interarrival_s(settings, workload)
    futures = 0 if search.foresight else search.futures
    buffers, view, view_rows = _allocate(state, ahead, search)
    while True:
        status = advance(state, bank)
        note_starts(state, running)
        if status == cols.GROW_JOBS:
            state = with_more_slots(state)
            buffers, view, view_rows = _allocate(state, ahead, search)
        elif status == cols.DECIDE:
            observe(state, bank, view, view_rows)
            tables = _with_arrivals(buffers, state, ahead) if ahead else buffers
            option = choose(
                state, known, view, view_rows, tables, running, search.options, futures, seed,
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


def _allocate(state: SimState, ahead: int, search: Lookahead) -> tuple[Buffers, Observation, Ints]:
    """Allocate the rollouts' tables, an observation without edges, and its rows."""
    future = clone_state(state)._replace(trace=state.trace[:0], trace_ms=state.trace_ms[:0])
    if ahead:
        jobs = len(state.arrivals) + ahead
        future = future._replace(
            arrivals=np.zeros((jobs, 2), np.int64), completed_ms=np.zeros(jobs, np.int64)
        )
    copy = clone_state(future)._replace(setup=future.setup, arrivals=future.arrivals)
    views = [blank_observation(len(state.stages), len(state.jobs), 0) for _ in range(2)]
    most = 3 * search.options + 3  # and the policy's, the own job's, idling
    rows = np.zeros((2, len(state.stages)), np.int64)
    options, differences = np.zeros((most, 3), np.int64), np.zeros((most, 2))
    tables = search.player(future), future, copy, views[0], rows[0], options, differences
    return Buffers(*tables), views[1], rows[1]


def _with_arrivals(buffers: Buffers, state: SimState, ahead: int) -> Buffers:
    """Cut the arrivals of the rollouts to the next ones; all of them fit into the free slots."""
    free = len(state.jobs) - int(state.clock[cols.ACTIVE])
    arrivals = buffers.future.arrivals[: int(state.clock[cols.NEXT_JOB]) + min(ahead, free)]
    return buffers._replace(
        future=buffers.future._replace(arrivals=arrivals),
        copy=buffers.copy._replace(arrivals=arrivals),
    )


@compiled
def choose(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: Ints,
    buffers: Buffers,
    running: Ints,
    jobs_tried: int,
    futures: int,
    seed: int,
    gap_ms: float,
    margin: float,
) -> int:
    """Return the number of the best of `buffers.options`, which it fills; 0: the policy's action.

    `futures` 0 plays in the true future.
    """
    options, sums = buffers.options, buffers.differences
    may_choose, given = buffers.observation.schedulable, view.schedulable
    for place in range(len(given)):
        may_choose[place] = given[place]
    row, limit = act(buffers.player, view, state.setup[cols.SEED], state.clock[cols.DECISIONS])
    for place in range(len(given)):  # also what the policy excluded is tried
        given[place] = may_choose[place]
    count = fill_options(view, row, limit, jobs_tried, options)
    if count == 1:
        return 0
    best, least = 0, float(NEVER)
    if futures == 0:
        for option in range(count):
            cost = cost_of(state, bank, view, rows, buffers, option, least)
            if cost < least:
                best, least = option, cost
        return best
    sums[:count] = 0.0
    alive = count - 1
    key = splitmix64(splitmix64(seed, NEVER), state.clock[cols.DECISIONS])
    for number in range(1, futures + 1):
        draw_future(state, bank, buffers.future, running, splitmix64(key, number), gap_ms)
        whole = cost_of(buffers.future, bank, view, rows, buffers, 0, float(NEVER))
        for option in range(1, count):
            if options[option, GRANTED] < 0:
                continue
            cost = cost_of(buffers.future, bank, view, rows, buffers, option, float(NEVER))
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
        row, limit = act(buffers.player, view_then, state.setup[cols.SEED], clock[cols.DECISIONS])
        apply_action(state, bank, view_then, buffers.rows, row, limit)
    return float(clock[cols.JOB_MS])
