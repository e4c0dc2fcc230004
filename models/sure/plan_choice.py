"""Choice of a plan by marginal gains, within the limit of the job's instances."""

import math

from loadmaster.envs.compiled import njit_internal
from loadmaster.models.sure.job_model import Rule, Tables, busiest_share, fill_latencies

_ROUNDS, _LIMIT_ROUNDS = 4, 16  # of a fixed point, of a bisection
_LEAST_WORTH, _MOST_WORTH = 1e-9, 1e6  # of the plans at the limit
_IDLE_CAPACITY = 1e9  # records a minute of a job that was never busy
_LEAST_CAPACITY = 0.99  # of the highest capacity, for each task of a plan at the limit
_AT_LIMIT = 0.8  # share of it: the load at which the other instances are given
_MOST_RATIO, _MOST_MARGIN = 10.0, 0.45  # factor of what an instance saves; part of an instance


@njit_internal
def choose_plan(
    busy: float, load: float, overload: float, capacity: float, rule: Rule, t: Tables
) -> float:
    """Give a task one more instance where that saves more than the utilisation lost.

    One more of P instances lowers the utilisation B / P by B / P^2. Returns what an instance has to
    save, or 0 where that plan exceeds the limit of the job. There an instance has to save more, at
    a load near the highest capacity of the job: the plan that serves the peak best is kept when the
    load falls, since another one would cost a restart before the next peak.
    """
    total, worth = 0, 0.0
    t.least[:] = 1
    for task in range(len(t.now)):
        total += t.now[task]
    for _ in range(_ROUNDS):
        worth = rule.utilisation * min(busy / total, 1.0) / total
        total = _fill_plan(worth, t)
    if total <= rule.max_instances:
        return worth
    for task in range(len(t.least)):
        while t.least[task] < t.most[task] and (
            _LEAST_CAPACITY * capacity * busiest_share(task, t.least[task], t) > 1
        ):
            t.least[task] += 1
    fill_latencies(_AT_LIMIT * capacity, rule.overload, rule, t)
    low = high = max(worth, _LEAST_WORTH)
    while total > rule.max_instances and high < _MOST_WORTH:
        low, high = high, 2 * high
        total = _fill_plan(high, t)
    for _ in range(_LIMIT_ROUNDS):
        middle = 0.5 * (low + high)
        if _fill_plan(middle, t) > rule.max_instances:
            low = middle
        else:
            high = middle
    _fill_plan(high, t)
    fill_latencies(load, overload, rule, t)
    return 0.0


@njit_internal
def _fill_plan(worth: float, t: Tables) -> int:
    """Write the plan in which every instance saves more than `worth`; returns its size."""
    total = 0
    for task in range(len(t.plan)):
        t.plan[task] = t.least[task]
        while t.plan[task] < t.most[task] and t.saved[task, t.plan[task] - 1] > worth:
            t.plan[task] += 1
    for task in range(len(t.plan)):
        first = t.chain[task]
        t.plan[first] = max(t.plan[first], t.plan[task])
    for task in range(len(t.plan)):
        t.plan[task] = t.plan[t.chain[task]]
        total += t.plan[task]
    return total


@njit_internal
def highest_capacity(rule: Rule, t: Tables) -> float:
    """Records a minute that the job can process with all its instances, evenly loaded."""
    total = len(t.plan)
    t.plan[:] = 1
    while True:
        slowest, highest = -1, 0.0
        for task in range(len(t.plan)):
            share = busiest_share(task, t.plan[task], t)
            if share > highest:
                slowest, highest = t.chain[task], share
        if slowest < 0:
            return _IDLE_CAPACITY
        size, free = 0, True
        for task in range(len(t.plan)):
            if t.chain[task] == slowest:
                size += 1
                free = free and t.plan[task] < t.most[task]
        if not free or total + size > rule.max_instances:
            return 1.0 / highest
        for task in range(len(t.plan)):
            if t.chain[task] == slowest:
                t.plan[task] += 1
        total += size


@njit_internal
def rounding_margin(task: int, worth: float, t: Tables) -> float:
    """A part of an instance, less than half, to add to the plan before it is rounded.

    Positive where one more instance is nearer to its worth than the last one. It does not change
    the rounded plan; with it, a small output of the network changes the tasks nearest to a change.
    """
    if worth <= 0:
        return 0.0
    plan, most = t.plan[task], math.log(_MOST_RATIO)
    last = next_one = most
    if plan > 1 and t.saved[task, plan - 2] > 0:
        last = min(max(math.log(t.saved[task, plan - 2] / worth), 0.0), most)
    if plan < t.most[task] and t.saved[task, plan - 1] > 0:
        next_one = min(max(math.log(worth / t.saved[task, plan - 1]), 0.0), most)
    return _MOST_MARGIN * (last - next_one) / (last + next_one + 0.1)
