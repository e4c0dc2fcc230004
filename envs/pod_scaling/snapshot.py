"""Simulator states built from what a cluster reported of a real application.

`state_from_snapshot` fills the tables that `observe` and the rules read, so that the decision
service decides as the simulator does. Pods, nodes and queues are not part of a snapshot: such a
state can be observed and decided on, but not advanced.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.baselines import DOWN_MIN, MPA, MPA_USAGE, Baseline
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters
from loadmaster.envs.pod_scaling.baselines.memory import RuleState, new_rule_state
from loadmaster.envs.pod_scaling.baselines.rules import recommend
from loadmaster.envs.pod_scaling.episode import constants_of
from loadmaster.envs.pod_scaling.rewards import slo_preservation
from loadmaster.envs.pod_scaling.settings import (
    INTERVAL_S,
    STEP_INTERVALS,
    STEP_S,
    WARM_UP_STEPS,
    Discipline,
    PodScalingSettings,
    Routing,
)
from loadmaster.envs.pod_scaling.state import (
    APP_COLUMNS,
    CPU,
    END_PODS,
    MEMORY,
    NOW,
    P99_S,
    PODS,
    PRESERVED,
    R_LIMIT_CORES,
    R_LIMIT_MIB,
    R_PODS,
    R_READY,
    R_SEEN,
    REPLICAS,
    S_ARRIVED,
    S_OOMS,
    S_RESTARTS,
    SLO,
    SLO_S,
    Floats,
    SimConstants,
    SimState,
    new_tables,
)

REPORTS_MAX, STEPS_MAX = 240, 60  # of a snapshot: an hour
# Rules of two turns alternate: vertical at an even number of control steps. Before the first
# report are as many intervals as the warm-up of an episode, at whose end rules set a first plan.
_TURNS = 2 * STEP_INTERVALS
_BEFORE = WARM_UP_STEPS * STEP_INTERVALS + STEP_INTERVALS
_INTERVALS = _TURNS * math.ceil((REPORTS_MAX + _BEFORE) / _TURNS)


@dataclass(frozen=True, eq=False)
class PodSnapshot:
    """An application at a decision: R intervals and S control steps, the oldest first.

    `reports` has the columns of `SimState.reports`. The last row is the interval that ended now. A
    row whose R_SEEN is 0 has no metrics; its R_PODS and R_READY are known or NaN.
    """

    slo_s: float
    low: Floats  # (PLAN_COLUMNS,) bounds: cores, MiB, replicas
    high: Floats
    plan: Floats
    reports: Floats  # (R, REPORT_COLUMNS), 1 <= R <= REPORTS_MAX
    requests: Floats  # (S,) that arrived in a control step, 1 <= S <= STEPS_MAX
    p99_s: Floats  # (S,) 0 without requests
    restarts: Floats  # (S,)
    ooms: Floats  # (S,) containers killed for their memory
    routing: Routing = "random"
    discipline: Discipline = "ps"

    @property
    def constants(self) -> SimConstants:
        """Constants of the simulator, of which deciding needs bounds, tolerance and queues."""
        return _constants(self.routing, self.discipline)._replace(low=self.low, high=self.high)


def default_constants() -> SimConstants:
    """Constants of the default settings; not to be changed."""
    return _constants("random", "ps")


@cache
def _constants(routing: Routing, discipline: Discipline) -> SimConstants:
    return constants_of(PodScalingSettings(routing=routing, discipline=discipline))


def state_from_snapshot(snapshot: PodSnapshot) -> tuple[SimConstants, SimState]:
    """Constants and a state that can be observed and decided on.

    Of `outcome` it has requests, p99, SLO preservation, SLO, restarts and OOMs of the control steps
    of the snapshot. Rows of `reports` and `outcome` before the snapshot are 0; the step before the
    first one has its requests, so that the load did not change.
    """
    return snapshot.constants, _state_at(snapshot, _INTERVALS)


def _state_at(snapshot: PodSnapshot, intervals: int) -> SimState:
    """A state after so many intervals, of which the snapshot's are the last."""
    steps, given = intervals // STEP_INTERVALS, len(snapshot.reports)
    tables = new_tables(steps, pods=1, nodes=1)
    reports, outcome = tables["reports"], tables["outcome"]
    reports[-given:] = np.nan_to_num(snapshot.reports)
    reports[reports[:, R_SEEN] <= 0, R_READY + 1 :] = 0.0
    known = len(snapshot.requests)
    outcome[-known:, S_ARRIVED] = snapshot.requests
    outcome[-known - 1, S_ARRIVED] = snapshot.requests[0]
    outcome[-known:, P99_S] = snapshot.p99_s
    outcome[-known:, SLO] = snapshot.slo_s
    outcome[-known:, S_RESTARTS] = snapshot.restarts
    outcome[-known:, S_OOMS] = snapshot.ooms
    for row in outcome[-known:]:
        row[PRESERVED] = slo_preservation(row[SLO], row[P99_S])
    clock, totals = tables["clock"], tables["totals"]
    clock[NOW], tables["plan"][:] = intervals, snapshot.plan
    counts = snapshot.reports[~np.isnan(snapshot.reports[:, R_PODS])]
    clock[PODS] = counts[-1, R_PODS] if len(counts) else snapshot.plan[REPLICAS]
    totals[END_PODS] = counts[-1, R_READY] if len(counts) else snapshot.plan[REPLICAS]
    apps = np.zeros((1, APP_COLUMNS))
    apps[0, SLO_S] = snapshot.slo_s
    rates = outcome[:, S_ARRIVED] / STEP_S
    return SimState(
        **tables,  # type: ignore[arg-type]
        apps=apps,
        app_of=np.zeros(steps, np.int64),
        arrivals=np.zeros(intervals, np.int64),
        rates=rates,
        levels=np.zeros(steps),
        phases=np.zeros(steps),
        peaks=np.zeros(intervals),
        delays=np.full(intervals, _delay(snapshot), np.int64),
        missing=np.zeros(intervals),
    )


def _delay(snapshot: PodSnapshot) -> int:
    """Age of the newest report in intervals, from 1 for that which ended now, at most a step."""
    seen = np.flatnonzero(snapshot.reports[:, R_SEEN] > 0)
    age = len(snapshot.reports) - int(seen[-1]) if len(seen) else STEP_INTERVALS
    return min(age, STEP_INTERVALS)


def snapshot_of(
    constants: SimConstants, state: SimState, intervals: int = REPORTS_MAX, steps: int = STEPS_MAX
) -> PodSnapshot:
    """What an operator of the simulated application knows at a decision.

    `intervals` and `steps` are the most rows. Reports that have not arrived, or are missing for all
    pods, have no metrics; the numbers of pods are always known.
    """
    now = int(state.clock[NOW])
    begin, step = max(now - intervals, 0), now // STEP_INTERVALS
    reports = state.reports[begin:now].copy()
    arrived = max(now - int(state.delays[min(now, len(state.delays) - 1)]), 0)
    reports[arrived + 1 - begin :, R_SEEN] = 0.0
    reports[reports[:, R_SEEN] <= 0, R_READY + 1 :] = 0.0
    rows = state.outcome[max(step - steps, 0) : step]
    return PodSnapshot(
        slo_s=float(rows[-1, SLO]),
        low=constants.low,
        high=constants.high,
        plan=state.plan.copy(),
        reports=reports,
        requests=rows[:, S_ARRIVED].copy(),
        p99_s=rows[:, P99_S].copy(),
        restarts=rows[:, S_RESTARTS].copy(),
        ooms=rows[:, S_OOMS].copy(),
    )


def plan_of_rule(
    snapshot: PodSnapshot, baseline: Baseline, vertical_turn: bool | None = None
) -> Floats:
    """(PLAN_COLUMNS,) the plan that a rule sets now.

    What a rule remembers in an episode is built again from the reports: it is run on each interval
    with the pods of then, from the first that has reports of a whole control step before it. This
    differs from a rule in an episode in these points:

    - samples before the snapshot are not in the histograms of VPA, and count for no confidence;
    - how old the newest report was at an earlier interval is not known: as old as now;
    - an earlier plan is what the pods were then;
    - a target in cores refers to the pods of the first report, not to those of the first plan;
    - MPA does not count control steps: it is vertical if that changes a limit, else horizontal.
      `vertical_turn` chooses;
    - with reports of less than `down_min` no pods are removed, since the highest recommendation of
      these minutes is not known.
    """
    turns: tuple[bool, ...] = (True, False) if vertical_turn is None else (vertical_turn,)
    if baseline.rule not in (MPA, MPA_USAGE):
        turns = (True,)
    plan = snapshot.plan
    for vertical in turns:
        plan = _plan_at(snapshot, baseline, _INTERVALS + (0 if vertical else STEP_INTERVALS))
        if (plan[[CPU, MEMORY]] != snapshot.plan[[CPU, MEMORY]]).any():
            break
    if len(snapshot.reports) * INTERVAL_S < 60 * baseline.values[DOWN_MIN]:
        kept = max(plan[REPLICAS], snapshot.plan[REPLICAS])
        plan[REPLICAS] = min(kept, snapshot.high[REPLICAS])
    return plan


def _plan_at(snapshot: PodSnapshot, baseline: Baseline, intervals: int) -> Floats:
    """The plan of a rule after so many intervals, by which rules of two turns choose."""
    state = _state_at(snapshot, intervals)
    memory, seen = new_rule_state(state), state.reports[state.reports[:, R_SEEN] > 0]
    if len(seen) and seen[0, R_LIMIT_CORES] > 0:
        memory.base[CPU] = seen[0, R_LIMIT_CORES] / max(seen[0, R_PODS], 1.0)
    begin = intervals - len(snapshot.reports)
    _replay_rule(
        baseline.rule, baseline.values, snapshot.constants, state, memory, snapshot.plan, begin
    )
    return state.plan


@compiled
def _replay_rule(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    plan: Floats,
    begin: int,
) -> None:
    """Run a rule on the intervals from `begin` on, and now with `plan`; `state` is changed."""
    clock, totals, now = state.clock, state.totals, state.clock[NOW]
    pods, ready, cores, mib = clock[PODS], totals[END_PODS], plan[CPU], plan[MEMORY]
    for interval in range(begin + 1, now):
        last = state.reports[interval - 1]
        if last[R_SEEN] > 0 and last[R_PODS] > 0:
            cores, mib = last[R_LIMIT_CORES] / last[R_PODS], last[R_LIMIT_MIB] / last[R_PODS]
        if interval < begin + STEP_INTERVALS or last[R_PODS] <= 0 or min(cores, mib) <= 0:
            continue
        clock[NOW], clock[PODS], totals[END_PODS] = interval, int(last[R_PODS]), last[R_READY]
        state.plan[CPU], state.plan[MEMORY], state.plan[REPLICAS] = cores, mib, last[R_PODS]
        recommend(rule, parameters, constants, state, memory)
    clock[NOW], clock[PODS], totals[END_PODS] = now, pods, ready
    for column in range(len(plan)):
        state.plan[column] = plan[column]
    recommend(rule, parameters, constants, state, memory)
