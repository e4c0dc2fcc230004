"""An interval of 15 seconds: requests arrive at pods, are processed, wait, time out or are lost.

Requests go to the pods in proportion to their CPU, so all have the same load
rho = lambda c / sum(C). Below 1 the queue is stationary; beyond, a backlog grows by what exceeds
the capacity, and waits q / (n mu). Requests are whole numbers, so that those that arrived are
exactly those that were served, timed out, were lost, or are still there.
"""

import math

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.pod_scaling.cluster import reconcile, restart_after_oom, sum_pods
from loadmaster.envs.pod_scaling.latency import level_of_time, mixed_time, write_row
from loadmaster.envs.pod_scaling.rewards import slo_preservation, step_reward
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, STEP_S
from loadmaster.envs.pod_scaling.state import (
    ARRIVED,
    BASE_S,
    CARRY,
    CPU_S,
    DISK_MB,
    END_CORES,
    END_PODS,
    HELD,
    HELD_CORES,
    HELD_MIB,
    HORIZON,
    IO_S,
    LEAST_MIB,
    LOST,
    MEMORY_MIB,
    NETWORK_MB,
    NOW,
    OF_CORES,
    OF_READY,
    OVER,
    P99_S,
    PODS,
    PRESERVED,
    QUEUED,
    R_DISK_MB_S,
    R_LIMIT_CORES,
    R_LIMIT_MIB,
    R_NETWORK_MB_S,
    R_OOMS,
    R_PEAK_MIB,
    R_PODS,
    R_READY,
    R_REQUESTS,
    R_SEEN,
    R_USED_CORES,
    R_USED_MIB,
    READY,
    READY_CORES,
    REQUEST_MIB,
    REWARD,
    ROW_COLUMNS,
    RUNNING,
    S_ARRIVED,
    S_CORES,
    S_CPU_USE,
    S_LOST,
    S_MEMORY_USE,
    S_MIB,
    S_PODS,
    S_SERVED,
    S_TIMED_OUT,
    S_VIOLATED,
    SERVED,
    SETTLED,
    SLO,
    SLO_S,
    START_S,
    STEP_COLUMNS,
    SUM_REWARD,
    SUM_STEPS,
    TIMED_OUT,
    WAITING,
    WEIGHT,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.envs.queueing import shared_number


@compiled
def advance(constants: SimConstants, state: SimState, intervals: int) -> None:
    """Simulate so many intervals with the present plan, or until the episode ends."""
    for _ in range(intervals):
        if state.clock[NOW] < state.clock[HORIZON]:
            step_interval(constants, state)


@njit_internal
def step_interval(constants: SimConstants, state: SimState) -> None:
    """Simulate one interval; the last one of a control step also has its outcome."""
    now = state.clock[NOW]
    step, place = now // STEP_INTERVALS, now % STEP_INTERVALS
    app = state.apps[state.app_of[step]]
    if state.clock[SETTLED] == 0:
        reconcile(constants, state, app[START_S])
    failed = 0
    if state.totals[LEAST_MIB] < app[MEMORY_MIB]:  # such a pod never gets ready
        failed = restart_after_oom(constants, state, app[START_S], app[MEMORY_MIB])
        sum_pods(state, float(now * INTERVAL_S))
    rho, cores = _process(constants, state, app, step, place)
    state.reports[now, R_OOMS] = failed
    _use_memory(constants, state, app, rho, cores)
    if place == STEP_INTERVALS - 1:
        _finish_step(constants, state, app, step)
    state.clock[NOW] = now + 1


@njit_internal
def most_load(work_s: float, cores: float) -> float:
    """The load that a stationary queue is taken at, at most.

    At a load of 1 a queue does not reach a stationary state. In a time t, from empty, it grows to
    about sqrt(4 t / (pi s)) requests, those of a stationary queue with this load.
    """
    return 1.0 - 1.0 / (1.0 + math.sqrt(4.0 * STEP_S * cores / (math.pi * work_s)))


@njit_inline
def _process(
    constants: SimConstants, state: SimState, app: Floats, step: int, place: int
) -> tuple[float, float]:
    """Arrivals, processing and timeouts; returns the load and the cores of a ready pod."""
    totals, requests, sums = state.totals, state.requests, state.step
    now, work_s = state.clock[NOW], app[CPU_S]
    arrivals = state.arrivals[now]
    rate = totals[READY_CORES] / work_s  # n mu
    before, ready = requests[QUEUED], totals[READY]
    end_rate = totals[END_CORES] / work_s
    can = rate * INTERVAL_S + totals[CARRY]
    done = min(before + arrivals, int(can))
    left = before + arrivals - done
    totals[CARRY] = can - int(can) if left > 0 else 0.0
    late = max(left - _longest_queue(constants, state, end_rate), 0) if left > 0 else 0
    left -= late
    cores, rho, wait_s = 1.0, 0.0, constants.timeout_s
    if ready > 0:
        cores = totals[READY_CORES] / ready
        rho = min(state.rates[step] / rate, most_load(work_s, cores))
        wait_s = min(0.5 * (before + left) / end_rate, constants.timeout_s)
    over = _describe_latency(constants, state, app, step, place, cores, rho, wait_s)
    running = 0
    if ready > 0:  # in I/O, by Little's law, and at the CPU
        in_flight = state.rates[step] * app[IO_S] + ready * requests_at_cpu(rho, cores)
        running = min(int(in_flight + 0.5), done + requests[RUNNING])
    served = done + requests[RUNNING] - running
    requests[ARRIVED] += arrivals
    requests[SERVED] += served
    requests[TIMED_OUT] += late
    requests[QUEUED], requests[RUNNING] = left, running
    sums[S_ARRIVED] += arrivals
    sums[S_SERVED] += served
    sums[S_TIMED_OUT] += late
    sums[S_VIOLATED] += done * over + late
    used = done * work_s / INTERVAL_S
    if totals[HELD_CORES] > 0:
        sums[S_CPU_USE] += used / totals[HELD_CORES]
    sums[S_CORES] += totals[HELD_CORES]
    sums[S_MIB] += totals[HELD_MIB]
    sums[S_PODS] += totals[HELD]
    report = state.reports[now]
    report[R_PODS], report[R_READY] = state.clock[PODS], totals[END_PODS]
    report[R_USED_CORES], report[R_LIMIT_CORES] = used, totals[HELD_CORES]
    report[R_REQUESTS] = arrivals
    report[R_DISK_MB_S] = done * app[DISK_MB] / INTERVAL_S
    report[R_NETWORK_MB_S] = done * app[NETWORK_MB] / INTERVAL_S
    report[R_SEEN] = 1.0 - state.missing[now]
    return rho, cores


@njit_inline
def _describe_latency(
    constants: SimConstants,
    state: SimState,
    app: Floats,
    step: int,
    place: int,
    cores: float,
    rho: float,
    wait_s: float,
) -> float:
    """Write the distribution of the latency; returns the share of the requests above the SLO.

    Within a step the load is the same, so an interval with the same pods and wait copies the last.
    """
    totals, row = state.totals, state.rows[place]
    base_s, weight = app[IO_S] + wait_s, float(state.arrivals[state.clock[NOW]])
    last = state.rows[max(place - 1, 0)]
    if (
        place > 0
        and last[BASE_S] == base_s
        and last[OF_READY] == totals[READY]
        and last[OF_CORES] == totals[READY_CORES]
    ):
        for column in range(ROW_COLUMNS):
            row[column] = last[column]
        row[WEIGHT] = weight
        return row[OVER]
    ready, phase = totals[READY], state.phases[step]
    write_row(constants, row, base_s, app[CPU_S], cores, ready, rho, phase, weight)
    row[OF_READY], row[OF_CORES] = totals[READY], totals[READY_CORES]
    row[OVER] = math.exp(-level_of_time(constants, row, app[SLO_S]))
    return row[OVER]


@njit_internal
def _longest_queue(constants: SimConstants, state: SimState, rate: float) -> int:
    """The backlog whose last request is served before its timeout.

    Without a ready pod, the requests that arrived since a timeout ago.
    """
    if rate > 0:
        return int(constants.timeout_s * rate)
    recent, now = 0, state.clock[NOW]
    for back in range(math.ceil(constants.timeout_s / INTERVAL_S)):
        if back <= now:
            recent += state.arrivals[now - back]
    return recent


@njit_internal
def requests_at_cpu(rho: float, cores: float) -> float:
    """Mean number of requests at the CPU of a pod."""
    if cores <= 1.0:
        return rho / (1.0 - rho)
    return shared_number(rho, cores, 1.0)


@njit_internal
def memory_needs(
    constants: SimConstants,
    app: Floats,
    rate: float,
    rho: float,
    cores: float,
    queued: float,
    level: float,
) -> tuple[float, float]:
    """Mean and highest MiB of a pod with so many requests a second, and so many that wait.

    The most requests at the CPU at once have a geometric tail, P(N > n) = q^n with the mean of the
    stationary queue, so they are their level divided by -ln q.
    """
    in_io, at_cpu = rate * app[IO_S], requests_at_cpu(rho, cores)
    most = in_io + 2.0 * math.sqrt(in_io) + queued
    if at_cpu > 0:
        most += max(at_cpu, level / math.log1p(1.0 / at_cpu))
    mean = min(in_io + at_cpu + queued, constants.concurrency)
    return (
        app[MEMORY_MIB] + app[REQUEST_MIB] * mean,
        app[MEMORY_MIB] + app[REQUEST_MIB] * min(most, constants.concurrency),
    )


@njit_inline
def _use_memory(
    constants: SimConstants, state: SimState, app: Floats, rho: float, cores: float
) -> None:
    """Memory of the requests in flight; pods that need more than their limit restart."""
    totals, requests, sums, now = state.totals, state.requests, state.step, state.clock[NOW]
    ready, lost, restarts = totals[END_PODS], 0, 0
    mean_mib, need_mib = app[MEMORY_MIB], app[MEMORY_MIB]
    if ready > 0:
        rate, queued = state.rates[now // STEP_INTERVALS] / ready, requests[QUEUED] / ready
        mean_mib, need_mib = memory_needs(
            constants, app, rate, rho, cores, queued, state.peaks[now]
        )
        if need_mib > totals[LEAST_MIB]:
            restarts = restart_after_oom(constants, state, app[START_S], need_mib)
    if restarts > 0:
        part = restarts / ready
        inside = requests[QUEUED]
        if constants.concurrency * ready < inside + requests[RUNNING]:
            inside = max(int(constants.concurrency * ready) - requests[RUNNING], 0)
        lost_queued, lost_running = int(part * inside), int(part * requests[RUNNING])
        lost = lost_queued + lost_running
        requests[QUEUED] -= lost_queued
        requests[RUNNING] -= lost_running
        requests[LOST] += lost
        sums[S_LOST] += lost
        sums[S_VIOLATED] += lost
    used = min(ready * mean_mib, totals[HELD_MIB])
    if totals[HELD_MIB] > 0:
        sums[S_MEMORY_USE] += used / totals[HELD_MIB]
    report = state.reports[now]
    report[R_USED_MIB], report[R_LIMIT_MIB] = used, totals[HELD_MIB]
    report[R_PEAK_MIB] = min(need_mib, totals[HELD_MIB] / max(totals[HELD], 1.0))
    report[R_OOMS] += restarts


@njit_inline
def _finish_step(constants: SimConstants, state: SimState, app: Floats, step: int) -> None:
    """Outcome of a control step: its p99, the use of resources and the reward."""
    sums, outcome = state.step, state.outcome[step]
    p99_s, arrived = 0.0, sums[S_ARRIVED]
    failed = sums[S_TIMED_OUT] + sums[S_LOST]
    if arrived > 0 or failed > 0:
        p99_s = _p99(constants, state, state.levels[step], failed / max(arrived, 1.0))
    for column in range(STEP_COLUMNS):
        outcome[column] = sums[column]
    for column in (S_CPU_USE, S_MEMORY_USE, S_PODS, S_CORES, S_MIB):
        outcome[column] = sums[column] / STEP_INTERVALS
    outcome[P99_S], outcome[SLO] = p99_s, app[SLO_S]
    outcome[PRESERVED] = slo_preservation(app[SLO_S], p99_s)
    outcome[REWARD] = step_reward(
        constants, outcome[PRESERVED], outcome[S_CPU_USE], outcome[S_MEMORY_USE]
    )
    outcome[WAITING] = state.requests[QUEUED] + state.requests[RUNNING]
    state.sums[SUM_REWARD] += outcome[REWARD]
    state.sums[SUM_STEPS] += 1.0
    for column in range(STEP_COLUMNS):
        sums[column] = 0.0


@njit_internal
def _p99(constants: SimConstants, state: SimState, level: float, failed: float) -> float:
    """The p99 of a step in which a share of the requests failed, which count with the timeout."""
    if failed > 0:
        tail = math.exp(-level)
        if failed >= tail:
            return constants.timeout_s
        level = -math.log((tail - failed) / (1.0 - failed))
    return mixed_time(constants, state.rows, level)
