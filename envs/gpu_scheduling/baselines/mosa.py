"""MOSA: multi-objective simulated annealing over the order of the queue and each job's placement.

At every epoch a plan is searched for the pending jobs that fit now: an order, and for each job a
placement rule or a machine around which it gathers. A plan is judged by two estimates, mean
completion time and mean fee. A move that is not dominated is always taken, a dominated one with
Boltzmann's probability of how much worse it is; of all plans met, the one with the least product of
the two is carried out. The search takes a fixed number of moves and its random numbers from a hash,
so a decision is bounded and reproducible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.baselines.plans import (
    BACKLOG_GPU_S,
    BEST_ORDER,
    BEST_RULE,
    FEE,
    JCT_S,
    MOST_JOBS,
    ORDER,
    RULE,
    RULES,
    Search,
    clear_room,
    estimate,
    place_by,
    take_room,
)
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.queues import rekey
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass
from loadmaster.envs.gpu_scheduling.shapes import fits
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.random import splitmix64

MOVES_PER_JOB = 20
MOST_MOVES = 200
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.1, 0.001  # relative change of an objective
_SECOND = 1e12  # a key after all planned ones


@compiled
def run_annealed(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    search: Search,
    jct_weight: float,
    fee_weight: float,
) -> int:
    """Let MOSA decide until the episode ends or the trace is full; the status."""
    while True:
        status = advance(state, cluster, jobs, rules.FIFO)
        if status != at.DECIDE:
            return status
        count = candidates(state, search)
        if count > 0:
            anneal(state, cluster, jobs, search, count, jct_weight, fee_weight)
            adopt(state, cluster, jobs, search, count)
            run_scheduling_pass(state, cluster, jobs, rules.GIVEN, rules.AFFINITY, search.plan)
            forget(state, jobs, search, count)


@njit_internal
def candidates(state: SimState, search: Search) -> int:
    """Collect the first pending jobs that fit."""
    count, end = 0, len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end and count < MOST_JOBS:
        if fits(state, state.jobs[job, at.GROUP]):
            search.jobs[count] = job
            count += 1
        elif state.setup[at.BACKFILL] == 0:
            break
        job = state.jobs[job, at.LATER]
    return count


@njit_internal
def anneal(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    search: Search,
    count: int,
    jct_weight: float,
    fee_weight: float,
) -> None:
    """Search; the best plan is left in the BEST columns."""
    columns, estimates = search.columns, search.estimates
    estimates[BACKLOG_GPU_S] = 0.0
    for place in range(state.clock[at.RUNNING]):
        job = state.event_heap[place]
        left_s = (state.finish_s[job] - state.times[at.NOW]) * state.progress[job, at.RATE]
        estimates[BACKLOG_GPU_S] += left_s * jobs.instances[job] * jobs.gpu[job] / WHOLE
    for place in range(count):
        columns[place, ORDER] = place
        columns[place, RULE] = rules.CONSOLIDATE
    estimate(state, cluster, jobs, search, count)
    jct_s, fee = estimates[JCT_S], estimates[FEE]
    best = product(jct_s, fee, jct_weight, fee_weight)
    keep(search, count)
    moves = min(MOST_MOVES, MOVES_PER_JOB * count)
    cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (1.0 / moves)
    temperature = FIRST_TEMPERATURE
    key = splitmix64(state.setup[at.SEED], state.clock[at.EPOCHS])
    for move in range(moves):
        bits = splitmix64(key, move)
        one = int(bits % np.uint64(count))
        other = int((bits >> np.uint64(16)) % np.uint64(count))
        swaps = one != other and (bits >> np.uint64(63)) == np.uint64(1)
        rule = columns[one, RULE]
        if swaps:
            swap(columns, one, other)
        else:
            choices = RULES if (bits >> np.uint64(62)) & np.uint64(1) else RULES + len(state.free)
            columns[one, RULE] = int((bits >> np.uint64(32)) % np.uint64(choices))
        estimate(state, cluster, jobs, search, count)
        worse_jct = estimates[JCT_S] / jct_s - 1.0
        worse_fee = estimates[FEE] / fee - 1.0 if fee > 0 else 0.0
        dominated = worse_jct >= 0 and worse_fee >= 0 and worse_jct + worse_fee > 0
        chance = np.exp(-(worse_jct + worse_fee) / temperature) if dominated else 1.0
        if float(splitmix64(key, moves + move) >> np.uint64(11)) / (1 << 53) < chance:
            jct_s, fee = estimates[JCT_S], estimates[FEE]
            value = product(jct_s, fee, jct_weight, fee_weight)
            if value < best:
                best = value
                keep(search, count)
        elif swaps:
            swap(columns, one, other)
        else:
            columns[one, RULE] = rule
        temperature *= cooling


@njit_internal
def product(jct_s: float, fee: float, jct_weight: float, fee_weight: float) -> float:
    """The reward's two factors; completion time alone where nothing has a price."""
    return jct_s**jct_weight * (fee**fee_weight if fee > 0 else 1.0)


@njit_internal
def swap(columns: NDArray[np.int64], one: int, other: int) -> None:
    columns[one, ORDER], columns[other, ORDER] = columns[other, ORDER], columns[one, ORDER]


@njit_internal
def keep(search: Search, count: int) -> None:
    for place in range(count):
        search.columns[place, BEST_ORDER] = search.columns[place, ORDER]
        search.columns[place, BEST_RULE] = search.columns[place, RULE]


@njit_internal
def adopt(state: SimState, cluster: Cluster, jobs: Jobs, search: Search, count: int) -> None:
    """The best plan as keys and affinities: machines the plan chose first are wanted most."""
    for place in range(count):
        search.columns[place, ORDER] = search.columns[place, BEST_ORDER]
        search.columns[place, RULE] = search.columns[place, BEST_RULE]
    clear_room(state)
    for place in range(count):
        which = search.columns[place, ORDER]
        job, rule = search.jobs[which], search.columns[which, RULE]
        rekey(state, jobs, job, float(place))
        search.plan.row_of[job] = which
        for machine in range(len(state.free)):
            search.plan.affinity[which, machine] = 0.0
        rows = place_by(state, cluster, jobs, search, job, rule)
        take_room(state, jobs, job, rows)
        first = state.jobs[job, at.FIRST_ROW]
        for row in range(rows):
            search.plan.affinity[which, state.rows[first + row, at.MACHINE]] = float(rows - row)
    end = len(state.jobs) - 1
    job = state.jobs[end, at.LATER]
    while job != end:  # those without a plan keep their order behind the others
        if search.plan.row_of[job] == MOST_JOBS and state.key[job] < _SECOND:
            rekey(state, jobs, job, _SECOND + jobs.arrival_s[job])
        job = state.jobs[job, at.LATER]


@njit_internal
def forget(state: SimState, jobs: Jobs, search: Search, count: int) -> None:
    """Jobs that were planned but still wait go back among the others."""
    for place in range(count):
        job = search.jobs[place]
        search.plan.row_of[job] = MOST_JOBS
        if state.jobs[job, at.ROWS_USED] == 0:
            rekey(state, jobs, job, _SECOND + jobs.arrival_s[job])
