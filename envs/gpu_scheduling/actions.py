"""Apply the agents' actions: priorities and affinities."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import scheduling_pass as passes
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import AFFINITY, GIVEN, SPEED_PRICE
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import PlacementPreferences
from loadmaster.envs.gpu_scheduling.queues import rekey
from loadmaster.envs.gpu_scheduling.rewards import Terms, published_reward
from loadmaster.envs.gpu_scheduling.state import SimState

ORDERING, PLACEMENT = "ordering", "placement"
AGENTS = (ORDERING, PLACEMENT)

_LAST = -1e300  # finite: a key of infinity would exclude the job
# Of corrections of a guide: keys and values remain finite.
_MOST_PRIORITY, _MOST_AFFINITY = 50.0, 1e6


@compiled
def apply_action(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision: DecisionState,
    terms: Terms,
    priority: NDArray[np.float32],
    affinity: NDArray[np.float32],
) -> bool:
    """Apply the actions to the current decision; return whether they were legal.

    Placing starts jobs by descending priority; a gang fills machines by descending affinity.
    Reconsidering stops running jobs whose resources are needed by jobs with a higher priority. Jobs
    that are not shown are left alone. Illegal numbers are replaced: a priority that is not finite
    by the lowest, an affinity that is NaN by minus infinity. With a guide they correct it.
    """
    if decision.counts[decisions.GUIDE] > 0:
        return _correct_guide(state, cluster, jobs, decision, priority, affinity)
    legal, shown = True, decision.counts[decisions.SHOWN]
    if decision.counts[decisions.PREEMPTS] == 1:
        passes.clear_priorities(state, jobs)
        for place in range(state.clock[cols.RUNNING]):
            state.key[state.event_heap[place]] = -np.inf  # protects jobs that are not shown
    for row in range(shown):
        value = float(priority[row])
        if not np.isfinite(value):
            legal, value = False, _LAST
        # Without preemption jobs stay shown until they start, so the others have no priority.
        if state.jobs[decision.shown[row], cols.ROWS_USED] > 0:
            state.key[decision.shown[row]] = -value
        else:
            rekey(state, jobs, decision.shown[row], -value)
        for machine in range(affinity.shape[1]):
            drawn = float(affinity[row, machine])
            if np.isnan(drawn):
                legal, drawn = False, -np.inf
            decision.affinity[row, machine] = drawn
    if decision.counts[decisions.PHASE] == decisions.RECONSIDERING:
        if passes.preempt_lower_ranked(state, cluster, jobs, decision.free) > 0:
            decisions.remove_finished(state, jobs, decision)
        return legal
    none = decision.priority[:0]
    preferences = PlacementPreferences(decision.affinity, decision.row_of, none, none)
    passes.run_scheduling_pass(state, cluster, jobs, GIVEN, AFFINITY, preferences)
    decisions.list_started(state, decision)
    reward = published_reward(state, cluster, jobs, decision, terms)
    decision.sums[decisions.PUBLISHED] += reward
    return legal


@njit_internal
def _correct_guide(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision: DecisionState,
    priority: NDArray[np.float32],
    affinity: NDArray[np.float32],
) -> bool:
    """Let the guide act with corrected keys and values; return whether the actions were legal.

    Reconsidering, it replans: keys of all jobs are computed anew, and jobs start, stop and move.
    Placing, only jobs that arrived since the last action get their keys.
    """
    legal, guide = True, decision.counts[decisions.GUIDE]
    for row in range(decision.counts[decisions.SHOWN]):
        value = float(priority[row])
        if not np.isfinite(value):
            legal, value = False, -_MOST_PRIORITY
        decision.priority[row] = min(max(value, -_MOST_PRIORITY), _MOST_PRIORITY)
        for machine in range(affinity.shape[1]):
            drawn = float(affinity[row, machine])
            if np.isnan(drawn):
                legal, drawn = False, -_MOST_AFFINITY
            decision.affinity[row, machine] = min(max(drawn, -_MOST_AFFINITY), _MOST_AFFINITY)
    by = PlacementPreferences(
        decision.affinity, decision.row_of, decision.priority, decision.start_priority
    )
    if decision.counts[decisions.PHASE] == decisions.RECONSIDERING:
        passes.replan(state, cluster, jobs, guide, SPEED_PRICE, by)
        state.times[cols.NEXT_REPLAN] = state.times[cols.NOW] + decision.replan_s[0]
    else:
        for row in range(decision.counts[decisions.SHOWN]):
            job = decision.shown[row]
            if job >= decision.counts[decisions.KEYED]:
                decision.start_priority[job] = decision.priority[row]
                rekey(state, jobs, job, state.key[job] * np.exp(-decision.priority[row]))
        passes.run_scheduling_pass(state, cluster, jobs, guide, SPEED_PRICE, by)
    decision.counts[decisions.KEYED] = state.clock[cols.NEXT_JOB]
    decisions.list_running(state, decision)
    return legal


def check_action(
    actions: Mapping[str, NDArray[np.float32]], agent: str, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the action of one agent as a contiguous array, or raise InputError."""
    if agent not in actions:
        raise InputError(f"no action of agent {agent!r}; expected one of each of {AGENTS}")
    action = np.ascontiguousarray(actions[agent], np.float32)
    if action.shape != shape:
        raise InputError(f"action of {agent!r} has shape {action.shape}; expected {shape}")
    return action


def sample_legal_action(
    observation: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Draw normally distributed priorities and affinities."""
    shape = observation["held"].shape
    return {
        ORDERING: rng.standard_normal(shape[:1], np.float32),
        PLACEMENT: rng.standard_normal(shape, np.float32),
    }
