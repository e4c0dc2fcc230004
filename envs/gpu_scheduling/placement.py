"""Which machines take a gang: a rule scores the machines, the gang fills them from the best on.

All rules find room whenever there is room, so whether a job fits does not depend on the rule.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.queues import Table
from loadmaster.envs.gpu_scheduling.rule_ids import (
    AFFINITY,
    BEST_FIT,
    CONSOLIDATE,
    FIRST_FIT,
    LOAD_BALANCE,
    WORST_FIT,
)
from loadmaster.envs.gpu_scheduling.state import SimState


class Wishes(NamedTuple):
    """How much a policy wants each job on each machine, for the rule AFFINITY."""

    affinity: NDArray[np.float64]  # (rows, M) the highest goes first
    row_of: NDArray[np.int64]  # (N,) a job's row


@njit_internal
def instances_that_fit(cluster: Cluster, jobs: Jobs, free: Table, job: int, machine: int) -> int:
    """How many of the gang's instances this machine could take, at most the whole gang."""
    kind = jobs.gpu_type[job]
    if kind != ANY_TYPE and kind != cluster.gpu_type[machine]:
        return 0
    fit = jobs.instances[job]
    if jobs.gpu[job] * fit > free[machine, at.GPU]:
        fit = max(free[machine, at.GPU], 0) // jobs.gpu[job]
    if jobs.cpu[job] * fit > free[machine, at.CPU]:
        fit = max(free[machine, at.CPU], 0) // jobs.cpu[job]
    return fit


@njit_internal
def score(
    cluster: Cluster, free: Table, placement: int, machine: int, fit: int, wishes: Wishes, row: int
) -> float:
    """The lowest goes first; of equal ones, the first machine."""
    if placement == BEST_FIT:
        return float(free[machine, at.GPU])
    if placement == WORST_FIT:
        return -float(free[machine, at.GPU])
    if placement == LOAD_BALANCE:
        # Whole percents, halves to the even one: so the public PAI simulator counts.
        gpus = 1 - free[machine, at.GPU] / cluster.gpu_capacity[machine]
        cpus = 1 - free[machine, at.CPU] / cluster.cpu_capacity[machine]
        return float(np.rint(100 * (gpus + cpus) / 2))
    if placement == CONSOLIDATE:
        return free[machine, at.GPU] - 1e9 * fit
    if placement == AFFINITY:
        return -float(wishes.affinity[row, machine])
    return 0.0


@njit_internal
def choose_machines(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    wishes: Wishes,
) -> int:
    """Write the gang's machines into the job's rows; how many rows, 0 if it does not fit."""
    if jobs.instances[job] == 1:
        return choose_one(state, cluster, jobs, free, job, placement, wishes)
    if placement == FIRST_FIT:
        return choose_first(state, cluster, jobs, free, job)
    machines, needed = len(free), jobs.instances[job]
    total = 0
    for machine in range(machines):
        total += instances_that_fit(cluster, jobs, free, job, machine)
        if total >= needed:
            break
    if total < needed:
        return 0
    rack = at.NONE
    if placement == CONSOLIDATE:
        rack = tightest_rack(state, cluster, jobs, free, job)
    state.clock[at.STAMP] += 1
    stamp, wish = state.clock[at.STAMP], wishes.row_of[job]
    row = state.jobs[job, at.FIRST_ROW]
    while needed > 0:
        best, best_score, best_fit = at.NONE, np.inf, 0
        for machine in range(machines):
            if state.machines[machine, at.MET] == stamp:
                continue
            if rack != at.NONE and cluster.rack[machine] != rack:
                continue
            fit = min(instances_that_fit(cluster, jobs, free, job, machine), needed)
            if fit == 0:
                continue
            value = score(cluster, free, placement, machine, fit, wishes, wish)
            if best == at.NONE or value < best_score:
                best, best_score, best_fit = machine, value, fit
        state.machines[best, at.MET] = stamp
        state.rows[row, at.MACHINE] = best
        state.rows[row, at.COUNT] = best_fit
        needed -= best_fit
        row += 1
    return row - state.jobs[job, at.FIRST_ROW]


@njit_inline
def choose_first(state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int) -> int:
    """The same for the rule FIRST_FIT: one pass does it."""
    first, needed, rows = state.jobs[job, at.FIRST_ROW], jobs.instances[job], 0
    for machine in range(len(free)):
        fit = min(instances_that_fit(cluster, jobs, free, job, machine), needed)
        if fit > 0:
            state.rows[first + rows, at.MACHINE] = machine
            state.rows[first + rows, at.COUNT] = fit
            rows += 1
            needed -= fit
            if needed == 0:
                return rows
    return 0


@njit_inline
def choose_one(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    free: Table,
    job: int,
    placement: int,
    wishes: Wishes,
) -> int:
    """The same for a job of one instance."""
    best, best_score = at.NONE, np.inf
    kind, gpu, cpu = jobs.gpu_type[job], jobs.gpu[job], jobs.cpu[job]
    wish = wishes.row_of[job]
    for machine in range(len(free)):
        if free[machine, at.GPU] < gpu or free[machine, at.CPU] < cpu:
            continue
        if kind != ANY_TYPE and kind != cluster.gpu_type[machine]:
            continue
        value = score(cluster, free, placement, machine, 1, wishes, wish)
        if best == at.NONE or value < best_score:
            best, best_score = machine, value
        if placement == FIRST_FIT:
            break
    if best == at.NONE:
        return 0
    state.rows[state.jobs[job, at.FIRST_ROW], at.MACHINE] = best
    state.rows[state.jobs[job, at.FIRST_ROW], at.COUNT] = 1
    return 1


@njit_inline
def tightest_rack(state: SimState, cluster: Cluster, jobs: Jobs, free: Table, job: int) -> int:
    """The rack that holds the whole gang and has the least to spare beyond it; NONE if none does.

    A machine that holds it all decides: then its rack, the fullest such machine first.
    """
    state.rack_fit[:] = 0
    whole, least = at.NONE, np.inf
    for machine in range(len(free)):
        fit = instances_that_fit(cluster, jobs, free, job, machine)
        state.rack_fit[cluster.rack[machine]] += fit
        if fit == jobs.instances[job] and free[machine, at.GPU] < least:
            whole, least = cluster.rack[machine], free[machine, at.GPU]
    if whole != at.NONE:
        return whole
    best = at.NONE
    for rack in range(len(state.rack_fit)):
        if state.rack_fit[rack] >= jobs.instances[job] and (
            best == at.NONE or state.rack_fit[rack] < state.rack_fit[best]
        ):
            best = rack
    return best
