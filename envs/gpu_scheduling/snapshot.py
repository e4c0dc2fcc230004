"""Load the state of a real cluster into the simulator's tables.

Time 0 is the present; earlier times are negative. Runtime noise is unknown except for its effect on
measured speeds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import GIVEN
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import KEYED, RUNNING_JOBS, DecisionState
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.keys import key_now
from loadmaster.envs.gpu_scheduling.queues import enqueue
from loadmaster.envs.gpu_scheduling.simulator import start
from loadmaster.envs.gpu_scheduling.slowdown import current_colocation, gang_speed
from loadmaster.envs.gpu_scheduling.state import SimState

# Columns of `ClusterSnapshot.places`.
JOB, MACHINE, COUNT = 0, 1, 2


class ClusterSnapshot(NamedTuple):
    """N jobs, R of them running, with P allocations on M machines."""

    ran_s: NDArray[np.float64]  # (N,) time on machines before the current run
    running_s: NDArray[np.float64]  # (N,) duration of the current run; nan for pending jobs
    speed: NDArray[np.float64]  # (N,) measured speed; nan: that of the slowdown model
    places: NDArray[np.int64]  # (P, 3) allocations; those of a job are consecutive
    running: NDArray[np.int64]  # (R,) order of `DecisionState.running`
    kept: NDArray[np.float64]  # (M,) co-location factor when measured; nan: the present one
    key: NDArray[np.float64]  # (N,) of the last decision; nan: the present one
    correction: NDArray[np.float64]  # (N,) of a guide's key, as contained in `key`; nan: none yet


@compiled
def state_from_snapshot(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision: DecisionState,
    snapshot: ClusterSnapshot,
    ordering: int,
) -> None:
    """Load a snapshot into newly created tables.

    `places` must be in the order in which the jobs were placed: machines list the last one first.
    """
    clock, count = state.clock, len(snapshot.ran_s)
    state.times[cols.SIGMA] = 0.0
    clock[cols.NEXT_JOB] = count
    place, places = 0, snapshot.places
    while place < len(places):
        job, rows = places[place, JOB], 0
        while place < len(places) and places[place, JOB] == job:
            row = state.jobs[job, cols.FIRST_ROW] + rows
            state.rows[row, cols.MACHINE] = places[place, MACHINE]
            state.rows[row, cols.COUNT] = places[place, COUNT]
            place += 1
            rows += 1
        state.times[cols.NOW] = -snapshot.running_s[job]
        start(state, cluster, jobs, job, rows)
    state.times[cols.NOW] = 0.0
    clock[cols.STARTS] = 0  # no job started now
    for machine in range(len(snapshot.kept)):
        kept, now = snapshot.kept[machine], current_colocation(state, cluster, machine)
        state.factors[machine, cols.COLOCATION] = now if np.isnan(kept) else kept
    for place in range(clock[cols.RUNNING]):
        _set_speed(state, cluster, jobs, state.event_heap[place], snapshot)
    decision.counts[KEYED] = count
    for job in range(count):
        state.progress[job, cols.RUN_S] = snapshot.ran_s[job]
        _load_key(state, jobs, decision, snapshot, ordering, job)
        if state.jobs[job, cols.ROWS_USED] == 0:
            enqueue(state, cluster, jobs, job)
    for place in range(len(snapshot.running)):
        decision.running[place] = snapshot.running[place]
    decision.counts[RUNNING_JOBS] = len(snapshot.running)


@njit_internal
def _load_key(
    state: SimState,
    jobs: Jobs,
    decision: DecisionState,
    snapshot: ClusterSnapshot,
    ordering: int,
    job: int,
) -> None:
    """Set the key of a job, and the correction with which it waits or started.

    A pending job without correction is new, and so are those after it: their corrections are
    undone.
    """
    pending = state.jobs[job, cols.ROWS_USED] == 0
    key, correction = snapshot.key[job], snapshot.correction[job]
    if pending and np.isnan(correction):
        decision.counts[KEYED] = min(decision.counts[KEYED], job)
    if not np.isnan(correction):
        decision.start_priority[job] = correction
        if pending and job > decision.counts[KEYED]:
            key *= np.exp(correction)
    if not np.isnan(key):
        state.key[job] = key
    elif pending or ordering > GIVEN:
        state.key[job] = key_now(state, jobs, ordering, job)


@njit_internal
def _set_speed(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, snapshot: ClusterSnapshot
) -> None:
    """Set the speed of a job; a measured one scales its rows, as runtime noise does."""
    first, used = state.jobs[job, cols.FIRST_ROW], state.jobs[job, cols.ROWS_USED]
    expected = gang_speed(state, cluster, jobs, job, used, True, False)
    measured = snapshot.speed[job]
    state.progress[job, cols.RATE] = expected
    if np.isnan(measured):
        return
    state.progress[job, cols.RATE] = measured
    for row in range(first, first + used):
        state.row_speed[row] *= measured / expected
