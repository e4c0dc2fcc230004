"""Baseline rules, compiled: when a rule decides, and what it remembers.

Common to all of them: the interval of their decisions, none until `settle_min` after a restart, and
fewer instances only after `down_min`. `formulas.py` has the plan of each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.envs.compiled import Ints, njit_internal, uniform
from loadmaster.envs.stream_scaling.baselines import (
    DHALION,
    DOWN_MIN,
    DS2,
    FLINK,
    HPA,
    INTERVAL,
    RANDOM,
    SETTLE,
    STATIC,
    THRESHOLD,
)
from loadmaster.envs.stream_scaling.baselines.formulas import (
    Parameters,
    dhalion,
    ds2,
    flink,
    hpa,
    static,
    target_rates,
    threshold,
)
from loadmaster.envs.stream_scaling.state import (
    DOWN_FOR,
    MINUTE,
    RESTARTED_AT,
    Floats,
    JobTables,
    SimConstants,
    SimState,
)

REMEMBERED = 64  # recommendations


class RuleState(NamedTuple):
    """Work tables of a rule for N tasks."""

    recent: Ints  # (N, REMEMBERED) recommendations, a ring buffer
    minutes: Ints  # (REMEMBERED,) when they were made
    made: Ints  # (1,) how many
    rate: Floats  # (N,) records a minute that a task should process
    fixed: Ints  # (N,) instances of the rule `static`; 0: by its parameters


def new_rule_state(tasks: int, plan: Sequence[int] = ()) -> RuleState:
    return RuleState(
        np.zeros((tasks, REMEMBERED), np.int64),
        np.full(REMEMBERED, -1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(tasks),
        np.array(plan or np.zeros(tasks), np.int64),
    )


@njit_internal
def recommend(
    rule: int,
    parameters: Parameters,
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    plan: Ints,
) -> bool:
    """Write the plan of a rule; False if it does not decide in this minute."""
    minute, since = state.clock[MINUTE], state.clock[RESTARTED_AT]
    settled = since < 0 or minute - since >= parameters[SETTLE] + state.times[DOWN_FOR]
    for task in range(len(plan)):
        plan[task] = state.parallelism[task]
    first = memory.made[0] == 0
    if not first and minute % int(parameters[INTERVAL]) != 0:
        return False
    if not settled:
        return False
    if rule == STATIC:
        static(parameters, job, constants, memory.fixed, plan)
    elif rule == RANDOM:
        for task in range(len(plan)):
            drawn = uniform(constants.key + 2, minute * len(plan) + task)
            plan[task] = 1 + int(drawn * job.cap[task])
    elif rule == THRESHOLD:
        threshold(parameters, state, plan)
    elif rule == HPA:
        hpa(parameters, state, plan)
    elif rule == DHALION:
        dhalion(parameters, job, state, plan)
    elif rule == DS2:
        target_rates(parameters, job, state, memory.rate, False)
        ds2(parameters, state, memory.rate, plan)
    elif rule == FLINK:
        target_rates(parameters, job, state, memory.rate, True)
        flink(parameters, job, state, memory.rate, plan)
    _remember(memory, minute, plan)
    if parameters[DOWN_MIN] > 0:
        _stabilise(parameters, state, memory, plan)
    return True


@njit_internal
def _remember(memory: RuleState, minute: int, plan: Ints) -> None:
    place = memory.made[0] % REMEMBERED
    memory.minutes[place] = minute
    for task in range(len(plan)):
        memory.recent[task, place] = plan[task]
    memory.made[0] += 1


@njit_internal
def _stabilise(parameters: Parameters, state: SimState, memory: RuleState, plan: Ints) -> None:
    """Fewer instances only if all recommendations of the last `down_min` were lower."""
    for task in range(len(plan)):
        if plan[task] >= state.parallelism[task]:
            continue
        highest = plan[task]
        for place in range(min(memory.made[0], REMEMBERED)):
            if memory.minutes[place] > state.clock[MINUTE] - parameters[DOWN_MIN]:
                highest = max(highest, memory.recent[task, place])
        plan[task] = min(highest, state.parallelism[task])
