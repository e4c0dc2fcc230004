"""Latency from source to sink, by the curves of arrivals and departures of every task.

Records pass a task in order, so the one that leaves now arrived when the curve of arrivals had the
value that the curve of departures has now. Its age is the time it spent in the task, and the age it
had when it left the parent. A job that is stuck emits nothing, but the record that would be next
grows older, and so does the latency.
"""

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.stream_scaling.instances import instance_class
from loadmaster.envs.stream_scaling.state import (
    BUSY,
    CLASSES,
    INSTANCES,
    LAG,
    LATENCY,
    LATENCY_VARIANCE,
    MINUTE,
    NOTHING,
    OUT_RATE,
    OUTPUT,
    PENDING,
    SLOTS,
    SUM_BUSY_SHARE,
    SUM_LATENCY,
    SUM_MINUTES,
    UP,
    UTILISATION,
    Floats,
    JobTables,
    SimConstants,
    SimState,
)


@njit_internal
def record_latency(job: JobTables, constants: SimConstants, state: SimState, up: float) -> None:
    """Record ages at every task, and the job's result of this minute."""
    minute = state.clock[MINUTE]
    place, tasks = minute % state.arrived.shape[1], len(job.service_min)
    for task in range(tasks):
        _record_age(job, constants, state, task)
    report = state.metrics[minute % len(state.metrics)]
    output = 0.0
    for task in range(tasks):
        if job.weight[task] > 0:
            output += report[task, OUT_RATE]
    latency = square = busy = lag = 0.0
    instances = 0
    for task in range(tasks):
        count = state.parallelism[task]
        instances += count
        busy += report[task, BUSY] * count
        lag += report[task, PENDING]
        if job.weight[task] > 0:
            share = report[task, OUT_RATE] / output if output > NOTHING else job.weight[task]
            mean = state.age[task, place]
            latency += share * mean
            square += share * (state.age_variance[task, place] + mean * mean)
    row = state.outcome[minute]
    row[LATENCY], row[LATENCY_VARIANCE] = latency, max(square - latency * latency, 0.0)
    row[OUTPUT], row[UTILISATION] = output, busy / instances
    row[INSTANCES], row[SLOTS] = instances, _slots(job, state)
    row[LAG], row[UP] = lag, up
    state.sums[SUM_LATENCY] += latency
    state.sums[SUM_BUSY_SHARE] += row[UTILISATION]
    state.sums[SUM_MINUTES] += 1


@njit_internal
def _slots(job: JobTables, state: SimState) -> int:
    """Slots of the job: in each sharing group as many as the largest task has instances."""
    total = 0
    for group in range(len(job.service_min)):
        most = 0
        for task in range(len(job.service_min)):
            if job.slot_group[task] == group:
                most = max(most, state.parallelism[task])
        if not most:
            break  # groups are numbered without gaps
        total += most
    return total


@njit_internal
def _record_age(job: JobTables, constants: SimConstants, state: SimState, task: int) -> None:
    minute, ring = state.clock[MINUTE], state.arrived.shape[1]
    place = minute % ring
    spent = _time_in_task(job, state, task)
    mean, square = 0.0, 0.0
    inflow, nominal = 0.0, job.nominal[task]
    for edge in range(job.parent_at[task], job.parent_at[task + 1]):
        inflow += state.inflow[edge]
    for edge in range(job.parent_at[task], job.parent_at[task + 1]):
        parent = job.parent[edge]
        usual = job.nominal[parent] * job.ratio[edge] / nominal if nominal > 0 else 0.0
        share = state.inflow[edge] / inflow if inflow > NOTHING else usual
        before = _at(state.age, parent, minute, spent)
        mean += share * before
        square += share * (_at(state.age_variance, parent, minute, spent) + before * before)
    state.age[task, place] = spent + mean
    state.age_variance[task, place] = _sojourn_variance(job, constants, state, task) + max(
        square - mean * mean, 0.0
    )


@njit_internal
def _time_in_task(job: JobTables, state: SimState, task: int) -> float:
    """Minutes that the record which leaves at the end of this minute was in the task."""
    minute, ring = state.clock[MINUTE], state.arrived.shape[1]
    done, place = state.departed[task], minute % ring
    if state.arrived[task, place] - done <= NOTHING:
        return float(job.service_min[task])
    row = job.source[task]
    if row >= 0:
        low, high = 0, minute + 1  # offered[low] <= done < offered[high]
        while high - low > 1:
            middle = (low + high) // 2
            if state.offered[row, middle] <= done:
                low = middle
            else:
                high = middle
        rise = state.offered[row, low + 1] - state.offered[row, low]
        ago: float = minute + 1.0 - low - (done - state.offered[row, low]) / max(rise, NOTHING)
        return ago
    for back in range(min(minute, ring - 1)):
        after = state.arrived[task, (minute - back) % ring]
        before = state.arrived[task, (minute - back - 1) % ring]
        if before <= done:
            return float(back + (after - done) / max(after - before, NOTHING))
    return float(min(minute + 1, ring - 1))


@njit_internal
def _at(table: Floats, task: int, minute: int, back: float) -> float:
    """Value of a table over minutes so many minutes before the end of this one."""
    ring = table.shape[1]
    back = min(back, float(min(minute, ring - 2)))
    whole = int(back)
    late: float = table[task, (minute - whole) % ring]
    early: float = table[task, (minute - whole - 1) % ring]
    return late if whole >= minute else late + (back - whole) * (early - late)


@njit_internal
def _sojourn_variance(job: JobTables, constants: SimConstants, state: SimState, task: int) -> float:
    """Variance of the time in the task: of the number ahead, and of their service times."""
    count, records, total = state.parallelism[task], 0.0, 0.0
    for kind in range(CLASSES):
        own = instance_class(job, constants, task, count, kind).size
        if own == 0:
            continue
        servers = own if constants.shared_queue else 1
        service = job.service_min[task] / servers
        ahead = state.queue[kind, task] / (1 if constants.shared_queue else own)
        spread = state.variance[kind, task] + job.variability[task] * (ahead + 1.0)
        weight = state.queue[kind, task] + NOTHING
        total += weight * service * service * spread
        records += weight
    return total / records if records > 0 else 0.0
