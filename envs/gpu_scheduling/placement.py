"""Check whether gangs fit, and choose their machines.

A rule scores the machines, and the gang fills them in order of their scores. All rules place a gang
whenever it fits, so `fits` does not depend on the rule.

A gang fits if the cluster can take as many instances of its shape as the gang has. These numbers
are kept per shape and updated as machines change: shapes are far fewer than jobs, and a starting or
ending job changes a few machines only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.state import NONE, SimState, Table

_UNLIMITED = 1 << 32  # instances with no demand


class PlacementPreferences(NamedTuple):
    """A policy's preference of machines for each job, used by the rule AFFINITY.

    With `priority` they correct a rule with parameters: its keys are divided by exp(priority), and
    the affinity is added to the value of a place.
    """

    affinity: NDArray[np.float64]  # (rows, M) the highest goes first
    row_of: NDArray[np.int64]  # (N,) row of each job; NONE: the rule alone decides on it
    priority: NDArray[np.float64]  # (rows,) empty: no rule is corrected
    start_priority: NDArray[np.float64]  # (N,) last one of each job before it started


def no_preferences(jobs: Jobs) -> PlacementPreferences:
    """Placeholder for rules other than AFFINITY."""
    row_of = np.zeros(len(jobs.arrival_s), np.int64)
    return PlacementPreferences(np.zeros((1, 1)), row_of, np.zeros(0), np.zeros(0))


@njit_internal
def corrected_row(preferences: PlacementPreferences, job: int) -> int:
    """Row of a job whose rule is corrected; NONE: it is not."""
    return preferences.row_of[job] if len(preferences.priority) > 0 else NONE


@njit_internal
def fits(state: SimState, group: int) -> bool:
    """Whether a job of this group, which must have pending jobs, could start now."""
    shape = state.groups[group, cols.SHAPE]
    return bool(state.shapes[shape, cols.HOLDS] >= state.groups[group, cols.INSTANCES])


@njit_internal
def _instances_of_shape(state: SimState, shape: int, gpu: int, cpu: int) -> int:
    """Instances of a shape that fit into the free resources of one machine."""
    each_gpu, each_cpu = state.shapes[shape, cols.EACH_GPU], state.shapes[shape, cols.EACH_CPU]
    if gpu < each_gpu or cpu < each_cpu:
        return 0
    by_gpu = gpu // each_gpu if each_gpu > 0 else _UNLIMITED
    by_cpu = cpu // each_cpu if each_cpu > 0 else _UNLIMITED
    return min(by_gpu, by_cpu)


@njit_internal
def update_shapes(state: SimState, cluster: Cluster, machine: int, gpu: int, cpu: int) -> None:
    """Update HOLDS of tracked shapes after `gpu` and `cpu` of a machine were allocated.

    Negative amounts were released.
    """
    free_gpu, free_cpu = state.free[machine, cols.GPU], state.free[machine, cols.CPU]
    kind = cluster.gpu_type[machine]
    for place in range(state.clock[cols.WAITING_SHAPES]):
        shape = state.shapes[place, cols.TRACKED]
        if state.shapes[shape, cols.KIND] in (ANY_TYPE, kind):
            after = _instances_of_shape(state, shape, free_gpu, free_cpu)
            before = _instances_of_shape(state, shape, free_gpu + gpu, free_cpu + cpu)
            state.shapes[shape, cols.HOLDS] += after - before


@njit_internal
def track(state: SimState, cluster: Cluster, shape: int) -> None:
    """Count one more group of this shape with pending jobs."""
    state.shapes[shape, cols.GROUPS] += 1
    if state.shapes[shape, cols.GROUPS] > 1:
        return
    place = state.clock[cols.WAITING_SHAPES]
    state.shapes[place, cols.TRACKED] = shape
    state.shapes[shape, cols.TRACKED_AT] = place
    state.clock[cols.WAITING_SHAPES] = place + 1
    kind, holds = state.shapes[shape, cols.KIND], 0
    for machine in range(len(state.free)):
        if kind in (ANY_TYPE, cluster.gpu_type[machine]):
            gpu, cpu = state.free[machine, cols.GPU], state.free[machine, cols.CPU]
            holds += _instances_of_shape(state, shape, gpu, cpu)
    state.shapes[shape, cols.HOLDS] = holds


@njit_internal
def untrack(state: SimState, shape: int) -> None:
    """Count one group less; a shape without pending jobs is not tracked."""
    state.shapes[shape, cols.GROUPS] -= 1
    if state.shapes[shape, cols.GROUPS] > 0:
        return
    state.clock[cols.WAITING_SHAPES] -= 1
    last = state.shapes[state.clock[cols.WAITING_SHAPES], cols.TRACKED]
    place = state.shapes[shape, cols.TRACKED_AT]
    state.shapes[place, cols.TRACKED] = last
    state.shapes[last, cols.TRACKED_AT] = place


@njit_internal
def instances_that_fit(cluster: Cluster, jobs: Jobs, free: Table, job: int, machine: int) -> int:
    """Instances of the gang that this machine could take, at most the whole gang."""
    kind = jobs.gpu_type[job]
    if kind != ANY_TYPE and kind != cluster.gpu_type[machine]:
        return 0
    fit = jobs.instances[job]
    if jobs.gpu[job] * fit > free[machine, cols.GPU]:
        fit = max(free[machine, cols.GPU], 0) // jobs.gpu[job]
    if jobs.cpu[job] * fit > free[machine, cols.CPU]:
        fit = max(free[machine, cols.CPU], 0) // jobs.cpu[job]
    return fit


@njit_internal
def _score(
    cluster: Cluster,
    free: Table,
    placement: int,
    machine: int,
    fit: int,
    preferences: PlacementPreferences,
    row: int,
) -> float:
    """Score of a machine: the lowest goes first; of equal ones, the first machine."""
    if placement == rules.BEST_FIT:
        return float(free[machine, cols.GPU])
    if placement == rules.WORST_FIT:
        return -float(free[machine, cols.GPU])
    if placement == rules.LOAD_BALANCE:
        # Whole percents, halves rounded to even, as in the public PAI simulator.
        gpus = 1 - free[machine, cols.GPU] / cluster.gpu_capacity[machine]
        cpus = 1 - free[machine, cols.CPU] / cluster.cpu_capacity[machine]
        return float(np.rint(100 * (gpus + cpus) / 2))
    if placement == rules.CONSOLIDATE:
        return free[machine, cols.GPU] - 1e9 * fit
    if placement == rules.AFFINITY:
        return -float(preferences.affinity[row, machine])
    return 0.0


@njit_internal
def choose_machines(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    preferences: PlacementPreferences,
) -> int:
    """Write the gang's machines into the job's rows; return the rows used, 0 if it does not fit."""
    if jobs.instances[job] == 1:
        return _choose_one(state, cluster, jobs, free, job, placement, preferences)
    if placement == rules.FIRST_FIT:
        return _choose_first(state, cluster, jobs, free, job)
    machines, needed, total = len(free), jobs.instances[job], 0
    for machine in range(machines):
        total += instances_that_fit(cluster, jobs, free, job, machine)
        if total >= needed:
            break
    if total < needed:
        return 0
    rack = NONE
    if placement == rules.CONSOLIDATE:
        rack = _tightest_rack(state, cluster, jobs, free, job)
    state.clock[cols.STAMP] += 1
    stamp, preferred = state.clock[cols.STAMP], preferences.row_of[job]
    row = state.jobs[job, cols.FIRST_ROW]
    while needed > 0:
        best, best_score, best_fit = NONE, np.inf, 0
        for machine in range(machines):
            if state.machines[machine, cols.VISITED] == stamp:
                continue
            if rack != NONE and cluster.rack[machine] != rack:
                continue
            fit = min(instances_that_fit(cluster, jobs, free, job, machine), needed)
            if fit == 0:
                continue
            value = _score(cluster, free, placement, machine, fit, preferences, preferred)
            if best == NONE or value < best_score:
                best, best_score, best_fit = machine, value, fit
        state.machines[best, cols.VISITED] = stamp
        state.rows[row, cols.MACHINE] = best
        state.rows[row, cols.COUNT] = best_fit
        needed -= best_fit
        row += 1
    return row - state.jobs[job, cols.FIRST_ROW]


@njit_inline
def _choose_first(state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int) -> int:
    """`choose_machines` for the rule FIRST_FIT, in a single pass."""
    first, needed, rows = state.jobs[job, cols.FIRST_ROW], jobs.instances[job], 0
    for machine in range(len(free)):
        fit = min(instances_that_fit(cluster, jobs, free, job, machine), needed)
        if fit > 0:
            state.rows[first + rows, cols.MACHINE] = machine
            state.rows[first + rows, cols.COUNT] = fit
            rows += 1
            needed -= fit
            if needed == 0:
                return rows
    return 0


@njit_inline
def _choose_one(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    preferences: PlacementPreferences,
) -> int:
    """`choose_machines` for a job of one instance."""
    best, best_score = NONE, np.inf
    kind, gpu, cpu = jobs.gpu_type[job], jobs.gpu[job], jobs.cpu[job]
    preferred = preferences.row_of[job]
    for machine in range(len(free)):
        if free[machine, cols.GPU] < gpu or free[machine, cols.CPU] < cpu:
            continue
        if kind != ANY_TYPE and kind != cluster.gpu_type[machine]:
            continue
        value = _score(cluster, free, placement, machine, 1, preferences, preferred)
        if best == NONE or value < best_score:
            best, best_score = machine, value
        if placement == rules.FIRST_FIT:
            break
    if best == NONE:
        return 0
    state.rows[state.jobs[job, cols.FIRST_ROW], cols.MACHINE] = best
    state.rows[state.jobs[job, cols.FIRST_ROW], cols.COUNT] = 1
    return 1


@njit_inline
def _tightest_rack(state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int) -> int:
    """The rack that holds the whole gang with the least spare capacity; NONE if none does.

    If single machines hold the whole gang, it is the rack of the fullest of these.
    """
    state.rack_fit[:] = 0
    whole, least = NONE, np.inf
    for machine in range(len(free)):
        fit = instances_that_fit(cluster, jobs, free, job, machine)
        state.rack_fit[cluster.rack[machine]] += fit
        if fit == jobs.instances[job] and free[machine, cols.GPU] < least:
            whole, least = cluster.rack[machine], free[machine, cols.GPU]
    if whole != NONE:
        return whole
    best = NONE
    for rack in range(len(state.rack_fit)):
        if state.rack_fit[rack] >= jobs.instances[job] and (
            best == NONE or state.rack_fit[rack] < state.rack_fit[best]
        ):
            best = rack
    return best


@njit_internal
def copy_room(source: Table, room: Table) -> None:
    for machine in range(len(room)):
        for resource in range(2):
            room[machine, resource] = source[machine, resource]


@njit_internal
def take_room(state: SimState, jobs: Jobs, room: Table, job: int, rows: int, sign: int) -> None:
    """Subtract what the job's first `rows` rows need from `room`; add it if `sign` is -1."""
    first = state.jobs[job, cols.FIRST_ROW]
    for row in range(first, first + rows):
        machine, count = state.rows[row, cols.MACHINE], sign * state.rows[row, cols.COUNT]
        room[machine, cols.GPU] -= count * jobs.gpu[job]
        room[machine, cols.CPU] -= count * jobs.cpu[job]
