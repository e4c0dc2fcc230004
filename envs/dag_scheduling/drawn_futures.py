"""Futures that a scheduler could draw: durations, ends of running tasks and later arrivals."""

import math

import numpy as np

from loadmaster.envs.compiled import Ints, compiled, njit_internal, splitmix64, uniform
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.exact_search import copy_state
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobTemplates
from loadmaster.envs.dag_scheduling.placement import profile_level, update_tournament
from loadmaster.envs.dag_scheduling.state import NEVER, NONE, SimState

# Columns of `running`, one row an executor: its last task or move.
START_MS, END_MS, WAVE, RUNNING_JOB, RUNNING_STAGE = range(5)


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
