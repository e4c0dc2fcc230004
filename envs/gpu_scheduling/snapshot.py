"""A cluster as it stands, told from outside, in the simulator's tables: so a scheduler can be asked
about machines and jobs that nobody simulates.

Time 0 is now; whatever happened before has a negative time. A job's luck is unknown but for what
its speed tells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import kept_speed
from loadmaster.envs.gpu_scheduling.queues import enqueue, key_now
from loadmaster.envs.gpu_scheduling.simulator import start
from loadmaster.envs.gpu_scheduling.slowdown import speed_of
from loadmaster.envs.gpu_scheduling.state import SimState

# Columns of `Standing.places`.
JOB, MACHINE, COUNT = 0, 1, 2


class ClusterSnapshot(NamedTuple):
    """N jobs on M machines, R of them running in P places."""

    ran_s: NDArray[np.float64]  # (N,) time on machines before its present run
    running_s: NDArray[np.float64]  # (N,) since it was placed where it is; nan where it waits
    speed: NDArray[np.float64]  # (N,) as measured; nan: what the slowdown model says
    places: NDArray[
        np.int64
    ]  # (P, 3) instances of a job on a machine, the places of a job in a row
    running: NDArray[np.int64]  # (R,) as the desk lists them
    kept: NDArray[np.float64]  # (M,) of their speed by sharers when it was measured; nan: as of now


@compiled
def state_from_snapshot(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    desk: DecisionState,
    standing: ClusterSnapshot,
    ordering: int,
) -> None:
    """Take tables from before the first arrival to where everybody stands.

    `places` come in the order in which the jobs were placed: machines list the last one first.
    """
    clock, count = state.clock, len(standing.ran_s)
    state.times[at.SIGMA] = 0.0
    clock[at.NEXT_JOB] = count
    place, places = 0, standing.places
    while place < len(places):
        job, rows = places[place, JOB], 0
        while place < len(places) and places[place, JOB] == job:
            row = state.jobs[job, at.FIRST_ROW] + rows
            state.rows[row, at.MACHINE] = places[place, MACHINE]
            state.rows[row, at.COUNT] = places[place, COUNT]
            place += 1
            rows += 1
        state.times[at.NOW] = -standing.running_s[job]
        start(state, cluster, jobs, job, rows)
    state.times[at.NOW] = 0.0
    clock[at.STARTS] = 0  # they started before now
    for machine in range(len(standing.kept)):
        told, now = standing.kept[machine], kept_speed(state, cluster, machine)
        state.factors[machine, at.COLOCATION] = now if np.isnan(told) else told
    for place in range(clock[at.RUNNING]):
        _set_pace(state, cluster, jobs, state.event_heap[place], standing)
    for job in range(count):
        state.progress[job, at.RUN_S] = standing.ran_s[job]
        if state.jobs[job, at.ROWS_USED] == 0:
            state.key[job] = key_now(state, jobs, ordering, job)
            enqueue(state, cluster, jobs, job)
    for place in range(len(standing.running)):
        desk.running[place] = standing.running[place]
    desk.counts[on.LISTED] = len(standing.running)


@njit_internal
def _set_pace(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, standing: ClusterSnapshot
) -> None:
    """A job's speed; what it is beyond the model's is its luck, which stays with it."""
    expected, measured = speed_of(state, cluster, jobs, job), standing.speed[job]
    state.progress[job, at.RATE] = expected
    if np.isnan(measured):
        return
    state.progress[job, at.RATE] = measured
    first = state.jobs[job, at.FIRST_ROW]
    for row in range(first, first + state.jobs[job, at.ROWS_USED]):
        state.row_speed[row] *= measured / expected
