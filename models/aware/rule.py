"""The rule that AWARE starts from: estimates of the application, and the best plan by them.

A smaller memory limit restarts pods, so it comes with one replica more until the next decision,
as a rolling update with a surge of one. After an OOM or a p99 far beyond the SLO, requests have
queued up, and pods get the memory that all their workers need.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.actions import plan_of_action, set_plan
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    NOW,
    P99_S,
    PLAN_COLUMNS,
    REPLICAS,
    ROW_COLUMNS,
    S_OOMS,
    SLO,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.estimates import (
    SURGE,
    forecast_of,
    memory_is_known,
    update_estimates,
    write_application,
)
from loadmaster.models.aware.plan_choice import Margins, choose_plan, eviction_cost
from loadmaster.models.aware.pod_model import full_memory

_LATE = 4.0  # times the SLO: a p99 that only queued requests have
_KILLED = 1.5  # memory after an OOM, relative to that before
_NEVER = 10.0  # reward that no plan gains


class Scratch(NamedTuple):
    """Tables of one decision."""

    row: Floats  # of a latency
    now: Floats  # plan that a new one is compared with
    plan: Floats  # the new one


def scratch() -> Scratch:
    return Scratch(np.zeros(ROW_COLUMNS), np.zeros(PLAN_COLUMNS), np.zeros(PLAN_COLUMNS))


@compiled
def carry_out(constants: SimConstants, state: SimState, plan: Floats) -> None:
    """Set a plan, and simulate the control step that follows."""
    set_plan(constants, state, plan[CPU], plan[MEMORY], plan[REPLICAS])
    advance(constants, state, STEP_INTERVALS)


@compiled
def carry_out_action(
    constants: SimConstants, state: SimState, action: NDArray[np.float32], plan: Floats
) -> None:
    """Carry out the plan that an action names, without the rule, and write it to `plan`."""
    plan[CPU], plan[MEMORY], plan[REPLICAS] = plan_of_action(constants, action)
    carry_out(constants, state, plan)


@compiled
def observe_step(
    constants: SimConstants,
    state: SimState,
    gain: float,
    estimates: Floats,
    app: Floats,
    tables: Scratch,
) -> None:
    """Update the estimates by the last control step, and write the application by them."""
    update_estimates(constants, state, gain, tables.row, estimates)
    step = state.clock[NOW] // STEP_INTERVALS - 1
    write_application(estimates, state.outcome[step, SLO], app)


@compiled
def plan_step(
    constants: SimConstants,
    state: SimState,
    margins: Margins,
    estimates: Floats,
    app: Floats,
    tables: Scratch,
) -> float:
    """Write the next plan to `tables` and return its expected reward."""
    step = state.clock[NOW] // STEP_INTERVALS - 1
    outcome, plan, now = state.outcome[step], tables.plan, tables.now
    low, high = constants.low, constants.high
    for column in range(PLAN_COLUMNS):
        now[column] = min(max(state.plan[column], low[column]), high[column])
    if estimates[SURGE] > 0:
        now[REPLICAS] = max(now[REPLICAS] - 1.0, low[REPLICAS])
    killed = outcome[S_OOMS] > 0
    late = outcome[P99_S] > _LATE * outcome[SLO]
    restart = margins.restart
    if killed or late:
        full = full_memory(constants, app)
        least = max(full, _KILLED * now[MEMORY]) if killed else full
        now[MEMORY] = max(now[MEMORY], min(least, high[MEMORY]))
    if killed or late or not memory_is_known(estimates):
        restart = _NEVER
    reward = choose_plan(
        constants,
        app,
        forecast_of(estimates),
        Margins(
            margins.load, margins.spread, margins.latency, margins.oom, margins.change, restart
        ),
        now,
        tables.row,
        plan,
    )
    estimates[SURGE] = 0.0
    smaller = plan[MEMORY] < (1.0 - constants.tolerance) * state.plan[MEMORY]
    evicting = eviction_cost(constants, plan[CPU], now[CPU])
    evicting += eviction_cost(constants, plan[MEMORY], now[MEMORY])
    if smaller or evicting > 0:
        plan[REPLICAS] = min(plan[REPLICAS] + 1.0, high[REPLICAS])
        if constants.in_place:
            plan[CPU] = max(plan[CPU], now[CPU])
        estimates[SURGE] = 1.0
    for column in (CPU, MEMORY):  # as `set_plan`: the service carries plans out without it
        if abs(plan[column] - state.plan[column]) <= constants.tolerance * state.plan[column]:
            plan[column] = min(max(state.plan[column], low[column]), high[column])
    return reward
