"""The rule that SURE starts from: the plan with the highest expected reward, if a restart pays.

A model of the job is estimated from the observation alone (`job_model.py`). Instances are added to
a task as long as the latency saved is worth more than the utilisation lost (`plan_choice.py`). The
job is restarted if the reward gained within `horizon_min` exceeds the latency that the restart
costs.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling import observation as columns
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.sure.job_model import (
    Doubles,
    Floats,
    Rule,
    Tables,
    busiest_share,
    expected_reward,
    fill_latencies,
    overload_latency,
    read_job,
    read_load,
    read_tasks,
    scratch,
    write_rates,
)
from loadmaster.models.sure.plan_choice import choose_plan, highest_capacity, rounding_margin
from loadmaster.models.sure.settings import PriorSettings

AGE, LENGTH, EVER = map(columns.RESTART_COLUMNS.index, ("age", "length", "ever"))

_FIRST_RESTART_MIN = 0.6  # length of a restart before one was seen
_LEAST_FREE = 0.05  # share of idle time in the drain of a backlog, at least


class KeptRates:
    """Rates of all snapshots of E observations of one job, which logarithms have to be undone for.

    Kept by callers that follow episodes, so that a snapshot is read once.
    """

    def __init__(self, observations: Mapping[str, Any]) -> None:
        self.table = np.zeros((*observations["snapshots"].shape[:3], 2))  # (E, L, N, 2)
        self.follow(observations, self.table.shape[1])

    def follow(self, observations: Mapping[str, Any], new: int) -> None:
        """Take the next observations, whose last `new` snapshots are new."""
        _follow_rates(observations["snapshots"], observations["tasks"], new, self.table)


class Prior(NamedTuple):
    """What the rule recommends: a change of each task as an action, and log-odds of acting."""

    change: Floats  # (E, N)
    gate: Floats  # (E,)


def recommend(
    observations: Mapping[str, Any],
    settings: PriorSettings,
    environment: StreamScalingSettings,
    forecast: float = 0.0,
    rates: KeptRates | None = None,
) -> Prior:
    """Of E observations of one job, every table with a first axis for them.

    `forecast` is the load to come, in records a minute; 0: that of the last minutes. `rates` of
    these observations, where the caller keeps them.
    """
    episodes, window, tasks, _ = observations["snapshots"].shape
    most = min(int(columns.most_instances(observations["tasks"]).max()), environment.max_instances)
    change, gate = np.zeros((episodes, tasks), np.float32), np.zeros(episodes, np.float32)
    view = columns.Observation(
        *(np.ascontiguousarray(observations[name]) for name in columns.Observation._fields)
    )
    tables = scratch(tasks, most, window)
    rule = _rule_of(settings, environment, forecast)
    known = (rates or KeptRates(view._asdict())).table
    _recommend_batch(view, known, rule, tables, change, gate)
    return Prior(change, gate)


def recommend_one(
    observation: Mapping[str, Any],
    settings: PriorSettings,
    environment: StreamScalingSettings,
    forecast: float = 0.0,
) -> Prior:
    """Of one observation: change (N,) and gate ()."""
    batch = {name: table[None] for name, table in observation.items()}
    found = recommend(batch, settings, environment, forecast)
    return Prior(found.change[0], found.gate[0])


def _rule_of(settings: PriorSettings, environment: StreamScalingSettings, forecast: float) -> Rule:
    return Rule(
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
        max_factor=environment.action_factor,
        max_instances=environment.max_instances,
        forecast=forecast,
    )


@compiled
def _follow_rates(snapshots: Floats, tasks: Floats, new: int, rates: Doubles) -> None:
    """Move the rates of older snapshots up and write those of the last `new` of each episode."""
    kept = max(rates.shape[1] - new, 0)
    for episode in range(len(rates)):
        own = rates[episode]
        columns.move_up(own.reshape(own.size), kept, len(own))
        write_rates(snapshots[episode], tasks[episode], kept, own)


@compiled
def _recommend_batch(
    views: columns.Observation, rates: Doubles, rule: Rule, tables: Tables, change: Floats,
    gate: Floats,
) -> None:  # fmt: skip
    """Decide for each observation; all are of one job."""
    read_job(views.tasks[0], views.edges[0], rule.max_instances, tables)
    for episode in range(len(gate)):
        gate[episode] = _decide(
            views.snapshots[episode], views.times[episode], views.tasks[episode],
            views.restart[episode], rates[episode], rule, tables, change[episode],
        )  # fmt: skip


@njit_internal
def _decide(
    snapshots: Floats,
    times: Floats,
    tasks: Floats,
    restart: Floats,
    rates: Doubles,
    rule: Rule,
    t: Tables,
    change: Floats,
) -> float:
    """Write the change of each task; returns the log-odds of acting."""
    count = snapshots.shape[1]
    load, waiting = read_load(snapshots, times, tasks, rates, rule)
    known = read_tasks(snapshots, tasks, rates, t)
    if rule.forecast > 0:
        load = rule.forecast
    if not known or load <= 0:
        change[:] = 0.0
        return -rule.log_odds
    capacity = highest_capacity(rule, t)
    drained = load + waiting / rule.catch_up
    overload = overload_latency(load, capacity, rule)
    busy = fill_latencies(drained, overload, rule, t)
    worth = choose_plan(busy, drained, overload, capacity, rule, t)
    changed, highest = False, 0.0
    for task in range(count):
        changed |= t.plan[task] != t.now[task]
        highest = max(highest, load * busiest_share(task, t.plan[task], t))
        wanted = t.plan[task] + rounding_margin(t.chain[task], worth, t)
        change[task] = _action(wanted, t.now[task], rule.max_factor)
    if rule.max_factor <= 0:  # as published: any decision restarts the job
        return rule.log_odds
    ever = restart[EVER] > 0
    age = math.expm1(columns.AGE_UNIT * restart[AGE])
    if not changed or (ever and age < rule.least):
        return -rule.log_odds
    gain = rule.horizon * (
        expected_reward(t.plan, busy, rule, t) - expected_reward(t.now, busy, rule, t)
    )
    # Records that came in the restart wait, on top of the backlog, until idle time has drained it.
    backlog = waiting / load
    down = (restart[LENGTH] if ever else _FIRST_RESTART_MIN) + rule.replay
    area = ((backlog + down) ** 2 - backlog**2) / 2 / max(1 - highest, _LEAST_FREE)
    odds = rule.slope * (gain / (rule.restart_cost * rule.weight * area + 1e-9) - 1)
    return min(max(odds, -rule.log_odds), rule.log_odds)


@njit_internal
def _action(wanted: float, now: int, max_factor: float) -> float:
    """The action that leads from `now` to `wanted` instances; see `write_plan`."""
    if max_factor > 0:
        return math.log(wanted / now) / math.log(max_factor)
    step = round(wanted) - now  # as published: the share of `now` is cut to an integer
    share: float = (step + 0.5 * np.sign(step)) / now
    return min(max(share, -1.0), 1.0)
