"""Many episodes side by side in common tables, so that one compiled call can step them all.

Episodes differ in their numbers of jobs, allocation rows, groups and users. The tables have room
for the largest, and each episode works on the part of them that is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, inner
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.desk import Desk, to_next_decision
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import Observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Terms
from loadmaster.envs.gpu_scheduling.state import SimState

SIZES = 5  # of an episode: its jobs, allocation rows, groups, shapes, users
Table = NDArray[Any]


class Fleet(NamedTuple):
    """E episodes: the tables of each record, with an axis of E in front."""

    sizes: NDArray[np.int64]  # (E, SIZES)
    states: SimState
    jobs: Jobs
    desks: Desk


def sizes_of(state: SimState) -> tuple[int, int, int, int, int]:
    kinds = len(state.groups), len(state.shapes), len(state.user_use)
    return len(state.key), len(state.rows), *kinds


def empty_fleet(episodes: int, state: SimState, jobs: Jobs, desk: Desk) -> Fleet:
    """Room for `episodes` that are no larger than this one."""

    def room(table: Table) -> Table:
        return np.zeros((episodes, *table.shape), table.dtype)

    return Fleet(
        np.zeros((episodes, SIZES), np.int64),
        SimState._make(room(table) for table in state),
        Jobs._make(room(table) for table in jobs),
        Desk._make(room(table) for table in desk),
    )


def put(fleet: Fleet, index: int, state: SimState, jobs: Jobs, desk: Desk) -> Fleet:
    """Begin an episode at `index`; the fleet that holds it, with more room if it needs that."""
    fleet.sizes[index] = sizes_of(state)
    return Fleet(
        fleet.sizes,
        SimState._make(_put(fleet.states, state, index)),
        Jobs._make(_put(fleet.jobs, jobs, index)),
        Desk._make(_put(fleet.desks, desk, index)),
    )


def _put(all_tables: tuple[Table, ...], tables: tuple[Table, ...], index: int) -> Iterator[Table]:
    """All tables with these in their places; longer copies of them where they had no room."""
    for held, table in zip(all_tables, tables, strict=True):
        rows = len(table)
        if rows > held.shape[1]:
            longer = np.zeros((len(held), *table.shape), table.dtype)
            longer[:, : held.shape[1]] = held
            longer[index] = table
            yield longer
        else:
            held[index, :rows] = table
            yield held


@compiled
def step_fleet(
    fleet: Fleet,
    cluster: Cluster,
    terms: Terms,
    deciding: NDArray[np.bool_],
    priorities: NDArray[np.float32],
    affinities: NDArray[np.float32],
    views: Observation,
    legal: NDArray[np.bool_],
    status: NDArray[np.int64],
) -> None:
    """Act where a decision was asked for; take every episode on to its next one."""
    for i in range(len(deciding)):
        state, jobs = state_of(fleet, i), jobs_of(fleet, i)
        desk, view = desk_of(fleet, i), view_of(views, i)
        legal[i] = True
        if deciding[i]:
            legal[i] = apply_action(state, cluster, jobs, desk, terms, priorities[i], affinities[i])
        status[i] = to_next_decision(state, cluster, jobs, desk)
        observe(state, cluster, jobs, desk, view)


@inner
def state_of(fleet: Fleet, i: int) -> SimState:
    """Episode i's tables, without copying."""
    jobs, rows, groups, shapes, users = fleet.sizes[i]
    s = fleet.states
    return SimState(
        s.clock[i], s.times[i], s.setup[i], s.progress[i, :jobs], s.finish_s[i, :jobs],
        s.key[i, :jobs], s.jobs[i, : jobs + 1], s.rows[i, :rows], s.row_speed[i, :rows],
        s.machines[i], s.factors[i], s.free[i], s.groups[i, :groups], s.shapes[i, :shapes],
        s.heap[i, :jobs], s.event_heap[i, :jobs], s.place[i, :jobs], s.user_use[i, :users],
        s.room[i], s.order[i, :jobs], s.order_at[i, :jobs], s.rack_fit[i], s.trace[i],
    )  # fmt: skip


@inner
def jobs_of(fleet: Fleet, i: int) -> Jobs:
    count, j = fleet.sizes[i, 0], fleet.jobs
    return Jobs(
        j.arrival_s[i, :count], j.duration_s[i, :count], j.instances[i, :count], j.gpu[i, :count],
        j.cpu[i, :count], j.gpu_type[i, :count], j.comm[i, :count], j.user[i, :count],
        j.job_id[i, :count],
    )  # fmt: skip


@inner
def desk_of(fleet: Fleet, i: int) -> Desk:
    # Its tables may be longer than the episode needs: nothing asks for their length.
    d = fleet.desks
    return Desk(
        d.counts[i], d.sums[i], d.shown[i], d.running[i], d.affinity[i],
        d.row_of[i], d.free[i], d.noted_s[i], d.noted_speed[i], d.noted[i], d.users[i], d.facts[i],
    )  # fmt: skip


@inner
def view_of(views: Observation, i: int) -> Observation:
    return Observation(
        views.jobs[i], views.job_mask[i], views.heeded[i], views.machines[i], views.held[i],
        views.rack_held[i], views.rack[i],
        views.history_y[i], views.history_mask[i], views.history_t[i],
    )  # fmt: skip
