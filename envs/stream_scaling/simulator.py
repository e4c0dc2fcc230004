"""The minute of a streaming job: records flow from the sources, back-pressure to them.

Every minute has two passes. The first, from the sinks, finds how many records each task could
accept, as its buffers are bounded. The second, from the sources, processes them. So records pass
several tasks within a minute, and no buffer overflows.
"""

import math

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.queueing import (
    busy_share,
    departure_variability,
    next_variance,
    shared_busy_share,
    shared_slope,
    slope,
    split_variability,
)
from loadmaster.envs.stream_scaling.instances import InstanceClass, instance_class
from loadmaster.envs.stream_scaling.latency import record_latency
from loadmaster.envs.stream_scaling.noise import disturb_metrics
from loadmaster.envs.stream_scaling.restart import restart, update_checkpoint
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    CLASSES,
    DRIFT,
    FAULT_FACTOR,
    FAULT_FROM,
    FAULT_KIND,
    FAULT_TASK,
    FAULT_UNTIL,
    HORIZON,
    HOT_BUSY,
    IDLE,
    IN_RATE,
    LOST_INSTANCE,
    MINUTE,
    NOTHING,
    OUT_RATE,
    PARALLELISM,
    PENDING,
    QUEUED,
    UP_AT,
    JobTables,
    SimConstants,
    SimState,
)


@compiled
def advance(job: JobTables, constants: SimConstants, state: SimState, minutes: int) -> None:
    """Simulate so many minutes with the present plan, or until the episode ends."""
    for _ in range(minutes):
        if state.clock[MINUTE] < state.clock[HORIZON]:
            step_minute(job, constants, state)


@njit_internal
def step_minute(job: JobTables, constants: SimConstants, state: SimState) -> None:
    minute = state.clock[MINUTE]
    for fault in job.faults:
        if fault[FAULT_KIND] == LOST_INSTANCE and fault[FAULT_FROM] == minute:
            restart(job, constants, state)
    up = min(1.0, max(0.0, minute + 1.0 - state.times[UP_AT]))
    _find_room(job, constants, state, up)
    _process(job, constants, state, up)
    record_latency(job, constants, state, up)
    update_checkpoint(job, constants, state, up)
    disturb_metrics(job, constants, state)
    state.clock[MINUTE] += 1


@njit_internal
def _slowness(job: JobTables, task: int, minute: int) -> float:
    """Factor of the service time, which grows in a DRIFT and then stays."""
    factor = 1.0
    for fault in job.faults:
        if fault[FAULT_KIND] == DRIFT and fault[FAULT_TASK] == task:
            share = (minute - fault[FAULT_FROM]) / max(fault[FAULT_UNTIL] - fault[FAULT_FROM], 1.0)
            factor *= 1.0 + min(max(share, 0.0), 1.0) * (fault[FAULT_FACTOR] - 1.0)
    return factor


@njit_internal
def instance_speed(
    job: JobTables, constants: SimConstants, task: int, count: int, minute: int
) -> float:
    """Records that one instance can process in a minute."""
    lost = 0
    for fault in job.faults:
        inside = fault[FAULT_FROM] <= minute < fault[FAULT_UNTIL]
        if fault[FAULT_KIND] == LOST_INSTANCE and fault[FAULT_TASK] == task and inside:
            lost += 1
    crowding = 1.0 + constants.contention * (count - 1)
    present = max(count - lost, 0) / count
    speed: float = present / (job.service_min[task] * _slowness(job, task, minute) * crowding)
    return speed


@njit_internal
def _find_room(job: JobTables, constants: SimConstants, state: SimState, up: float) -> None:
    """From the sinks: `room`, the records that each task can accept in this minute."""
    minute = state.clock[MINUTE]
    for task in range(len(job.service_min) - 1, -1, -1):
        count = state.parallelism[task]
        capacity = count * instance_speed(job, constants, task, count, minute) * up
        reach = min(capacity, _outlet(job, state, task))
        room = math.inf
        if not constants.published:
            part = reach / capacity if capacity > 0 else 0.0
            for kind in range(CLASSES):
                own = instance_class(job, constants, task, count, kind)
                if own.size and own.share > 0:
                    free = own.size * constants.buffer - state.queue[kind, task]
                    done = own.size * capacity / count * part
                    room = min(room, (free + done) / own.share)
        state.room[task] = max(room, 0.0)
        state.reserved[task] = job.nominal[task]


@njit_internal
def _outlet(job: JobTables, state: SimState, task: int) -> float:
    """Most records the task may process, so that its children can accept what it emits.

    Parents divide a child's room by their usual rates; what one leaves, the next can use.
    """
    limit = math.inf
    for place in range(job.child_at[task], job.child_at[task + 1]):
        edge = job.child_edge[place]
        child, ratio = job.child[edge], job.ratio[edge]
        if ratio > 0 and state.room[child] < math.inf:
            usual = job.nominal[task] * ratio
            part = usual / state.reserved[child] if state.reserved[child] > usual else 1.0
            limit = min(limit, state.room[child] * part / ratio)
    return limit


@njit_internal
def _process(job: JobTables, constants: SimConstants, state: SimState, up: float) -> None:
    """From the sources: arrivals, processing and emission of every task."""
    minute, ring = state.clock[MINUTE], state.arrived.shape[1]
    now, before = minute % ring, (minute + ring - 1) % ring
    for task in range(len(job.service_min)):
        row = job.source[task]
        arrivals = state.load[row, minute] if row >= 0 else 0.0
        if row < 0:
            for edge in range(job.parent_at[task], job.parent_at[task + 1]):
                arrivals += state.inflow[edge]
        _gap_variability(job, state, task, arrivals)
        state.arrived[task, now] = state.arrived[task, before] + arrivals
        done = _process_task(job, constants, state, task, arrivals, up)
        state.departed[task] += done
        for place in range(job.child_at[task], job.child_at[task + 1]):
            edge = job.child_edge[place]
            child, flow = job.child[edge], done * job.ratio[edge]
            state.inflow[edge] = flow
            state.room[child] = max(state.room[child] - flow, 0.0)
            state.reserved[child] -= job.nominal[task] * job.ratio[edge]


@njit_internal
def _gap_variability(job: JobTables, state: SimState, task: int, arrivals: float) -> None:
    """`jitter` of the records that arrive: those of the parents' departures, by their flow."""
    if job.source[task] >= 0 or arrivals <= NOTHING:
        return
    mean = 0.0
    for edge in range(job.parent_at[task], job.parent_at[task + 1]):
        mean += state.inflow[edge] / arrivals * state.departure_jitter[job.parent[edge]]
    state.jitter[task] = mean


@njit_internal
def _process_task(
    job: JobTables, constants: SimConstants, state: SimState, task: int, arrivals: float, up: float
) -> float:
    """Process the records of a task, report its metrics, and return how many it processed."""
    minute, count = state.clock[MINUTE], state.parallelism[task]
    speed = instance_speed(job, constants, task, count, minute)
    limit = _outlet(job, state, task)
    wanted = 0.0
    for kind in range(CLASSES):
        own = instance_class(job, constants, task, count, kind)
        state.wanted[kind, task] = _wanted(
            job, constants, state, task, kind, own, arrivals, speed * up
        )
        wanted += state.wanted[kind, task]
    part = limit / wanted if wanted > limit else 1.0
    left, total, queued, hottest = limit - min(wanted, limit), 0.0, 0.0, 0.0
    for kind in range(CLASSES):
        own = instance_class(job, constants, task, count, kind)
        if own.size == 0:
            state.queue[kind, task] = state.variance[kind, task] = 0.0
            continue
        amount = state.queue[kind, task] + arrivals * own.share
        done = state.wanted[kind, task] * part
        # The buffers were full: an instance without a pause processes more than on average.
        over = amount - done - own.size * constants.buffer
        if not constants.published and job.source[task] < 0 and over > 0:
            more = min(over, max(own.size * speed * up - done, 0.0), left)
            done += more
            left -= more
        state.variance[kind, task] = _next_variance(
            job, constants, state, task, kind, own, arrivals * own.share, done, speed * up
        )
        state.queue[kind, task] = max(amount - done, 0.0)
        total += done
        queued += state.queue[kind, task]
        hottest = max(hottest, done / (own.size * speed) if speed > 0 else 0.0)
    capacity = count * speed
    busy = total / capacity if capacity > 0 else 0.0
    blocked = min((wanted - min(wanted, total)) / capacity if capacity > 0 else 0.0, 1.0 - busy)
    report = state.metrics[minute % len(state.metrics), task]
    report[PARALLELISM] = count
    report[BUSY], report[BLOCKED] = busy, blocked
    report[IDLE] = 1.0 - busy - blocked
    report[HOT_BUSY] = hottest
    report[IN_RATE], report[OUT_RATE] = arrivals, total
    report[QUEUED] = queued
    source = job.source[task] >= 0
    report[BUFFER_USE] = 0.0 if source else min(queued / (count * constants.buffer), 1.0)
    report[PENDING] = queued if source else 0.0
    state.departure_jitter[task] = departure_variability(
        min(busy, 1.0), state.jitter[task], job.variability[task]
    )
    return total


@njit_internal
def _wanted(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    task: int,
    kind: int,
    own: InstanceClass,
    arrivals: float,
    speed: float,
) -> float:
    """Records that a class of instances processes in this minute if nothing blocks it."""
    if own.size == 0 or speed <= 0:
        return 0.0
    amount: float = state.queue[kind, task] + arrivals * own.share
    capacity = own.size * speed
    if arrivals <= NOTHING:  # without arrivals a queue drains at full speed
        return min(amount, capacity)
    a = 0.5 * (_gaps(constants, state, task, own) + job.variability[task])
    if constants.shared_queue:
        return min(capacity * shared_busy_share(amount, capacity, own.size, a), amount)
    return min(capacity * busy_share(amount / own.size, speed, a), amount)


@njit_internal
def _gaps(constants: SimConstants, state: SimState, task: int, own: InstanceClass) -> float:
    """Squared coefficient of variation of the gaps between the records of one queue."""
    if constants.shared_queue:
        return state.jitter[task]
    return split_variability(state.jitter[task], own.share / own.size)


@njit_internal
def _next_variance(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    task: int,
    kind: int,
    own: InstanceClass,
    arrivals: float,
    done: float,
    speed: float,
) -> float:
    """Variance of the number in one queue of a class after this minute."""
    cs2, ca2 = job.variability[task], _gaps(constants, state, task, own)
    rho = min(done / max(own.size * speed, NOTHING), 1.0)
    if constants.shared_queue:
        queues = 1
        restoring = own.size * speed * shared_slope(rho, own.size, 0.5 * (ca2 + cs2))
    else:
        queues = own.size
        restoring = speed * slope(rho, 0.5 * (ca2 + cs2))
    before = state.variance[kind, task]
    return next_variance(before, arrivals / queues, done / queues, ca2, cs2, restoring)
