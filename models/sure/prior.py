"""The rule that SURE starts from: the plan with the highest expected reward, if a restart pays.

A model of the job is estimated from the observation alone. Each task needs a number of busy
instances per record that arrives, and a service time. Of a plan p and a load, the rule computes the
reward (`envs/stream_scaling/rewards.py`) from the share of busy instances and from the waiting time
of each task (Kingman's formula), weighted by how many of a record's paths visit the task. It is a
mean over loads around the recent one, since the load wanders until the next restart. Instances are
added to a task as long as the latency saved is worth more than the utilisation lost. The job is
restarted if the reward gained within `horizon_min` exceeds the latency that the restart costs.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_internal
from loadmaster.envs.stream_scaling import observation as columns
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.sure.settings import PriorSettings

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

PARALLELISM, BUSY, IDLE, BLOCKED, IN_RATE, OUT_RATE, PENDING = map(
    columns.SNAPSHOT_COLUMNS.index,
    ("parallelism", "busy", "idle", "blocked", "in rate", "out rate", "pending"),
)
LEVEL, SOURCE, SINK, CHAINED = map(
    columns.TASK_COLUMNS.index, ("level", "source", "sink", "chained")
)
PRESENT = columns.TIME_COLUMNS.index("present")
AGE, LENGTH, EVER = map(columns.RESTART_COLUMNS.index, ("age", "length", "ever"))

_DOWN = 0.5  # less time reported than this share of a minute: the job was down
_KNEE = 0.95  # share of busy time above which Kingman's formula is continued as a line
_KNEE_SLOPE = 4.0  # minutes of latency a share of 1 above the knee: a minute's overload drains
_MINUTE_STD = 0.1  # of the load from minute to minute, relative
_WITHIN = tuple(math.exp(_MINUTE_STD * z) for z in (-1.5, -0.5, 0.5, 1.5))  # factors of a minute
_DRIFTS = (-1.2, 0.0, 1.2)  # thirds of it, for the load until the next restart
_FIRST_RESTART_MIN = 0.6  # length of a restart before one was seen
_LEAST_FREE = 0.05  # share of idle time in the drain of a backlog, at least
_MOST_RATIO, _MOST_MARGIN = 10.0, 0.45  # factor of what an instance saves; part of an instance
_PLAN_ROUNDS, _LIMIT_ROUNDS, _LIMIT_FACTOR = 4, 40, 1.4


class Prior(NamedTuple):
    """What the rule recommends: a change of each task as an action, and log-odds of acting."""

    change: Floats  # (E, N)
    gate: Floats  # (E,)


class _Rule(NamedTuple):
    """Parameters in compiled code; see PriorSettings and StreamScalingSettings."""

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


class _Tables(NamedTuple):
    """Scratch of a decision on N tasks with up to P instances."""

    demand: Doubles  # (N,) busy instances per record a minute at the sources
    service: Doubles  # (N,) minutes
    emitted: Doubles  # (L,) records that left all sources
    visits: Doubles  # (N,) of a record on its way to a sink
    loads: Doubles  # of _DRIFTS
    latency: Doubles  # (N, P) weighted latency of a task with p + 1 instances
    shortage: Doubles  # (N, P) the same, of a load above its capacity until the next restart
    saved: Doubles  # (N, P) weighted latency saved by one instance more
    most: Ints  # (N,)
    now: Ints  # (N,) instances at present
    plan: Ints  # (N,)
    chain: Ints  # (N,) first task of the chain
    order: Ints  # (N,) parents first


def recommend(
    observations: Mapping[str, Any], settings: PriorSettings, environment: StreamScalingSettings
) -> Prior:
    """Of E observations of one job, every table with a first axis for them."""
    episodes, window, tasks, _ = observations["snapshots"].shape
    most = int(columns.most_instances(observations["tasks"]).max())
    change, gate = np.zeros((episodes, tasks), np.float32), np.zeros(episodes, np.float32)
    view = columns.Observation(
        *(np.ascontiguousarray(observations[name]) for name in columns.Observation._fields)
    )
    tables = _scratch(tasks, most, window)
    _recommend_batch(view, _rule_of(settings, environment), tables, change, gate)
    return Prior(change, gate)


def recommend_one(
    observation: Mapping[str, Any], settings: PriorSettings, environment: StreamScalingSettings
) -> Prior:
    """Of one observation: change (N,) and gate ()."""
    found = recommend({k: v[None] for k, v in observation.items()}, settings, environment)
    return Prior(found.change[0], found.gate[0])


def _rule_of(settings: PriorSettings, environment: StreamScalingSettings) -> _Rule:
    return _Rule(
        window=settings.window_min,
        drift=settings.drift,
        horizon=settings.horizon_min,
        restart_cost=settings.restart_cost,
        replay=settings.replay_min,
        catch_up=settings.catch_up_min,
        overload=settings.overload_min,
        least=settings.least_min,
        slope=settings.slope,
        log_odds=settings.log_odds,
        weight=environment.latency_weight / environment.latency_scale_min,
        utilisation=1 - environment.latency_weight,
        max_factor=environment.max_factor,
        max_instances=environment.max_instances,
    )


def _scratch(tasks: int, most: int, window: int) -> _Tables:
    demand, service, visits = np.zeros((3, tasks))
    latency, shortage, saved = np.zeros((3, tasks, most))
    numbers = np.zeros((5, tasks), np.int64)
    return _Tables(
        demand, service, np.zeros(window), visits, np.zeros(len(_DRIFTS)), latency, shortage,
        saved, *numbers,
    )  # fmt: skip


@compiled
def _recommend_batch(
    views: columns.Observation, rule: _Rule, tables: _Tables, change: Floats, gate: Floats
) -> None:
    """Decide for each observation; all are of one job."""
    _read_job(views.tasks[0], views.edges[0], tables)
    for episode in range(len(gate)):
        gate[episode] = _decide(
            views.snapshots[episode], views.times[episode], views.tasks[episode],
            views.restart[episode], rule, tables, change[episode],
        )  # fmt: skip


@njit_internal
def _read_job(tasks: Floats, edges: Ints, t: _Tables) -> None:
    """Order by level, chains, and visits: a record comes from any parent of a task alike."""
    count, sinks = len(tasks), 0.0
    for task in range(count):
        cap = tasks[task, columns.MOST_INSTANCES]
        t.most[task] = round(math.expm1(columns.CAP_UNIT * cap))
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
def _decide(
    snapshots: Floats,
    times: Floats,
    tasks: Floats,
    restart: Floats,
    rule: _Rule,
    t: _Tables,
    change: Floats,
) -> float:
    """Write the change of each task; returns the log-odds of acting."""
    count = snapshots.shape[1]
    load, waiting = _read_load(snapshots, times, tasks, rule)
    known = _read_tasks(snapshots, tasks, t)
    if not known or load <= 0:
        change[:] = 0.0
        return -rule.log_odds
    busy = _latencies(load + waiting / rule.catch_up, rule, t)
    worth = _choose_plan(busy, rule, t)
    changed, highest = False, 0.0
    for task in range(count):
        changed |= t.plan[task] != t.now[task]
        highest = max(highest, load * t.demand[task] / t.plan[task])
        wanted = t.plan[task] + _rounding_margin(t.chain[task], worth, t)
        change[task] = math.log(wanted / t.now[task]) / math.log(rule.max_factor)
    ever = restart[EVER] > 0
    age = math.expm1(columns.AGE_UNIT * restart[AGE])
    if not changed or (ever and age < rule.least):
        return -rule.log_odds
    gain = rule.horizon * (_reward(t.plan, busy, rule, t) - _reward(t.now, busy, rule, t))
    # Records that came in the restart wait, on top of the backlog, until idle time has drained it.
    backlog = waiting / load
    down = (restart[LENGTH] if ever else _FIRST_RESTART_MIN) + rule.replay
    area = ((backlog + down) ** 2 - backlog**2) / 2 / max(1 - highest, _LEAST_FREE)
    odds = rule.slope * (gain / (rule.restart_cost * rule.weight * area + 1e-9) - 1)
    return min(max(odds, -rule.log_odds), rule.log_odds)


@njit_internal
def _read_load(snapshots: Floats, times: Floats, tasks: Floats, rule: _Rule) -> tuple[float, float]:
    """Records a minute at all sources in the last minutes, and records that wait there."""
    history, total, minutes, waiting = len(times), 0.0, 0, 0.0
    for place in range(max(history - rule.window, 0), history):
        if times[place, PRESENT] > 0:
            minutes += 1
            for task in range(len(tasks)):
                if tasks[task, SOURCE] > 0:
                    total += math.expm1(columns.RATE_UNIT * snapshots[place, task, IN_RATE])
    for task in range(len(tasks)):
        if tasks[task, SOURCE] > 0:
            waiting += math.expm1(columns.PENDING_UNIT * snapshots[history - 1, task, PENDING])
    return total / max(minutes, 1), waiting


@njit_internal
def _read_tasks(snapshots: Floats, tasks: Floats, t: _Tables) -> bool:
    """Demand and service time of each task; False if one has never been seen running."""
    history, count = snapshots.shape[0], snapshots.shape[1]
    t.emitted[:] = 0.0
    for task in range(count):
        if tasks[task, SOURCE] > 0:
            for place in range(history):
                rate = snapshots[place, task, OUT_RATE]
                t.emitted[place] += math.expm1(columns.RATE_UNIT * rate)
    for task in range(count):
        work, source, done = 0.0, 0.0, 0.0
        for place in range(history):
            row = snapshots[place, task]
            if row[BUSY] + row[IDLE] + row[BLOCKED] > _DOWN:
                work += row[BUSY] * row[PARALLELISM] * t.most[task]
                done += math.expm1(columns.RATE_UNIT * row[OUT_RATE])
                source += t.emitted[place]
        if source <= 0:
            return False
        t.demand[task] = work / source
        t.service[task] = work / max(done, 1e-6)
        now = snapshots[history - 1, task, PARALLELISM] * t.most[task]
        t.now[task] = max(round(now), 1)
    return True


@njit_internal
def _latencies(load: float, rule: _Rule, t: _Tables) -> float:
    """Fill `latency`, `shortage` and `saved`; returns the busy instances of the whole job."""
    busy, points = 0.0, len(_DRIFTS) * len(_WITHIN)
    for number, drift in enumerate(_DRIFTS):
        t.loads[number] = load * math.exp(rule.drift * drift)
    for task in range(len(t.demand)):
        for place in range(t.most[task]):
            waits, short = 0.0, 0.0
            for own_load in t.loads:
                rho = own_load * t.demand[task] / (place + 1)
                short += rule.overload * max(rho - 1, 0.0)
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
def _choose_plan(busy: float, rule: _Rule, t: _Tables) -> float:
    """Give a task one more instance where that saves more than the utilisation lost.

    One more of P instances lowers the utilisation B / P by B / P^2. Where the plan exceeds the
    limit of the job, an instance has to save more. Returns what it has to save.
    """
    total, worth = 0, 0.0
    for task in range(len(t.now)):
        total += t.now[task]
    for _ in range(_PLAN_ROUNDS):
        worth = rule.utilisation * min(busy / total, 1.0) / total
        for _ in range(_LIMIT_ROUNDS):
            total = 0
            for task in range(len(t.plan)):
                t.plan[task] = 1
                while t.plan[task] < t.most[task] and t.saved[task, t.plan[task] - 1] > worth:
                    t.plan[task] += 1
            for task in range(len(t.plan)):
                first = t.chain[task]
                t.plan[first] = max(t.plan[first], t.plan[task])
            for task in range(len(t.plan)):
                t.plan[task] = t.plan[t.chain[task]]
                total += t.plan[task]
            if total <= rule.max_instances:
                break
            worth *= _LIMIT_FACTOR
    return worth


@njit_internal
def _rounding_margin(task: int, worth: float, t: _Tables) -> float:
    """A part of an instance, less than half, to add to the plan before it is rounded.

    Positive where one more instance is nearer to its worth than the last one. It does not change
    the rounded plan; with it, a small output of the network changes the tasks nearest to a change.
    """
    plan, most = t.plan[task], math.log(_MOST_RATIO)
    last = next_one = most
    if plan > 1 and t.saved[task, plan - 2] > 0:
        last = min(max(math.log(t.saved[task, plan - 2] / worth), 0.0), most)
    if plan < t.most[task] and t.saved[task, plan - 1] > 0:
        next_one = min(max(math.log(worth / t.saved[task, plan - 1]), 0.0), most)
    return _MOST_MARGIN * (last - next_one) / (last + next_one + 0.1)


@njit_internal
def _reward(plan: Ints, busy: float, rule: _Rule, t: _Tables) -> float:
    """Expected reward of a minute; where several tasks are too slow, the slowest counts."""
    total, latency, short = 0.0, 0.0, 0.0
    for task in range(len(plan)):
        total += plan[task]
        latency += t.latency[task, plan[task] - 1]
        short = max(short, t.shortage[task, plan[task] - 1])
    return rule.utilisation * min(busy / total, 1.0) - latency - short
