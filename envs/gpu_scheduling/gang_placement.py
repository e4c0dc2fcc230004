"""Placement of gangs that knows speeds and prices, fragmentation (FGD), and migration.

The machines of a gang are chosen as a whole: one machine, one rack, or all machines of some speed
or more. A gang runs at the speed of its slowest instance, and slower if it is spread.
"""

import numpy as np

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.hidden_speeds import expect_speeds
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.keys import expected_left_s, has_progressed
from loadmaster.envs.gpu_scheduling.placement import (
    PlacementPreferences,
    choose_machines,
    corrected_row,
    fits,
    instances_that_fit,
    take_room,
)
from loadmaster.envs.gpu_scheduling.slowdown import (
    colocation_with,
    gang_speed,
    kept_by_class,
    network_factor,
)
from loadmaster.envs.gpu_scheduling.state import NONE, SimState, Table

# Kinds of `best_gang`.
NOWHERE, ONE_MACHINE, ONE_RACK, ACROSS = 0, 1, 2, 3
# Results of `find_move`.
STAY, TO_FREE, TO_ROOM = 0, 1, 2
_LEAST_RESTARTS = 5.0  # work of a run, in restarts, before the job may move
_TIE = 1e-6  # weight of the resources left over, between places that are otherwise equal
_FREE_OF_CHARGE = 1e-9  # dollars per second, instead of 0


@njit_inline
def choose_gang(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    preferences: PlacementPreferences,
) -> int:
    """`choose_machines` for all rules."""
    if placement < rules.FGD:
        return choose_machines(state, cluster, jobs, free, job, placement, preferences)
    return _choose_whole(state, cluster, jobs, free, job, placement, preferences)


@njit_internal
def _choose_whole(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    preferences: PlacementPreferences,
) -> int:
    """`choose_machines` for the rules that score a gang's machines together."""
    if placement == rules.FGD:
        _score_by_fragmentation(state, cluster, jobs, free, job)
        return _fill(state, cluster, jobs, free, job)
    expect_speeds(state, cluster, jobs, job)
    kind, where, _, _ = best_gang(state, cluster, jobs, free, job, placement, preferences)
    if kind == NOWHERE:
        return 0
    least = _rack_speed(state, cluster, jobs, free, job, int(where)) if kind == ONE_RACK else where
    for machine in range(len(free)):
        speed = state.factors[machine, cols.EXPECTED]
        chosen = (
            (kind == ONE_MACHINE and machine == where)
            or (kind == ONE_RACK and cluster.rack[machine] == where and speed >= least)
            or (kind == ACROSS and speed >= least)
        )
        score = np.inf
        if chosen:  # the slowest, as the others gain nothing; then as few as possible
            fit = instances_that_fit(cluster, jobs, free, job, machine)
            score = 1e6 * speed - fit + _TIE * free[machine, cols.GPU]
        state.factors[machine, cols.SCORE] = score
    return _fill(state, cluster, jobs, free, job)


@njit_internal
def best_gang(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    preferences: PlacementPreferences,
) -> tuple[int, float, float, float]:
    """Find the best place for a gang: its kind; machine, rack or speed; value; expected speed.

    `expect_speeds` must have been called for the job. Affinities that correct the rule add to the
    value: of several machines, their mean over the instances that would fit.
    """
    affinity, row = preferences.affinity, corrected_row(preferences, job)
    needed, interference = jobs.instances[job], state.setup[cols.INTERFERENCE] == 1
    fraction = jobs.gpu[job] % WHOLE if interference else 0
    kind, where, value, speed = NOWHERE, 0.0, -np.inf, 0.0
    state.rack_fit[:] = 0
    total = 0
    for machine in range(len(free)):
        fit = instances_that_fit(cluster, jobs, free, job, machine)
        if fit == 0:
            continue
        total += fit
        state.rack_fit[cluster.rack[machine]] += fit
        if fit < needed:
            continue
        rate = state.factors[machine, cols.EXPECTED]
        if fraction > 0:
            kept = colocation_with(state, cluster, machine, needed, needed * fraction)
            if state.setup[cols.SPEED_SOURCE] == rules.TRUE:
                kept = kept_by_class(state, job, machine, kept, needed - 1)
            rate *= kept
        spare = free[machine, cols.GPU] - needed * jobs.gpu[job]
        spare /= cluster.gpu_capacity[machine]
        worth = _value(state, placement, rate, 1.0, cluster.price_per_s[machine], spare)
        if row != NONE:
            worth += affinity[row, machine]
        if worth > value:
            kind, where, value, speed = ONE_MACHINE, float(machine), worth, rate
    if needed == 1 or total < needed:
        return kind, where, value, speed
    network = network_factor(jobs.comm[job], True) if interference else 1.0
    last = NONE
    for machine in range(len(free)):
        rack = cluster.rack[machine]  # its machines are consecutive, and of equal price
        if rack == last or state.rack_fit[rack] < needed:
            continue
        last = rack
        spare = (state.rack_fit[rack] - needed) / state.rack_fit[rack]
        rate = _rack_speed(state, cluster, jobs, free, job, rack)
        worth = _value(state, placement, rate, network, cluster.price_per_s[machine], spare)
        if row != NONE:
            total_affinity = 0.0
            for other in range(machine, len(free)):
                if cluster.rack[other] == rack:
                    fit = instances_that_fit(cluster, jobs, free, job, other)
                    total_affinity += fit * affinity[row, other]
            worth += total_affinity / state.rack_fit[rack]
        if worth > value:
            kind, where, value, speed = ONE_RACK, float(rack), worth, rate * network
    network = network_factor(jobs.comm[job], False) if interference else 1.0
    slowest = np.inf
    while True:  # from the fastest machines to all
        rate, price, held = 0.0, 0.0, 0
        for machine in range(len(free)):
            expected = state.factors[machine, cols.EXPECTED]
            if expected < slowest and expected > rate:
                rate, price = expected, cluster.price_per_s[machine]
        if rate == 0.0:
            return kind, where, value, speed
        slowest, total_affinity = rate, 0.0
        for machine in range(len(free)):
            if state.factors[machine, cols.EXPECTED] >= rate:
                fit = instances_that_fit(cluster, jobs, free, job, machine)
                held += fit
                if row != NONE:
                    total_affinity += fit * affinity[row, machine]
        if held >= needed:
            worth = _value(state, placement, rate, network, price, 1.0) + total_affinity / held
            if worth > value:
                kind, where, value, speed = ACROSS, rate, worth, rate * network


@njit_internal
def _rack_speed(
    state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int, rack: int
) -> float:
    """Expected speed of the slowest machine that a gang needs in a rack, fastest ones first."""
    slowest = np.inf
    while True:
        speed, held = 0.0, 0
        for machine in range(len(free)):
            expected = state.factors[machine, cols.EXPECTED]
            if cluster.rack[machine] == rack and speed < expected < slowest:
                speed = expected
        slowest = speed
        for machine in range(len(free)):
            if cluster.rack[machine] == rack and state.factors[machine, cols.EXPECTED] >= speed:
                held += instances_that_fit(cluster, jobs, free, job, machine)
        if held >= jobs.instances[job] or speed == 0.0:
            return speed


@njit_internal
def _value(
    state: SimState, placement: int, rate: float, network: float, price: float, spare: float
) -> float:
    """Logarithm of the speed or of the work per dollar, or both weighted; the highest is best."""
    speed = np.log(rate * network)
    if placement == rules.FASTEST:
        return float(speed - _TIE * spare)
    per_dollar = speed - np.log(max(price, _FREE_OF_CHARGE))
    if placement == rules.CHEAPEST:
        return float(per_dollar - _TIE * spare)
    spread = state.rule[rules.SPREAD] * np.log(network)
    fit = (state.rule[rules.FIT] + _TIE) * spare
    return float(speed + state.rule[rules.PRICE] * per_dollar + spread - fit)


@njit_internal
def _fill(state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int) -> int:
    """Fill machines in the order of SCORE; return the rows used, 0 if the gang does not fit."""
    needed, first, rows = jobs.instances[job], state.jobs[job, cols.FIRST_ROW], 0
    while needed > 0:
        best, most = NONE, 0
        for machine in range(len(free)):
            score = state.factors[machine, cols.SCORE]
            if score == np.inf or (best != NONE and score >= state.factors[best, cols.SCORE]):
                continue
            fit = min(instances_that_fit(cluster, jobs, free, job, machine), needed)
            if fit > 0:
                best, most = machine, fit
        if best == NONE:
            return 0
        state.factors[best, cols.SCORE] = np.inf
        state.rows[first + rows, cols.MACHINE] = best
        state.rows[first + rows, cols.COUNT] = most
        needed -= most
        rows += 1
    return rows


@njit_internal
def _score_by_fragmentation(
    state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int
) -> None:
    """FGD (ATC 2023): increase of the GPUs that a typical job could not use, per instance.

    Typical jobs are those that arrived so far. The GPUs of a machine are one pool, so they are
    fragments for a job if the machine cannot hold one of its instances.
    """
    for arrived in range(state.clock[cols.COUNTED], state.clock[cols.NEXT_JOB]):
        group = state.jobs[arrived, cols.GROUP]
        state.shapes[state.groups[group, cols.SHAPE], cols.ARRIVED] += 1
    state.clock[cols.COUNTED] = state.clock[cols.NEXT_JOB]
    for machine in range(len(free)):
        fit = instances_that_fit(cluster, jobs, free, job, machine)
        state.factors[machine, cols.SCORE] = np.inf
        if fit == 0:
            continue
        gpu, cpu = free[machine, cols.GPU], free[machine, cols.CPU]
        before = _fragments(state, cluster, machine, gpu, cpu)
        gpu, cpu = gpu - fit * jobs.gpu[job], cpu - fit * jobs.cpu[job]
        grown = _fragments(state, cluster, machine, gpu, cpu) - before
        state.factors[machine, cols.SCORE] = grown / fit + _TIE * gpu


@njit_internal
def _fragments(state: SimState, cluster: Cluster, machine: int, gpu: int, cpu: int) -> float:
    """Free GPU of a machine that jobs cannot use, summed over the jobs that have arrived."""
    jobs = 0
    for shape in range(len(state.shapes)):
        each_gpu, kind = state.shapes[shape, cols.EACH_GPU], state.shapes[shape, cols.KIND]
        if each_gpu == 0:
            break
        if kind != ANY_TYPE and kind != cluster.gpu_type[machine]:
            continue
        if gpu < each_gpu or cpu < state.shapes[shape, cols.EACH_CPU]:
            jobs += state.shapes[shape, cols.ARRIVED]
    return float(jobs * gpu)


@njit_internal
def find_move(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    ordering: int,
    placement: int,
    job: int,
    preferences: PlacementPreferences,
) -> int:
    """Whether a job should move to free machines, or to those that jobs behind it hold.

    The time left at the expected speeds decides, including the work that a restart loses.
    """
    expect_speeds(state, cluster, jobs, job)
    used, left_s = state.jobs[job, cols.ROWS_USED], expected_left_s(state, jobs, ordering, job)
    migrate, swap = state.rule[rules.MIGRATE], state.rule[rules.SWAP]
    best_s = left_s / state.progress[job, cols.BEST_RATE] if _knows_best(state, job) else 0.0
    if used > 0:
        restart_s, move = state.times[cols.RESTART_S], STAY
        if not has_progressed(state, job, _LEAST_RESTARTS):
            return STAY
        stay_s = left_s / _present_speed(state, cluster, jobs, job, used)
        if migrate > 0 and stay_s > migrate * best_s:
            take_room(state, jobs, state.free, job, used, -1)
            speed = best_gang(state, cluster, jobs, state.free, job, placement, preferences)[3]
            take_room(state, jobs, state.free, job, used, 1)
            if speed > 0 and stay_s > migrate * (left_s + restart_s) / speed:
                move, stay_s = TO_FREE, (left_s + restart_s) / speed
    else:
        if swap == 0 or not fits(state, state.jobs[job, cols.GROUP]):
            return STAY
        restart_s, move = 0.0, STAY
        speed = best_gang(state, cluster, jobs, state.free, job, placement, preferences)[3]
        stay_s = left_s / speed
    if swap > 0 and stay_s > swap * best_s:
        speed = best_gang(state, cluster, jobs, state.room, job, placement, preferences)[3]
        if speed > 0 and stay_s > swap * (left_s + restart_s) / speed:
            return TO_ROOM
    return move


@njit_internal
def _present_speed(state: SimState, cluster: Cluster, jobs: Jobs, job: int, used: int) -> float:
    """Speed of a running job: the nominal one, or the one measured if the rule measures."""
    rate = float(state.progress[job, cols.RATE])
    if state.setup[cols.SPEED_SOURCE] == rules.NOMINAL or rate == 0.0:
        return gang_speed(state, cluster, jobs, job, used, False, True)
    return rate


@njit_internal
def _knows_best(state: SimState, job: int) -> bool:
    """Whether the job's speed in the empty cluster is known, which no place can exceed."""
    return bool(state.progress[job, cols.BEST_RATE] > 0)
