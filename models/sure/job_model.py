"""Queueing model of a job, estimated from an observation: the expected reward of any plan.

Each task needs a number of busy instances per record that arrives, and a service time. Of a plan
and a load, the model gives the reward (`envs/stream_scaling/rewards.py`): the share of busy
instances, and the waiting time of each task (Kingman's formula), weighted by how many of a record's
paths visit the task. It is a mean over loads around the given one.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, njit_internal
from loadmaster.envs.stream_scaling import observation as columns

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

PARALLELISM, BUSY, HOTTEST, IDLE, BLOCKED, IN_RATE, OUT_RATE, PENDING = map(
    columns.SNAPSHOT_COLUMNS.index,
    ("parallelism", "busy", "hottest busy", "idle", "blocked", "in rate", "out rate", "pending"),
)
LEVEL, SOURCE, SINK, CHAINED = map(
    columns.TASK_COLUMNS.index, ("level", "source", "sink", "chained")
)
PRESENT = columns.TIME_COLUMNS.index("present")
IN, OUT = 0, 1  # columns of rates

_DOWN = 0.5  # less time reported than this share of a minute: the job was down
_KNEE = 0.95  # share of busy time above which Kingman's formula is continued as a line
_KNEE_SLOPE = 4.0  # minutes of latency a share of 1 above the knee: a minute's overload drains
_MINUTE_STD = 0.1  # of the load from minute to minute, relative
_WITHIN = tuple(math.exp(_MINUTE_STD * z) for z in (-1.5, -0.5, 0.5, 1.5))  # factors of a minute
_DRIFTS = (-1.2, 0.0, 1.2)  # thirds of it, for the load until the next restart
_LEAST_RATE = 10.0  # usual records a minute of a source that is silent in a minute without any
_LEAST_BUSY = 1.0  # minutes of several instances, before their skew is known
_LEAST_SPARE = 0.1  # share of the job's highest capacity in which a backlog drains, at least


class Rule(NamedTuple):
    """Parameters of a decision; see PriorSettings and StreamScalingSettings."""

    window: int
    drift: float
    horizon: float
    restart_cost: float
    replay: float
    catch_up: float
    overload: float
    least: float
    slope: float
    log_odds: float
    weight: float  # of a minute's latency in the reward
    utilisation: float  # weight of it
    max_factor: float
    max_instances: int
    forecast: float  # records a minute to come; 0: as in the last minutes


class Tables(NamedTuple):
    """Scratch of a decision on N tasks with up to P instances."""

    sums: Doubles  # (5, N) of a task's minutes; see `read_tasks`
    demand: Doubles  # (N,) busy instances per record a minute at the sources
    service: Doubles  # (N,) minutes
    hot: Doubles  # (N,) share of the records that one instance gets, however many there are
    emitted: Doubles  # (L,) records that left all sources; -1: a source was silent
    visits: Doubles  # (N,) of a record on its way to a sink
    loads: Doubles  # of _DRIFTS
    latency: Doubles  # (N, P) weighted latency of a task with p + 1 instances
    shortage: Doubles  # (N, P) the same, of a load above its capacity until the next restart
    saved: Doubles  # (N, P) weighted latency saved by one instance more
    cap: Ints  # (N,) most instances of the task, the unit of its parallelism
    most: Ints  # (N,) the same within the limit of the job
    now: Ints  # (N,) instances at present
    plan: Ints  # (N,)
    least: Ints  # (N,) fewest instances of a plan
    chain: Ints  # (N,) first task of the chain
    order: Ints  # (N,) parents first


def scratch(tasks: int, most: int, window: int) -> Tables:
    sums, (demand, service, hot, visits) = np.zeros((5, tasks)), np.zeros((4, tasks))
    latency, shortage, saved = np.zeros((3, tasks, most))
    numbers = np.zeros((7, tasks), np.int64)
    return Tables(
        sums, demand, service, hot, np.zeros(window), visits, np.zeros(len(_DRIFTS)), latency,
        shortage, saved, *numbers,
    )  # fmt: skip


@njit_internal
def read_job(tasks: Floats, edges: Ints, max_instances: int, t: Tables) -> None:
    """Order by level, chains, and visits: a record comes from any parent of a task alike."""
    count, sinks = len(tasks), 0.0
    for task in range(count):
        cap = tasks[task, columns.MOST_INSTANCES]
        t.cap[task] = round(math.expm1(columns.CAP_UNIT * cap))
        t.most[task] = min(t.cap[task], max_instances)
        t.chain[task], t.order[task] = task, task
        sinks += tasks[task, SINK] > 0
    for place in range(1, count):  # insertion sort by level
        task, before = t.order[place], place - 1
        while before >= 0 and tasks[t.order[before], LEVEL] > tasks[task, LEVEL]:
            t.order[before + 1] = t.order[before]
            before -= 1
        t.order[before + 1] = task
    for place in range(count):
        task = t.order[place]
        t.visits[task] = 1.0 / sinks if tasks[task, SINK] > 0 else 0.0
        for edge in range(edges.shape[1]):
            if edges[1, edge] == task and tasks[task, CHAINED] > 0:
                t.chain[task] = t.chain[edges[0, edge]]
    for place in range(count - 1, -1, -1):
        task, parents = t.order[place], 0
        for edge in range(edges.shape[1]):
            parents += edges[1, edge] == task
        for edge in range(edges.shape[1]):
            if edges[1, edge] == task:
                t.visits[edges[0, edge]] += t.visits[task] / parents


@njit_internal
def write_rates(snapshots: Floats, tasks: Floats, first: int, rates: Doubles) -> None:
    """Records a minute from snapshot `first` on: `rates` (L, N, 2) in and out of each task.

    Those that arrive are written for sources only.
    """
    for place in range(first, len(snapshots)):
        for task in range(len(tasks)):
            row, rate = snapshots[place, task], rates[place, task]
            if tasks[task, SOURCE] > 0:
                rate[IN] = math.expm1(columns.RATE_UNIT * row[IN_RATE])
            rate[OUT] = math.expm1(columns.RATE_UNIT * row[OUT_RATE])


@njit_internal
def read_load(
    snapshots: Floats, times: Floats, tasks: Floats, rates: Doubles, rule: Rule
) -> tuple[float, float]:
    """Records a minute at all sources in the last minutes, and records that wait there.

    A silent source counts with its usual rate, since its load may come back at any time.
    """
    history, total, minutes, waiting = len(times), 0.0, 0, 0.0
    first = max(history - rule.window, 0)
    for place in range(first, history):
        minutes += times[place, PRESENT] > 0
    for task in range(len(tasks)):
        if tasks[task, SOURCE] > 0:
            usual = _usual_rate(rates, task)
            for place in range(first, history):
                if times[place, PRESENT] > 0:
                    rate = rates[place, task, IN]
                    total += usual if rate <= 0 and usual >= _LEAST_RATE else rate
            waiting += math.expm1(columns.PENDING_UNIT * snapshots[history - 1, task, PENDING])
    return total / max(minutes, 1), waiting


@njit_internal
def _usual_rate(rates: Doubles, task: int) -> float:
    """Records a minute that arrive at a source, in minutes of the history with any."""
    total, minutes = 0.0, 0
    for place in range(len(rates)):
        rate = rates[place, task, IN]
        total += rate
        minutes += rate > 0
    return total / max(minutes, 1)


@njit_internal
def _read_emitted(tasks: Floats, rates: Doubles, t: Tables) -> None:
    """Records that left the sources in each minute, or -1 if one of them was silent."""
    t.emitted[:] = 0.0
    for task in range(len(tasks)):
        if tasks[task, SOURCE] > 0:
            usual = _usual_rate(rates, task)
            for place in range(len(rates)):
                rate = rates[place, task]
                if t.emitted[place] < 0 or (rate[IN] <= 0 and usual >= _LEAST_RATE):
                    t.emitted[place] = -1.0
                else:
                    t.emitted[place] += rate[OUT]


@njit_internal
def read_tasks(snapshots: Floats, tasks: Floats, rates: Doubles, t: Tables) -> bool:
    """Demand, service time and skew of each task; False if one has never been seen running.

    Minutes with a silent source are left out: tasks behind it have less work for a record.
    """
    history, count = snapshots.shape[0], snapshots.shape[1]
    _read_emitted(tasks, rates, t)
    work, source, done, mean, hottest = t.sums[0], t.sums[1], t.sums[2], t.sums[3], t.sums[4]
    t.sums[:] = 0.0
    for place in range(history):  # in the order of memory
        if t.emitted[place] < 0:
            continue
        for task in range(count):
            row = snapshots[place, task]
            if row[BUSY] + row[IDLE] + row[BLOCKED] > _DOWN:
                # A share h of the records at one instance: hottest / mean = 1 + h (p - 1).
                mean[task] += row[BUSY] * (row[PARALLELISM] * t.cap[task] - 1)
                hottest[task] += row[HOTTEST] - row[BUSY]
                work[task] += row[BUSY] * row[PARALLELISM] * t.cap[task]
                done[task] += rates[place, task, OUT]
                source[task] += t.emitted[place]
    for task in range(count):
        if source[task] <= 0:
            return False
        t.demand[task] = work[task] / source[task]
        t.service[task] = work[task] / max(done[task], 1e-6)
        skewed = mean[task] > _LEAST_BUSY
        t.hot[task] = min(max(hottest[task] / mean[task], 0.0), 1.0) if skewed else 0.0
        now = round(snapshots[history - 1, task, PARALLELISM] * t.cap[task])
        t.now[task] = min(max(now, 1), t.cap[task])
    return True


@njit_internal
def busiest_share(task: int, count: int, t: Tables) -> float:
    """Busy time of the busiest of `count` instances, per record a minute at the sources."""
    share: float = t.demand[task] * (t.hot[task] + (1 - t.hot[task]) / count)
    return share


@njit_internal
def overload_latency(load: float, capacity: float, rule: Rule) -> float:
    """Latency of a load of twice a task's capacity, the more the less capacity is left to drain."""
    return rule.overload / max(1 - load / capacity, _LEAST_SPARE)


@njit_internal
def fill_latencies(load: float, overload: float, rule: Rule, t: Tables) -> float:
    """Fill `latency`, `shortage` and `saved`; returns the busy instances of the whole job."""
    busy, points = 0.0, len(_DRIFTS) * len(_WITHIN)
    for number, drift in enumerate(_DRIFTS):
        t.loads[number] = load * math.exp(rule.drift * drift)
    for task in range(len(t.demand)):
        for place in range(t.most[task]):
            waits, short = 0.0, 0.0
            for own_load in t.loads:
                rho = own_load * busiest_share(task, place + 1, t)
                short += overload * max(rho - 1, 0.0)
                for within in _WITHIN:
                    own = rho * within
                    low = min(own, _KNEE)
                    waits += t.service[task] / (1 - low) + _KNEE_SLOPE * max(own - _KNEE, 0.0)
            t.latency[task, place] = rule.weight * t.visits[task] * waits / points
            t.shortage[task, place] = rule.weight * short / len(_DRIFTS)
        least = 0.0
        for place in range(t.most[task] - 2, -1, -1):
            fall = t.latency[task, place] - t.latency[task, place + 1]
            fall += t.visits[task] * (t.shortage[task, place] - t.shortage[task, place + 1])
            least = max(least, fall)
            t.saved[task, place] = least
        t.saved[task, t.most[task] - 1] = 0.0
        busy += t.loads.mean() * t.demand[task]
    return busy


@njit_internal
def expected_reward(plan: Ints, busy: float, rule: Rule, t: Tables) -> float:
    """Expected reward of a minute; where several tasks are too slow, the slowest counts."""
    total, latency, short = 0.0, 0.0, 0.0
    for task in range(len(plan)):
        total += plan[task]
        place = min(plan[task], t.most[task]) - 1
        latency += t.latency[task, place]
        short = max(short, t.shortage[task, place])
    return rule.utilisation * min(busy / total, 1.0) - latency - short
