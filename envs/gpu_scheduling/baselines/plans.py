"""A plan for the pending jobs, an order and a place for each, and what it would come to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import Wishes, choose_machines
from loadmaster.envs.gpu_scheduling.slowdown import network_factor
from loadmaster.envs.gpu_scheduling.state import SimState

MOST_JOBS = 32  # of the pending ones that fit, so many are planned; the others follow as they came
RULES = 5  # of placement; RULES + m means: around machine m

# `columns`: the plan at hand, and the best one so far. ORDER and BEST_ORDER are lists of places in
# `Search.jobs`; RULE and BEST_RULE belong to the job at that place.
ORDER, RULE, BEST_ORDER, BEST_RULE = 0, 1, 2, 3

# `estimates`
JCT_S, FEE, BACKLOG_GPU_S, CLUSTER_SPEED, PRICE_OF_WORK = 0, 1, 2, 3, 4
# BACKLOG_GPU_S   work left of the running jobs
# CLUSTER_SPEED   GPUs times speed of the whole cluster
# PRICE_OF_WORK   dollars for a GPU-second of work, over all GPUs


class Search(NamedTuple):
    """The search's own tables."""

    columns: NDArray[np.int64]  # (MOST_JOBS, 4)
    jobs: NDArray[np.int64]  # (MOST_JOBS,) pending jobs that fit now
    estimates: NDArray[np.float64]  # (5,)
    around: Wishes  # for one job at a time: a machine, then those of its rack
    plan: Wishes  # the plan as affinities; the last row is that of jobs without one


def new_search(cluster: Cluster, jobs: Jobs) -> Search:
    machines, count = len(cluster.speed), len(jobs.arrival_s)
    gpus = cluster.gpu_capacity / WHOLE
    estimates = np.zeros(5)
    estimates[CLUSTER_SPEED] = (gpus * cluster.speed).sum()
    estimates[PRICE_OF_WORK] = (gpus * cluster.price_per_s).sum() / estimates[CLUSTER_SPEED]
    return Search(
        columns=np.zeros((MOST_JOBS, 4), np.int64),
        jobs=np.zeros(MOST_JOBS, np.int64),
        estimates=estimates,
        around=Wishes(np.zeros((1, machines)), np.zeros(count, np.int64)),
        plan=Wishes(np.zeros((MOST_JOBS + 1, machines)), np.full(count, MOST_JOBS, np.int64)),
    )


@njit_internal
def place_by(
    state: SimState, cluster: Cluster, jobs: Jobs, search: Search, job: int, rule: int
) -> int:
    """Choose machines among what the plan has left; how many rows, 0 if the job does not fit."""
    if rule >= RULES:
        home = rule - RULES
        for machine in range(len(state.free)):
            near = cluster.rack[machine] == cluster.rack[home]
            search.around.affinity[0, machine] = 1.0 if near else 0.0
        search.around.affinity[0, home] = 2.0
        rule = rules.AFFINITY
    return choose_machines(state, cluster, jobs, state.room, job, rule, search.around)


@njit_internal
def estimate(state: SimState, cluster: Cluster, jobs: Jobs, search: Search, count: int) -> None:
    """Mean completion time and fee of the plan at hand.

    Who is placed runs at the speed of his machines as they are now. Who is left waits for all work
    before him, spread over the whole cluster, and then runs at its mean speed and price.
    """
    estimates = search.estimates
    clear_room(state)
    backlog, jct_s, fee = estimates[BACKLOG_GPU_S], 0.0, 0.0
    for place in range(count):
        which = search.columns[place, ORDER]
        job, rule = search.jobs[which], search.columns[which, RULE]
        duration_s, gpus = jobs.duration_s[job], jobs.instances[job] * jobs.gpu[job] / WHOLE
        jct_s += state.times[at.NOW] - jobs.arrival_s[job]
        rows = place_by(state, cluster, jobs, search, job, rule)
        if rows > 0:
            take_room(state, jobs, job, rows)
            run_s = duration_s / expected_speed(state, cluster, jobs, job, rows)
            jct_s += run_s
            first = state.jobs[job, at.FIRST_ROW]
            for row in range(first, first + rows):
                price = cluster.price_per_s[state.rows[row, at.MACHINE]]
                fee += price * state.rows[row, at.COUNT] * jobs.gpu[job] / WHOLE * run_s
        else:
            mean_speed = estimates[CLUSTER_SPEED] * WHOLE / state.setup[at.ALL_GPU]
            jct_s += backlog / estimates[CLUSTER_SPEED] + duration_s / mean_speed
            fee += estimates[PRICE_OF_WORK] * gpus * duration_s
        backlog += gpus * duration_s
    estimates[JCT_S] = jct_s / count
    estimates[FEE] = fee / count


@njit_inline
def expected_speed(state: SimState, cluster: Cluster, jobs: Jobs, job: int, rows: int) -> float:
    """Of a job that would take its first `rows` rows; luck and later neighbours are unknown."""
    first = state.jobs[job, at.FIRST_ROW]
    rack = cluster.rack[state.rows[first, at.MACHINE]]
    slowest, one_rack = np.inf, True
    for row in range(first, first + rows):
        machine = state.rows[row, at.MACHINE]
        speed = cluster.speed[machine]
        if jobs.gpu[job] % WHOLE != 0:
            speed *= state.factors[machine, at.COLOCATION]
        slowest = min(slowest, speed)
        one_rack = one_rack and cluster.rack[machine] == rack
    if state.setup[at.INTERFERENCE] == 1:
        slowest *= network_factor(jobs.comm[job], rows, 1 if one_rack else 2)
    return slowest


@njit_internal
def clear_room(state: SimState) -> None:
    for machine in range(len(state.free)):
        state.room[machine, at.GPU] = state.free[machine, at.GPU]
        state.room[machine, at.CPU] = state.free[machine, at.CPU]


@njit_internal
def take_room(state: SimState, jobs: Jobs, job: int, rows: int) -> None:
    first = state.jobs[job, at.FIRST_ROW]
    for row in range(first, first + rows):
        machine, count = state.rows[row, at.MACHINE], state.rows[row, at.COUNT]
        state.room[machine, at.GPU] -= count * jobs.gpu[job]
        state.room[machine, at.CPU] -= count * jobs.cpu[job]
