"""The compiled simulator: what happens between two decision epochs.

At each event, jobs that are done leave first, then those that have arrived enter the queue, then
an epoch is held (`epoch.py`). Speeds are settled once an epoch is over: a job whose speed changed
has its progress written down and its end planned anew; nothing is ever drawn again.
"""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import queues as heaps
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.queues import enqueue, first_key
from loadmaster.envs.gpu_scheduling.shapes import recount
from loadmaster.envs.gpu_scheduling.slowdown import colocation_factor, luck, speed_of
from loadmaster.envs.gpu_scheduling.state import SimState


@compiled
def advance(state: SimState, cluster: Cluster, jobs: Jobs, ordering: int) -> int:
    """Move on to the next event, ready for its epoch; the new status.

    A job that never fits does not keep the episode going: with nothing ahead it is over.
    """
    clock, times = state.clock, state.times
    settle(state, cluster, jobs)
    if len(state.trace) > 0 and clock[at.TRACE_ROWS] + len(state.rows) > len(state.trace):
        clock[at.STATUS] = at.GROW_TRACE  # an event and its epoch record no more than that
        return at.GROW_TRACE
    when = np.inf
    if clock[at.NEXT_JOB] < len(jobs.arrival_s):
        when = jobs.arrival_s[clock[at.NEXT_JOB]]
    if clock[at.RUNNING] > 0:
        when = min(when, state.finish_s[state.event_heap[0]])
        if clock[at.QUEUED] > 0:
            when = min(when, times[at.NEXT_REPLAN])
    if when == np.inf:
        clock[at.STATUS] = at.DONE
        return at.DONE
    in_use = state.setup[at.ALL_GPU] - clock[at.FREE_GPU]
    times[at.GPU_S] += in_use / WHOLE * (when - times[at.NOW])
    times[at.NOW] = when
    while clock[at.RUNNING] > 0 and state.finish_s[state.event_heap[0]] <= when:
        job = state.event_heap[0]
        stop(state, cluster, jobs, job)
        state.progress[job, at.LEFT_S] = 0.0
        state.progress[job, at.FINISHED_S] = when
        clock[at.FINISHED] += 1
    while clock[at.NEXT_JOB] < len(jobs.arrival_s) and jobs.arrival_s[clock[at.NEXT_JOB]] <= when:
        job = clock[at.NEXT_JOB]
        clock[at.NEXT_JOB] += 1
        state.key[job] = first_key(jobs, ordering, job)
        enqueue(state, cluster, jobs, job)
    clock[at.STATUS] = at.DECIDE
    return at.DECIDE


@njit_internal
def start(state: SimState, cluster: Cluster, jobs: Jobs, job: int, rows: int) -> None:
    """Put a job on the machines that its first `rows` rows name."""
    clock, now = state.clock, state.times[at.NOW]
    first = state.jobs[job, at.FIRST_ROW]
    state.jobs[job, at.ROWS_USED] = rows
    rate = 0.0
    for row in range(first, first + rows):
        machine, count = state.rows[row, at.MACHINE], state.rows[row, at.COUNT]
        state.row_speed[row] = cluster.speed[machine] * luck(
            state.times[at.SIGMA], state.setup[at.SEED], job, machine
        )
        following = state.machines[machine, at.FIRST]
        state.rows[row, at.NEXT], state.rows[row, at.BEFORE] = following, at.NONE
        if following != at.NONE:
            state.rows[following, at.BEFORE] = row
        state.machines[machine, at.FIRST] = row
        occupy(state, cluster, jobs, job, machine, count)
        rate += cluster.price_per_s[machine] * count * jobs.gpu[job] / WHOLE
    state.progress[job, at.FEE_RATE] = rate
    state.progress[job, at.PLACED_S] = now
    state.progress[job, at.PLACED_LEFT_S] = state.progress[job, at.LEFT_S]
    state.progress[job, at.SINCE_S] = now
    state.progress[job, at.RATE] = 0.0
    if np.isnan(state.progress[job, at.FIRST_START_S]):
        state.progress[job, at.FIRST_START_S] = now
    state.jobs[clock[at.STARTS], at.STARTED] = job
    clock[at.STARTS] += 1
    # Its end is planned once the epoch is over; until then it is the last of all.
    state.finish_s[job] = np.inf
    heaps.push(
        state.event_heap, state.place, state.finish_s, jobs.job_id, 0, clock[at.RUNNING], job
    )
    clock[at.RUNNING] += 1


@njit_internal
def stop(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Take a job off its machines; what it has done so far is written down."""
    clock, now = state.clock, state.times[at.NOW]
    first = state.jobs[job, at.FIRST_ROW]
    for row in range(first, first + state.jobs[job, at.ROWS_USED]):
        machine, count = state.rows[row, at.MACHINE], state.rows[row, at.COUNT]
        before, following = state.rows[row, at.BEFORE], state.rows[row, at.NEXT]
        if before == at.NONE:
            state.machines[machine, at.FIRST] = following
        else:
            state.rows[before, at.NEXT] = following
        if following != at.NONE:
            state.rows[following, at.BEFORE] = before
        occupy(state, cluster, jobs, job, machine, -count)
        if len(state.trace) > 0:
            record(state, job, machine, count)
    state.jobs[job, at.ROWS_USED] = 0
    state.progress[job, at.LEFT_S] = max(
        0.0,
        state.progress[job, at.LEFT_S]
        - (now - state.progress[job, at.SINCE_S]) * state.progress[job, at.RATE],
    )
    state.progress[job, at.SINCE_S] = now
    state.progress[job, at.RUN_S] += now - state.progress[job, at.PLACED_S]
    state.progress[job, at.FEE] += state.progress[job, at.FEE_RATE] * (
        now - state.progress[job, at.PLACED_S]
    )
    state.progress[job, at.RATE] = 0.0
    state.progress[job, at.FEE_RATE] = 0.0
    heaps.take_out(
        state.event_heap, state.place, state.finish_s, jobs.job_id, 0, clock[at.RUNNING], job
    )
    clock[at.RUNNING] -= 1
    state.finish_s[job] = np.inf


@njit_internal
def occupy(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, machine: int, count: int
) -> None:
    """Book `count` instances on a machine, or off it where the count is negative."""
    gpu, cpu = count * jobs.gpu[job], count * jobs.cpu[job]
    state.free[machine, at.GPU] -= gpu
    state.free[machine, at.CPU] -= cpu
    recount(state, cluster, machine, gpu, cpu)
    state.clock[at.FREE_GPU] -= gpu
    state.clock[at.FREE_CPU] -= cpu
    state.user_use[jobs.user[job], at.GPU] += gpu
    state.user_use[jobs.user[job], at.CPU] += cpu
    fraction = jobs.gpu[job] % WHOLE
    state.machines[machine, at.WHOLE_GPUS] += count * (jobs.gpu[job] // WHOLE)
    if fraction > 0:
        state.machines[machine, at.SHARERS] += count
        state.machines[machine, at.SHARED] += count * fraction
    if state.machines[machine, at.IS_CHANGED] == 0:
        state.machines[machine, at.IS_CHANGED] = 1
        state.machines[state.clock[at.CHANGES], at.CHANGED] = machine
        state.clock[at.CHANGES] += 1


@njit_inline
def record(state: SimState, job: int, machine: int, count: int) -> None:
    row = state.clock[at.TRACE_ROWS]
    state.trace[row, at.TRACE_JOB] = job
    state.trace[row, at.TRACE_MACHINE] = machine
    state.trace[row, at.TRACE_COUNT] = count
    state.trace[row, at.TRACE_START] = state.progress[job, at.PLACED_S]
    state.trace[row, at.TRACE_END] = state.times[at.NOW]
    state.clock[at.TRACE_ROWS] = row + 1


@njit_inline
def settle(state: SimState, cluster: Cluster, jobs: Jobs) -> None:
    """Bring all speeds up to date after jobs came and went."""
    clock = state.clock
    for change in range(clock[at.CHANGES]):
        machine = state.machines[change, at.CHANGED]
        state.machines[machine, at.IS_CHANGED] = 0
        if state.setup[at.INTERFERENCE] == 0:
            continue
        factor = colocation_factor(
            state.machines[machine, at.WHOLE_GPUS],
            state.machines[machine, at.SHARERS],
            state.machines[machine, at.SHARED],
            cluster.gpu_capacity[machine],
            state.factors[machine, at.SEVERITY],
        )
        if factor != state.factors[machine, at.COLOCATION]:
            state.factors[machine, at.COLOCATION] = factor
        else:
            state.machines[change, at.CHANGED] = at.NONE  # the neighbours notice nothing
    for place in range(clock[at.STARTS]):
        if (
            state.jobs[state.jobs[place, at.STARTED], at.ROWS_USED] > 0
        ):  # else a replanning took it off again
            pace(state, cluster, jobs, state.jobs[place, at.STARTED])
    if state.setup[at.INTERFERENCE] == 1:
        for change in range(clock[at.CHANGES]):
            if state.machines[change, at.CHANGED] == at.NONE:
                continue
            row = state.machines[state.machines[change, at.CHANGED], at.FIRST]
            while row != at.NONE:
                if jobs.gpu[state.rows[row, at.JOB]] % WHOLE != 0:
                    pace(state, cluster, jobs, state.rows[row, at.JOB])
                row = state.rows[row, at.NEXT]
    clock[at.CHANGES] = 0
    clock[at.STARTS] = 0


@njit_internal
def pace(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Write down a job's progress and plan its end, if its speed has changed."""
    rate = speed_of(state, cluster, jobs, job)
    if rate == state.progress[job, at.RATE]:
        return
    now = state.times[at.NOW]
    done = (now - state.progress[job, at.SINCE_S]) * state.progress[job, at.RATE]
    state.progress[job, at.LEFT_S] = max(0.0, state.progress[job, at.LEFT_S] - done)
    state.progress[job, at.SINCE_S] = now
    state.progress[job, at.RATE] = rate
    state.finish_s[job] = now + state.progress[job, at.LEFT_S] / rate
    heaps.move(
        state.event_heap,
        state.place,
        state.finish_s,
        jobs.job_id,
        0,
        state.clock[at.RUNNING],
        job,
    )
