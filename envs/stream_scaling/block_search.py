"""Dynamic programming over blocks of time: when to switch between the plans of a family.

For every plan of the family one state is kept: that of the best schedule found so far that ends
with this plan. In each block it goes on, or the job switches to the plan from the best state of
all. Both are simulated, backlogs and restarts included, so the value of a schedule is its true
reward. As only one state a plan is kept, the result is a heuristic.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.schedule import (
    Schedule,
    copy_slot,
    fit_plans,
    new_slots,
    reward_so_far,
    slot_of,
)
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import (
    DRIFT,
    FAULT_FACTOR,
    FAULT_KIND,
    FAULT_TASK,
    HORIZON,
    Floats,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)

BLOCK_MIN = 10
LEVELS = 28  # plans for levels of the load
_TRIED_LEVELS = 400
_SMOOTHED_MIN, _AHEAD_MIN = 30, 60
_FULLEST, _EMPTIEST = 1.0, 0.4  # load over capacity at which a plan may be worth its restart


class Family(NamedTuple):
    """Candidate plans; the first is that of the start."""

    plans: Ints  # (K, N)
    capacity: Floats  # (K,) records a minute of every source that all tasks can process


def plan_family(
    job: JobTables, constants: SimConstants, start: Ints, load: Floats, others: Ints
) -> Family:
    """Plans for levels of the load, and `others` (plans of rules), each once."""
    smooth, single = _smoothed(load), _capacities(job, constants)
    tables = [single]
    for drift in job.faults[job.faults[:, FAULT_KIND] == DRIFT]:  # also with the slower task
        slow = single.copy()
        slow[int(drift[FAULT_TASK])] /= drift[FAULT_FACTOR]
        tables.append(slow)
    low = max(float(np.quantile(smooth, 0.02)), 1e-3) / 2
    levels = np.geomspace(low, max(float(smooth.max()) / _EMPTIEST, 2 * low), _TRIED_LEVELS)
    rows = [start[None], others]
    for table in tables:
        plans = np.array([_plan_for(table, level) for level in levels], np.int64)
        fit_plans(job, constants, plans)
        # The limit of the job's instances takes them from the tasks that need most.
        plans = plans[(_capacity(table, plans) >= levels) | (levels == low)]
        distinct = np.array(list(dict.fromkeys(map(tuple, plans))), np.int64)
        kept = np.linspace(0, len(distinct) - 1, min(LEVELS, len(distinct))).round()
        rows.append(distinct[kept.astype(np.int64)])
    unique = np.array(list(dict.fromkeys(map(tuple, np.vstack(rows)))), np.int64)
    return Family(unique, _capacity(single, unique))


def _smoothed(load: Floats) -> Floats:
    """Mean over the next minutes of the largest source."""
    kernel = np.ones(min(_SMOOTHED_MIN, load.shape[1])) / min(_SMOOTHED_MIN, load.shape[1])
    return np.convolve(load.max(axis=0), kernel, mode="valid")


def _capacities(job: JobTables, constants: SimConstants) -> Floats:
    """(N, most + 1) load, in records a minute of every source, that p instances can process."""
    count = np.arange(int(job.cap.max()) + 1)
    speedup = count / (1.0 + constants.contention * np.maximum(count - 1, 0))
    work = np.maximum(job.nominal * job.service_min, 1e-12)
    return speedup / work[:, None]


def _plan_for(capacities: Floats, level: float) -> Ints:
    """The fewest instances of each task that can process the level."""
    short: Ints = (capacities[:, 1:] < level).sum(axis=1) + 1
    return np.minimum(short, capacities.shape[1] - 1)


def _capacity(capacities: Floats, plans: Ints) -> Floats:
    """(K,) the load that all tasks can process under each plan."""
    least: Floats = np.take_along_axis(capacities, plans.T, axis=1).min(axis=0)
    return least


def search_blocks(
    job: JobTables, constants: SimConstants, state: SimState, family: Family, weights: Floats
) -> Schedule:
    """Find a schedule of the family's plans from the first decision to the end of the episode."""
    count, tasks = family.plans.shape
    horizon = int(state.clock[HORIZON])
    blocks = -(-(horizon - WARM_UP_MIN) // BLOCK_MIN)
    worthwhile = _worthwhile(job, state.load, family, blocks)
    origin = np.zeros((blocks, count), np.int64)
    last = advance_blocks(
        job, constants, new_slots(state, 2 * count + 1), family.plans, worthwhile, weights,
        np.full(2 * count, -np.inf), np.zeros(tasks, np.int64), BLOCK_MIN, origin,
    )  # fmt: skip
    minutes, chosen, plan = [], [], int(last)
    for block in range(blocks - 1, -1, -1):
        before = int(origin[block, plan])
        if before >= 0:
            minutes.append(WARM_UP_MIN + block * BLOCK_MIN)
            chosen.append(plan)
            plan = before
    return Schedule(np.array(minutes[::-1], np.int64), family.plans[chosen[::-1]])


def _worthwhile(job: JobTables, load: Floats, family: Family, blocks: int) -> NDArray[np.bool_]:
    """(blocks, K) whether the load of the next hours suits a plan; at least the nearest plan."""
    smooth = _smoothed(load)
    drift = max([1.0, *job.faults[job.faults[:, FAULT_KIND] == DRIFT, FAULT_FACTOR]])
    table = np.zeros((blocks, len(family.plans)), np.bool_)
    for block in range(blocks):
        begin = min(WARM_UP_MIN + block * BLOCK_MIN, len(smooth) - 1)
        ahead = smooth[begin : begin + _AHEAD_MIN]
        low, high = ahead.min() / _FULLEST, max(ahead.max(), 1e-3) * drift / _EMPTIEST
        table[block] = (family.capacity >= low) & (family.capacity <= high)
        if not table[block].any():
            middle = 2 * ahead.mean()
            table[block, np.abs(family.capacity - middle).argmin()] = True
    return table


@compiled
def advance_blocks(
    job: JobTables,
    constants: SimConstants,
    slots: SimState,
    plans: Ints,
    worthwhile: NDArray[np.bool_],
    weights: Floats,
    values: Floats,
    plan: Ints,
    block_min: int,
    origin: Ints,
) -> int:
    """Fill `origin`, (blocks, K): the plan before each plan, -1 where it goes on; the last plan.

    The 2 K + 1 slots are the states at the beginning and the end of a block, and scratch; `values`
    are the rewards of the first 2 K. All slots hold the state of the first decision.
    """
    count = len(plans)
    scratch, now, dearest = 2 * count, 0, 0.0
    values[0] = 0.0
    for block in range(len(origin)):
        after = count - now
        best = _best(values, now, count)
        lead, switched = -math.inf, -math.inf
        for own in range(count):
            values[after + own], origin[block, own] = -math.inf, -1
            if values[now + own] > -math.inf:
                copy_slot(slots, now + own, after + own)
                advance(job, constants, slot_of(slots, after + own), block_min)
                values[after + own] = reward_so_far(slot_of(slots, after + own), weights)
                lead = max(lead, values[after + own])
            if worthwhile[block, own] and best != own:
                copy_slot(slots, now + best, scratch)
                state = slot_of(slots, scratch)
                for task in range(len(plan)):
                    plan[task] = plans[own, task]
                rescale(job, constants, state, plan)
                advance(job, constants, state, block_min)
                value = reward_so_far(state, weights)
                switched = max(switched, value)
                if value > values[after + own]:
                    values[after + own], origin[block, own] = value, best
                    copy_slot(slots, scratch, after + own)
        # A plan that fell behind by more than two restarts is reached again by a switch.
        if switched > -math.inf:
            dearest = max(dearest, lead - switched)
        lead = max(lead, switched)
        for own in range(count):
            if values[after + own] < lead - 2.0 * dearest:
                values[after + own] = -math.inf
        now = after
    return _best(values, now, count)


@njit_internal
def _best(values: Floats, first: int, count: int) -> int:
    """The plan with the highest value."""
    best = 0
    for own in range(count):
        if values[first + own] > values[first + best]:
            best = own
    return best
