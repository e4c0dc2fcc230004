"""Simulator states built from a description of a real job at a decision.

`state_from_snapshot` fills the tables that `observe` and the rules read, so that the decision
service decides as the simulator does. Queues, checkpoints and latencies are not part of a snapshot:
such a state can be observed and decided on, but not advanced.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.stream_scaling.actions import write_plan
from loadmaster.envs.stream_scaling.baselines import DOWN_MIN, INTERVAL, WINDOW, Baseline
from loadmaster.envs.stream_scaling.baselines.formulas import Parameters
from loadmaster.envs.stream_scaling.baselines.rules import (
    REMEMBERED,
    RuleState,
    new_rule_state,
    recommend,
)
from loadmaster.envs.stream_scaling.episode import constants_of
from loadmaster.envs.stream_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.stream_scaling.restart import fit_plan
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.state import (
    DOWN_FOR,
    METRIC_COLUMNS,
    MINUTE,
    PARALLELISM,
    RESTARTED_AT,
    JobTables,
    SimConstants,
    SimState,
    new_state,
)

Metrics = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class JobSnapshot:
    """A job of N tasks, and what they reported for the last R minutes, the oldest first."""

    job: JobTables
    levels: Ints  # (N,) the longest path from a source
    metrics: Metrics  # (R, N, METRIC_COLUMNS); NaN: a minute without a report
    parallelism: Ints  # (N,) now
    week_minute: int  # of the last report
    restart_age_min: int | None  # None: there was none
    down_for_min: float  # how long the last restart took
    plan_limit: int  # most instances of the job

    @property
    def constants(self) -> SimConstants:
        """Constants of the simulator, of which deciding needs the limit of the plan alone."""
        return constants_of(StreamScalingSettings(), key=0)._replace(plan_limit=self.plan_limit)


def state_from_snapshot(snapshot: JobSnapshot, minutes: int = 0) -> SimState:
    """Build a state with reports of `minutes` or more; those before the snapshot are NaN."""
    metrics = snapshot.metrics
    if len(metrics) < minutes:
        before = (minutes - len(metrics), len(snapshot.parallelism), METRIC_COLUMNS)
        metrics = np.concatenate([np.full(before, np.nan, np.float32), metrics])
    state = new_state(snapshot.job, np.zeros((1, 1)), snapshot.parallelism, len(metrics))
    age, ring = snapshot.restart_age_min, len(metrics)
    # A multiple of the ring's length, so that its rows are in order of time; the restart is at
    # minute 0 or later.
    state.clock[MINUTE] = ring * (1 + -(-(age or 0) // ring))
    state.clock[RESTARTED_AT] = -1 if age is None else state.clock[MINUTE] - age
    state.times[DOWN_FOR] = snapshot.down_for_min
    return state._replace(metrics=metrics)


def observe_snapshot(snapshot: JobSnapshot, history: int) -> Observation:
    """The observation of the last `history` minutes; those without a report are not present."""
    # One more: the pending records of the first are compared with those before.
    state = state_from_snapshot(snapshot, history + 1)
    view = blank_observation(snapshot.job, snapshot.levels, history)
    first = snapshot.week_minute - (int(state.clock[MINUTE]) - 1)
    observe(snapshot.job, state, first, view, history)
    missing = np.isnan(state.metrics[-history:, 0, PARALLELISM])
    view.snapshots[missing] = 0
    view.times[missing] = 0
    return view


def plan_of_action(snapshot: JobSnapshot, action: NDArray[np.float32], max_factor: float) -> Ints:
    """(N,) instances after an action as the environment takes it; see `apply_action`."""
    plan = snapshot.parallelism.copy()
    _fitted_action(snapshot.job, snapshot.constants, snapshot.parallelism, action, max_factor, plan)
    return plan


@compiled
def _fitted_action(
    job: JobTables,
    constants: SimConstants,
    parallelism: Ints,
    action: NDArray[np.float32],
    max_factor: float,
    plan: Ints,
) -> None:
    if write_plan(parallelism, action, max_factor, plan) and action[0] > 0:
        fit_plan(job, constants, plan)


def plan_of_rule(snapshot: JobSnapshot, baseline: Baseline) -> Ints | None:
    """(N,) instances that a rule recommends; None if it does not decide, as after a restart.

    A rule that compares its recommendations of `down_min` is first run on these minutes, with the
    instances of then; with fewer minutes it removes no instances. Of restarts before the last one
    it knows nothing.
    """
    values, plan = list(baseline.values), snapshot.parallelism.copy()
    interval, values[INTERVAL] = max(int(values[INTERVAL]), 1), 1.0  # it decides now
    # Minutes before the snapshot are NaN, which means over a window leave out.
    state = state_from_snapshot(snapshot, len(snapshot.metrics) + int(values[WINDOW]))
    decided = _replay_rule(
        baseline.rule, tuple(values), snapshot.job, snapshot.constants, state,
        new_rule_state(len(plan)), min(int(values[DOWN_MIN]), len(snapshot.metrics)), interval,
        bool(len(snapshot.metrics) >= values[DOWN_MIN]), plan,
    )  # fmt: skip
    return plan if decided else None


@compiled
def _replay_rule(
    rule: int,
    parameters: Parameters,
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    minutes: int,
    interval: int,
    may_fall: bool,
    plan: Ints,
) -> bool:
    """Run a rule every `interval` of the last `minutes`, and now; `state` is changed."""
    now, restarted, decided = state.clock[MINUTE], state.clock[RESTARTED_AT], False
    earlier = min(max(minutes - 1, 0) // interval, REMEMBERED - 1)
    for place in range(earlier, -1, -1):
        minute = now - place * interval
        last = state.metrics[(minute - 1) % len(state.metrics)]
        if last[0, PARALLELISM] != last[0, PARALLELISM]:  # no report
            continue
        state.clock[MINUTE] = minute
        state.clock[RESTARTED_AT] = restarted if restarted <= minute else -1
        for task in range(len(plan)):
            state.parallelism[task] = int(last[task, PARALLELISM])
        decided = recommend(rule, parameters, job, constants, state, memory, plan)
    if decided:
        for task in range(len(plan)):
            if not may_fall:
                plan[task] = max(plan[task], state.parallelism[task])
        fit_plan(job, constants, plan)
    return decided
