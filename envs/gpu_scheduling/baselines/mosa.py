"""MOSA: multi-objective simulated annealing over the order and the placement of pending jobs.

Every scheduling pass follows a plan for the pending jobs that fit now: an order, and for each job a
placement rule or a machine near which its instances are placed. A plan is evaluated by estimates of
mean completion time and mean fee. A move that is not dominated is accepted, a dominated one with
the Boltzmann probability of its loss; the plan with the least product of both estimates is used.
The number of moves is bounded, and random numbers are hashed, so decisions are reproducible.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal, splitmix64
from loadmaster.envs.gpu_scheduling import placement
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import AFFINITY, CONSOLIDATE, FIFO, GIVEN
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.placement import PlacementPreferences, take_room
from loadmaster.envs.gpu_scheduling.queues import rekey
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.slowdown import gang_speed
from loadmaster.envs.gpu_scheduling.state import SimState

MOVES_PER_JOB = 20
MOST_MOVES = 200
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.1, 0.001  # relative change of an objective
_UNPLANNED = 1e12  # added to the keys of jobs without a plan, to rank them behind the others
MOST_JOBS = 32  # pending jobs that are planned; the others follow in order of arrival
RULES = 5  # placement rules; RULES + m: near machine m

# `columns`: the current and the best plan. ORDER and BEST_ORDER are lists of indices in
# `Search.jobs`; RULE and BEST_RULE belong to the job with that index.
ORDER, RULE, BEST_ORDER, BEST_RULE = 0, 1, 2, 3

# `estimates`
JCT_S, FEE, BACKLOG_GPU_S, CLUSTER_SPEED, PRICE_OF_WORK, JCT_WEIGHT, FEE_WEIGHT = range(7)
# BACKLOG_GPU_S   work left of the running jobs
# CLUSTER_SPEED   GPUs times speed of the whole cluster
# PRICE_OF_WORK   mean price of a GPU second of work, dollars
# JCT_WEIGHT, FEE_WEIGHT  exponents of the objective


class Search(NamedTuple):
    """Tables of the search."""

    columns: NDArray[np.int64]  # (MOST_JOBS, 4)
    jobs: NDArray[np.int64]  # (MOST_JOBS,) pending jobs that fit now
    estimates: NDArray[np.float64]  # (7,)
    near: PlacementPreferences  # of one job: a machine, then the others of its rack
    plan: PlacementPreferences  # the plan; the last row is for jobs without one


def new_search(settings: GpuSchedulingSettings, cluster: Cluster, jobs: Jobs) -> Search:
    machines, count = len(cluster.speed), len(jobs.arrival_s)
    gpus = cluster.gpu_capacity / WHOLE
    estimates = np.zeros(7)
    estimates[JCT_WEIGHT], estimates[FEE_WEIGHT] = settings.jct_weight, settings.fee_weight
    estimates[CLUSTER_SPEED] = (gpus * cluster.speed).sum()
    estimates[PRICE_OF_WORK] = (gpus * cluster.price_per_s).sum() / estimates[CLUSTER_SPEED]
    return Search(
        columns=np.zeros((MOST_JOBS, 4), np.int64),
        jobs=np.zeros(MOST_JOBS, np.int64),
        estimates=estimates,
        near=PlacementPreferences(
            np.zeros((1, machines)), np.zeros(count, np.int64), np.zeros(0), np.zeros(0)
        ),
        plan=PlacementPreferences(
            np.zeros((MOST_JOBS + 1, machines)),
            np.full(count, MOST_JOBS, np.int64),
            np.zeros(0),
            np.zeros(0),
        ),
    )


@njit_internal
def _place_by(
    state: SimState, cluster: Cluster, jobs: Jobs, search: Search, job: int, rule: int
) -> int:
    """Choose machines in `room`; return the rows used, 0 if the job does not fit."""
    if rule >= RULES:
        home = rule - RULES
        for machine in range(len(state.free)):
            near = cluster.rack[machine] == cluster.rack[home]
            search.near.affinity[0, machine] = 1.0 if near else 0.0
        search.near.affinity[0, home] = 2.0
        rule = AFFINITY
    return placement.choose_machines(state, cluster, jobs, state.room, job, rule, search.near)


@njit_internal
def _estimate(state: SimState, cluster: Cluster, jobs: Jobs, search: Search, count: int) -> None:
    """Estimate mean completion time and fee of the current plan.

    A placed job runs at the present speed of its machines, without noise. Other jobs wait for all
    work before them, spread over the cluster, and then run at its mean speed and price.
    """
    estimates = search.estimates
    placement.copy_room(state.free, state.room)
    backlog, jct_s, fee = estimates[BACKLOG_GPU_S], 0.0, 0.0
    for place in range(count):
        which = search.columns[place, ORDER]
        job, rule = search.jobs[which], search.columns[which, RULE]
        duration_s, gpus = jobs.duration_s[job], jobs.instances[job] * jobs.gpu[job] / WHOLE
        jct_s += state.times[cols.NOW] - jobs.arrival_s[job]
        rows = _place_by(state, cluster, jobs, search, job, rule)
        if rows > 0:
            take_room(state, jobs, state.room, job, rows, 1)
            run_s = duration_s / gang_speed(state, cluster, jobs, job, rows, False, False)
            jct_s += run_s
            first = state.jobs[job, cols.FIRST_ROW]
            for row in range(first, first + rows):
                price = cluster.price_per_s[state.rows[row, cols.MACHINE]]
                fee += price * state.rows[row, cols.COUNT] * jobs.gpu[job] / WHOLE * run_s
        else:
            mean_speed = estimates[CLUSTER_SPEED] * WHOLE / state.setup[cols.ALL_GPU]
            jct_s += backlog / estimates[CLUSTER_SPEED] + duration_s / mean_speed
            fee += estimates[PRICE_OF_WORK] * gpus * duration_s
        backlog += gpus * duration_s
    estimates[JCT_S] = jct_s / count
    estimates[FEE] = fee / count


@compiled
def run_annealed(state: SimState, cluster: Cluster, jobs: Jobs, search: Search) -> int:
    """Run MOSA until the episode ends or the trace is full; return the status."""
    while True:
        status = advance(state, cluster, jobs, FIFO)
        if status != cols.DECIDE:
            return status
        count = _candidates(state, search)
        if count > 0:
            _anneal(state, cluster, jobs, search, count)
            _apply_plan(state, cluster, jobs, search, count)
            run_scheduling_pass(state, cluster, jobs, GIVEN, AFFINITY, search.plan)
            _discard_plan(state, jobs, search, count)


@njit_internal
def _candidates(state: SimState, search: Search) -> int:
    """Collect the earliest pending jobs that fit; return how many."""
    count, end = 0, len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end and count < MOST_JOBS:
        if placement.fits(state, state.jobs[job, cols.GROUP]):
            search.jobs[count] = job
            count += 1
        elif state.setup[cols.BACKFILL] == 0:
            break
        job = state.jobs[job, cols.LATER]
    return count


@njit_internal
def _anneal(state: SimState, cluster: Cluster, jobs: Jobs, search: Search, count: int) -> None:
    """Search a plan; the best one is left in the BEST columns."""
    columns, estimates = search.columns, search.estimates
    estimates[BACKLOG_GPU_S] = 0.0
    for place in range(state.clock[cols.RUNNING]):
        job = state.event_heap[place]
        left_s = (state.finish_s[job] - state.times[cols.NOW]) * state.progress[job, cols.RATE]
        estimates[BACKLOG_GPU_S] += left_s * jobs.instances[job] * jobs.gpu[job] / WHOLE
    for place in range(count):
        columns[place, ORDER] = place
        columns[place, RULE] = CONSOLIDATE
    _estimate(state, cluster, jobs, search, count)
    jct_s, fee, best = estimates[JCT_S], estimates[FEE], _objective(estimates)
    _save_best(search, count)
    moves = min(MOST_MOVES, MOVES_PER_JOB * count)
    cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (1.0 / moves)
    temperature = FIRST_TEMPERATURE
    key = splitmix64(state.setup[cols.SEED], state.clock[cols.EPOCHS])
    for move in range(moves):
        bits = splitmix64(key, move)
        one = int(bits % np.uint64(count))
        other = int((bits >> np.uint64(16)) % np.uint64(count))
        swaps = one != other and (bits >> np.uint64(63)) == np.uint64(1)
        rule = columns[one, RULE]
        if swaps:
            columns[one, ORDER], columns[other, ORDER] = columns[other, ORDER], columns[one, ORDER]
        else:
            choices = RULES if (bits >> np.uint64(62)) & np.uint64(1) else RULES + len(state.free)
            columns[one, RULE] = int((bits >> np.uint64(32)) % np.uint64(choices))
        _estimate(state, cluster, jobs, search, count)
        worse_jct = estimates[JCT_S] / jct_s - 1.0
        worse_fee = estimates[FEE] / fee - 1.0 if fee > 0 else 0.0
        dominated = worse_jct >= 0 and worse_fee >= 0 and worse_jct + worse_fee > 0
        chance = np.exp(-(worse_jct + worse_fee) / temperature) if dominated else 1.0
        if float(splitmix64(key, moves + move) >> np.uint64(11)) / (1 << 53) < chance:
            jct_s, fee = estimates[JCT_S], estimates[FEE]
            if _objective(estimates) < best:
                best = _objective(estimates)
                _save_best(search, count)
        elif swaps:
            columns[one, ORDER], columns[other, ORDER] = columns[other, ORDER], columns[one, ORDER]
        else:
            columns[one, RULE] = rule
        temperature *= cooling


@njit_internal
def _objective(estimates: NDArray[np.float64]) -> float:
    """Product of the weighted estimates; completion time alone if the fee is 0."""
    jct, fee = estimates[JCT_S] ** estimates[JCT_WEIGHT], estimates[FEE]
    return float(jct * (fee ** estimates[FEE_WEIGHT] if fee > 0 else 1.0))


@njit_internal
def _save_best(search: Search, count: int) -> None:
    for place in range(count):
        search.columns[place, BEST_ORDER] = search.columns[place, ORDER]
        search.columns[place, BEST_RULE] = search.columns[place, RULE]


@njit_internal
def _apply_plan(state: SimState, cluster: Cluster, jobs: Jobs, search: Search, count: int) -> None:
    """Write the best plan as keys and affinities: the highest for the machine chosen first."""
    placement.copy_room(state.free, state.room)
    for place in range(count):
        which = search.columns[place, BEST_ORDER]
        job, rule = search.jobs[which], search.columns[which, BEST_RULE]
        rekey(state, jobs, job, float(place))
        search.plan.row_of[job] = which
        for machine in range(len(state.free)):
            search.plan.affinity[which, machine] = 0.0
        rows = _place_by(state, cluster, jobs, search, job, rule)
        take_room(state, jobs, state.room, job, rows, 1)
        first = state.jobs[job, cols.FIRST_ROW]
        for row in range(rows):
            search.plan.affinity[which, state.rows[first + row, cols.MACHINE]] = float(rows - row)
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        if search.plan.row_of[job] == MOST_JOBS and state.key[job] < _UNPLANNED:
            rekey(state, jobs, job, _UNPLANNED + jobs.arrival_s[job])
        job = state.jobs[job, cols.LATER]


@njit_internal
def _discard_plan(state: SimState, jobs: Jobs, search: Search, count: int) -> None:
    """Discard the plan of jobs that still wait."""
    for place in range(count):
        job = search.jobs[place]
        search.plan.row_of[job] = MOST_JOBS
        if state.jobs[job, cols.ROWS_USED] == 0:
            rekey(state, jobs, job, _UNPLANNED + jobs.arrival_s[job])
