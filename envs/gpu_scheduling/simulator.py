"""Compiled simulator: events between two scheduling passes.

At each event finished jobs leave first, then arrived jobs enter the queue, then a scheduling pass
follows (`scheduling_pass.py`). Speeds are updated after the pass: if the speed of a job changed,
its progress is saved and its end predicted again. Hidden speeds also change between events, unseen
by policies. No random number is drawn twice.
"""

import numpy as np

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import queues
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import GIVEN, LAS, MEASURED, PROCESS
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.hidden_speeds import draw_drift, measure_speeds
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.keys import first_key, key_now
from loadmaster.envs.gpu_scheduling.placement import update_shapes
from loadmaster.envs.gpu_scheduling.slowdown import current_colocation, gang_speed, runtime_noise
from loadmaster.envs.gpu_scheduling.state import NONE, SimState, add_finished, hides_speeds


@compiled
def advance(state: SimState, cluster: Cluster, jobs: Jobs, ordering: int) -> int:
    """Advance to the next event, before its scheduling pass; return the new status.

    The episode is DONE when no job runs or arrives, even if jobs that never fit are queued.
    """
    clock, times = state.clock, state.times
    update_speeds(state, cluster, jobs)
    if len(state.trace) > 0 and clock[cols.TRACE_ROWS] + len(state.rows) > len(state.trace):
        clock[cols.STATUS] = cols.GROW_TRACE  # the most that one event can record
        return cols.GROW_TRACE
    when = _next_event(state, jobs)
    if when == np.inf:
        clock[cols.STATUS] = cols.DONE
        return cols.DONE
    in_use = state.setup[cols.ALL_GPU] - clock[cols.FREE_GPU]
    began = times[cols.NOW]
    if times[cols.NEXT_DRIFT] <= when:
        when = _drift_to_event(state, cluster, jobs, when)
    times[cols.GPU_S] += in_use / WHOLE * (when - began)
    times[cols.NOW] = when
    while clock[cols.RUNNING] > 0 and state.finish_s[state.event_heap[0]] <= when:
        job = state.event_heap[0]
        stop(state, cluster, jobs, job)
        state.progress[job, cols.LEFT_S] = 0.0
        state.progress[job, cols.FINISHED_S] = when
        clock[cols.FINISHED] += 1
        if ordering >= LAS:  # the others predict nothing
            run_s, everyone = state.progress[job, cols.RUN_S], len(state.user_history) - 1
            add_finished(state.user_history, jobs.user[job], run_s)
            add_finished(state.user_history, everyone, run_s)
    while (
        clock[cols.NEXT_JOB] < len(jobs.arrival_s) and jobs.arrival_s[clock[cols.NEXT_JOB]] <= when
    ):
        job = clock[cols.NEXT_JOB]
        clock[cols.NEXT_JOB] += 1
        if ordering > GIVEN:
            state.key[job] = key_now(state, jobs, ordering, job)
        else:
            state.key[job] = first_key(jobs, ordering, job)
        queues.enqueue(state, cluster, jobs, job)
    if state.setup[cols.SPEED_SOURCE] in (MEASURED, PROCESS):
        measure_speeds(state, cluster, jobs)
    clock[cols.STATUS] = cols.DECIDE
    return cols.DECIDE


@njit_inline
def _next_event(state: SimState, jobs: Jobs) -> float:
    """Time of the next arrival, end or replanning; infinity if there is none."""
    clock, when = state.clock, np.inf
    if clock[cols.NEXT_JOB] < len(jobs.arrival_s):
        when = jobs.arrival_s[clock[cols.NEXT_JOB]]
    if clock[cols.RUNNING] > 0:
        when = min(when, state.finish_s[state.event_heap[0]])
        if clock[cols.QUEUED] > 0:
            when = min(when, state.times[cols.NEXT_REPLAN])
    return when


@njit_internal
def _drift_to_event(state: SimState, cluster: Cluster, jobs: Jobs, when: float) -> float:
    """Let hidden speeds drift until the next event; return its time, which depends on them."""
    times = state.times
    while times[cols.NEXT_DRIFT] <= when:
        times[cols.NOW] = times[cols.NEXT_DRIFT]
        draw_drift(state, cluster)
        times[cols.NEXT_DRIFT] += cols.DRIFT_EVERY_S
        for machine in range(len(state.machines)):
            row = state.machines[machine, cols.FIRST]
            while row != NONE:
                _update_speed(state, cluster, jobs, state.rows[row, cols.JOB])
                row = state.rows[row, cols.NEXT]
        when = _next_event(state, jobs)
    return when


@njit_internal
def start(state: SimState, cluster: Cluster, jobs: Jobs, job: int, rows: int) -> None:
    """Start a job on the machines in its first `rows` rows."""
    clock, now = state.clock, state.times[cols.NOW]
    first = state.jobs[job, cols.FIRST_ROW]
    state.jobs[job, cols.ROWS_USED] = rows
    rate = 0.0
    for row in range(first, first + rows):
        machine, count = state.rows[row, cols.MACHINE], state.rows[row, cols.COUNT]
        state.row_speed[row] = cluster.speed[machine] * runtime_noise(
            state.times[cols.SIGMA], state.setup[cols.SEED], job, machine
        )
        if hides_speeds(state):
            kind = cols.CLASS_FACTOR + state.jobs[job, cols.CLASS]
            state.row_speed[row] *= state.factors[machine, kind]
        following = state.machines[machine, cols.FIRST]
        state.rows[row, cols.NEXT], state.rows[row, cols.BEFORE] = following, NONE
        if following != NONE:
            state.rows[following, cols.BEFORE] = row
        state.machines[machine, cols.FIRST] = row
        _allocate(state, cluster, jobs, job, machine, count)
        rate += cluster.price_per_s[machine] * count * jobs.gpu[job] / WHOLE
    state.progress[job, cols.FEE_RATE] = rate
    state.progress[job, cols.PLACED_S] = now
    state.progress[job, cols.PLACED_LEFT_S] = state.progress[job, cols.LEFT_S]
    state.progress[job, cols.SINCE_S] = now
    state.progress[job, cols.RATE] = 0.0
    if np.isnan(state.progress[job, cols.FIRST_START_S]):
        state.progress[job, cols.FIRST_START_S] = now
    state.jobs[clock[cols.STARTS], cols.STARTED] = job
    clock[cols.STARTS] += 1
    # `update_speeds` predicts the end after the pass.
    state.finish_s[job] = np.inf
    queues.heap_push(queues.event_heap(state, jobs), 0, clock[cols.RUNNING], job)
    clock[cols.RUNNING] += 1


@njit_internal
def stop(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Remove a job from its machines and save its progress."""
    clock, now = state.clock, state.times[cols.NOW]
    first = state.jobs[job, cols.FIRST_ROW]
    for row in range(first, first + state.jobs[job, cols.ROWS_USED]):
        machine, count = state.rows[row, cols.MACHINE], state.rows[row, cols.COUNT]
        before, following = state.rows[row, cols.BEFORE], state.rows[row, cols.NEXT]
        if before == NONE:
            state.machines[machine, cols.FIRST] = following
        else:
            state.rows[before, cols.NEXT] = following
        if following != NONE:
            state.rows[following, cols.BEFORE] = before
        _allocate(state, cluster, jobs, job, machine, -count)
        if len(state.trace) > 0:
            since, traced = state.progress[job, cols.PLACED_S], clock[cols.TRACE_ROWS]
            state.trace[traced] = float(job), float(machine), float(count), since, now
            clock[cols.TRACE_ROWS] = traced + 1
    state.jobs[job, cols.ROWS_USED] = 0
    _save_progress(state, job)
    run_s = now - state.progress[job, cols.PLACED_S]
    state.progress[job, cols.RUN_S] += run_s
    state.progress[job, cols.FEE] += state.progress[job, cols.FEE_RATE] * run_s
    state.progress[job, cols.RATE] = 0.0
    state.progress[job, cols.FEE_RATE] = 0.0
    queues.heap_remove(queues.event_heap(state, jobs), 0, clock[cols.RUNNING], job)
    clock[cols.RUNNING] -= 1
    state.finish_s[job] = np.inf


@njit_internal
def _save_progress(state: SimState, job: int) -> None:
    now = state.times[cols.NOW]
    done = (now - state.progress[job, cols.SINCE_S]) * state.progress[job, cols.RATE]
    state.progress[job, cols.LEFT_S] = max(0.0, state.progress[job, cols.LEFT_S] - done)
    state.progress[job, cols.SINCE_S] = now


@njit_internal
def _allocate(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, machine: int, count: int
) -> None:
    """Allocate `count` instances on a machine; release them if the count is negative."""
    gpu, cpu = count * jobs.gpu[job], count * jobs.cpu[job]
    state.free[machine, cols.GPU] -= gpu
    state.free[machine, cols.CPU] -= cpu
    update_shapes(state, cluster, machine, gpu, cpu)
    state.clock[cols.FREE_GPU] -= gpu
    state.clock[cols.FREE_CPU] -= cpu
    state.user_use[jobs.user[job], cols.GPU] += gpu
    state.user_use[jobs.user[job], cols.CPU] += cpu
    fraction = jobs.gpu[job] % WHOLE
    state.machines[machine, cols.WHOLE_GPUS] += count * (jobs.gpu[job] // WHOLE)
    if fraction > 0:
        state.machines[machine, cols.SHARERS] += count
        state.machines[machine, cols.SHARED] += count * fraction
        if hides_speeds(state):
            state.factors[machine, cols.CLASS_SHARERS + state.jobs[job, cols.CLASS]] += count
    if state.machines[machine, cols.IS_CHANGED] == 0:
        state.machines[machine, cols.IS_CHANGED] = 1
        state.machines[state.clock[cols.CHANGES], cols.CHANGED] = machine
        state.clock[cols.CHANGES] += 1


@njit_inline
def update_speeds(state: SimState, cluster: Cluster, jobs: Jobs) -> None:
    """Update the speeds of jobs that started or whose neighbours changed."""
    clock = state.clock
    for change in range(clock[cols.CHANGES]):
        machine = state.machines[change, cols.CHANGED]
        state.machines[machine, cols.IS_CHANGED] = 0
        factor = current_colocation(state, cluster, machine)
        # Hidden speeds also depend on the classes of the sharers.
        if factor != state.factors[machine, cols.COLOCATION] or hides_speeds(state):
            state.factors[machine, cols.COLOCATION] = factor
        else:
            state.machines[change, cols.CHANGED] = NONE  # speeds are unaffected
    for place in range(clock[cols.STARTS]):
        job = state.jobs[place, cols.STARTED]
        if state.jobs[job, cols.ROWS_USED] > 0:  # else replanning stopped it again
            _update_speed(state, cluster, jobs, job)
    for change in range(clock[cols.CHANGES]):
        machine = state.machines[change, cols.CHANGED]
        row = NONE if machine == NONE else state.machines[machine, cols.FIRST]
        while row != NONE:
            job = state.rows[row, cols.JOB]
            if jobs.gpu[job] % WHOLE != 0:
                _update_speed(state, cluster, jobs, job)
            row = state.rows[row, cols.NEXT]
    clock[cols.CHANGES] = 0
    clock[cols.STARTS] = 0


@njit_internal
def _update_speed(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """If the speed of a job changed, save its progress and predict its end."""
    used = state.jobs[job, cols.ROWS_USED]
    rate = gang_speed(state, cluster, jobs, job, used, True, False)
    if rate == state.progress[job, cols.RATE]:
        return
    _save_progress(state, job)
    state.progress[job, cols.RATE] = rate
    state.finish_s[job] = state.times[cols.NOW] + state.progress[job, cols.LEFT_S] / rate
    queues.heap_update(queues.event_heap(state, jobs), 0, state.clock[cols.RUNNING], job)
