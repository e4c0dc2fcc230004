"""Decision points of the agents: advance the simulator until a decision is needed.

At an event the agents place jobs if one of the observed pending jobs fits. If they may preempt and
jobs still wait, they reconsider: all jobs are ranked, running jobs of lower rank are stopped, and
the agents place jobs once more. Between decisions the costs in the reward accumulate. The state
also keeps what the observation needs beyond the simulator: past speeds, and run times by user.

With a guide the agents correct a rule instead. They decide when the rule would: they reconsider all
jobs when it replans, and else place jobs if any could start.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import GIVEN, SPEED_PRICE
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.features import static_features
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import fits
from loadmaster.envs.gpu_scheduling.scheduling_pass import migrates
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance, update_speeds
from loadmaster.envs.gpu_scheduling.state import SimState, add_finished

# `counts`
SHOWN, RUNNING_JOBS, HISTORY_ROWS, PREEMPTS, PHASE, GUIDE, KEYED, COUNTS = range(8)
# SHOWN           rows of the observation in use
# RUNNING_JOBS    entries of `running` in use
# HISTORY_ROWS    rows of the history in use
# PREEMPTS        1: agents may stop running jobs
# PHASE           of the event: one of the following
# GUIDE           ordering rule that the actions correct; 0: none
# KEYED           jobs from this one on arrived since the last action

_NOT_LISTED = -2  # in `row_of`, while `running` is updated

NOT_STARTED, PLACING, RECONSIDERING, PLACING_AGAIN, COMPLETED = 0, 1, 2, 3, 4
PHASES = {PLACING: "placing", RECONSIDERING: "reconsidering", PLACING_AGAIN: "placing again"}

# `sums`: since the start of the episode, apart from FEE_RATE.
FEE_RATE, JOB_S, FEE, PUBLISHED, SUMS = range(5)
# FEE_RATE        dollars per second of all running jobs
# JOB_S           seconds in the system, summed over jobs
# FEE             dollars
# PUBLISHED       the published rewards

# `users`
JOBS_DONE, LOG_RUN = 0, 1
# LOG_RUN         mean of log(1 + minutes on machines) over the user's finished jobs


class DecisionState(NamedTuple):
    """Q rows of pending jobs, M machines, N jobs, T past decisions, U users."""

    counts: NDArray[np.int64]  # (COUNTS,)
    sums: NDArray[np.float64]  # (SUMS,)
    shown: NDArray[np.int64]  # (Q,) the job behind each row of the observation
    running: NDArray[np.int64]  # (N,) the running jobs, in any order
    affinity: NDArray[np.float64]  # (Q, M) the placement agent's last action
    row_of: NDArray[np.int64]  # (N,) row of an observed job; with a guide NONE for the others
    priority: NDArray[np.float64]  # (Q,) with a guide, the ordering agent's last action
    start_priority: NDArray[np.float64]  # (N,) with a guide, that of each job before it started
    rule_priority: NDArray[np.float64]  # (Q,) and minus the logarithms of the guide's keys
    replan_s: NDArray[np.float64]  # (1,) the guide's replanning interval
    free: NDArray[np.int64]  # (M, 2) scratch for preemption
    history_s: NDArray[np.float64]  # (T,) times of the history's rows, latest first
    history_speed: NDArray[np.float32]  # (T, M) mean speed of the instances on a machine
    noted: NDArray[np.bool_]  # (T, M) whether any instance ran
    users: NDArray[np.float64]  # (U, 2)
    static_features: NDArray[np.float32]  # (N, JOB_FEATURES)


def new_decision_state(
    settings: GpuSchedulingSettings, cluster: Cluster, jobs: Jobs
) -> DecisionState:
    """Create the state before the first arrival."""
    queue, past = settings.max_queue, settings.history
    machines, count = len(cluster.rack), len(jobs.arrival_s)
    decision = DecisionState(
        counts=np.zeros(COUNTS, np.int64),
        sums=np.zeros(SUMS),
        shown=np.zeros(queue, np.int64),
        running=np.zeros(count, np.int64),
        affinity=np.zeros((queue, machines)),
        row_of=np.zeros(count, np.int64),
        priority=np.zeros(queue),
        start_priority=np.zeros(count),
        rule_priority=np.zeros(queue),
        replan_s=np.zeros(1),
        free=np.zeros((machines, 2), np.int64),
        history_s=np.zeros(past),
        history_speed=np.zeros((past, machines), np.float32),
        noted=np.zeros((past, machines), np.bool_),
        users=np.zeros((int(jobs.user.max(initial=0)) + 1, 2)),
        static_features=static_features(cluster, jobs, settings.durations == "known"),
    )
    decision.counts[PREEMPTS] = settings.preempt
    return decision


@compiled
def advance_to_decision(
    state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState
) -> int:
    """Advance the simulator to the next decision; return the status.

    After GROW_TRACE, call it again with a larger trace.
    """
    while not needs_decision(state, cluster, jobs, decision):
        before_s, finished = state.times[cols.NOW], state.clock[cols.FINISHED]
        in_system = state.clock[cols.QUEUED] + state.clock[cols.RUNNING]
        status = advance(state, cluster, jobs, decision.counts[GUIDE] or GIVEN)
        if status != cols.DECIDE:
            return status
        passed_s = state.times[cols.NOW] - before_s
        decision.sums[JOB_S] += in_system * passed_s
        decision.sums[FEE] += decision.sums[FEE_RATE] * passed_s
        if state.clock[cols.FINISHED] > finished:
            remove_finished(state, jobs, decision)
        decision.counts[PHASE] = NOT_STARTED
    return cols.DECIDE


@njit_inline
def needs_decision(state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState) -> bool:
    """Whether a decision is needed at the present time; if so, extend the history of speeds."""
    if not _next_phase(state, cluster, jobs, decision):
        return False
    if state.times[cols.NOW] != decision.history_s[0] or decision.counts[HISTORY_ROWS] == 0:
        _record_speeds(state, decision)
    return True


@njit_inline
def _next_phase(state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState) -> bool:
    """Enter the next phase of the present event; return whether it needs a decision."""
    phase, waiting = decision.counts[PHASE], state.clock[cols.QUEUED]
    # COMPLETED remains until time advances, also if `advance` returns GROW_TRACE first.
    decision.counts[PHASE] = COMPLETED
    if decision.counts[GUIDE] > 0:
        decision.counts[PHASE] = _guided_phase(state, decision, phase)
        return bool(decision.counts[PHASE] != COMPLETED)
    if waiting == 0 or phase in (PLACING_AGAIN, COMPLETED):
        return False
    if phase in (NOT_STARTED, RECONSIDERING) and _can_start(state, len(decision.shown)):
        decision.counts[PHASE] = PLACING if phase == NOT_STARTED else PLACING_AGAIN
        return True
    if phase == RECONSIDERING or decision.counts[PREEMPTS] == 0:
        return False
    if state.clock[cols.RUNNING] == 0 or waiting >= len(decision.shown):
        return False  # no row is left for a running job
    update_speeds(state, cluster, jobs)  # of jobs just started
    decision.counts[PHASE] = RECONSIDERING
    return True


@njit_inline
def _guided_phase(state: SimState, decision: DecisionState, phase: int) -> int:
    """The phase in which the guide would act now: RECONSIDERING, PLACING or COMPLETED."""
    waiting, now = state.clock[cols.QUEUED], state.times[cols.NOW]
    if phase not in (NOT_STARTED, PLACING) or state.clock[cols.NEXT_JOB] == 0:
        return COMPLETED
    if waiting == 0 and not migrates(state, SPEED_PRICE):
        return COMPLETED
    if now >= state.times[cols.NEXT_REPLAN]:
        if waiting + state.clock[cols.RUNNING] > 0:
            return RECONSIDERING
        state.times[cols.NEXT_REPLAN] = now + decision.replan_s[0]
        return COMPLETED
    is_new = phase == NOT_STARTED and _can_start(state, waiting)
    return PLACING if is_new else COMPLETED


@njit_internal
def list_running(state: SimState, decision: DecisionState) -> None:
    """Update `running` after a guided action, which may stop, start and move jobs."""
    count = decision.counts[RUNNING_JOBS]
    decision.counts[RUNNING_JOBS], decision.sums[FEE_RATE] = 0, 0.0
    for place in range(state.clock[cols.STARTS]):
        decision.row_of[state.jobs[place, cols.STARTED]] = _NOT_LISTED
    for place in range(count):
        _list_if_running(state, decision, decision.running[place])
    for place in range(state.clock[cols.STARTS]):
        job = state.jobs[place, cols.STARTED]
        if decision.row_of[job] == _NOT_LISTED:
            _list_if_running(state, decision, job)


@njit_internal
def _list_if_running(state: SimState, decision: DecisionState, job: int) -> None:
    decision.row_of[job] = cols.NONE
    if state.jobs[job, cols.ROWS_USED] > 0:
        decision.running[decision.counts[RUNNING_JOBS]] = job
        decision.counts[RUNNING_JOBS] += 1
        decision.sums[FEE_RATE] += state.progress[job, cols.FEE_RATE]


@njit_internal
def list_started(state: SimState, decision: DecisionState) -> None:
    """Add the jobs that the last scheduling pass started to `running`."""
    for place in range(state.clock[cols.STARTS]):
        job = state.jobs[place, cols.STARTED]
        decision.running[decision.counts[RUNNING_JOBS]] = job
        decision.counts[RUNNING_JOBS] += 1
        decision.sums[FEE_RATE] += state.progress[job, cols.FEE_RATE]


@njit_internal
def remove_finished(state: SimState, jobs: Jobs, decision: DecisionState) -> None:
    """Remove finished and preempted jobs from `running`, and sum the fee rates of the others."""
    rate, place = 0.0, 0
    while place < decision.counts[RUNNING_JOBS]:
        job = decision.running[place]
        if state.jobs[job, cols.ROWS_USED] > 0:
            rate += state.progress[job, cols.FEE_RATE]
            place += 1
            continue
        if not np.isnan(state.progress[job, cols.FINISHED_S]):
            add_finished(decision.users, jobs.user[job], state.progress[job, cols.RUN_S])
        decision.counts[RUNNING_JOBS] -= 1
        decision.running[place] = decision.running[decision.counts[RUNNING_JOBS]]
    decision.sums[FEE_RATE] = rate


@njit_inline
def _can_start(state: SimState, rows: int) -> bool:
    """Whether one of the first `rows` pending jobs fits."""
    end, row = len(state.jobs) - 1, 0
    job = state.jobs[end, cols.LATER]
    while job != end and row < rows:
        if fits(state, state.jobs[job, cols.GROUP]):
            return True
        job = state.jobs[job, cols.LATER]
        row += 1
    return False


@njit_inline
def _record_speeds(state: SimState, decision: DecisionState) -> None:
    """Insert the mean speed of the instances on each machine as the first row of the history."""
    last = min(decision.counts[HISTORY_ROWS], len(decision.history_s) - 1)
    for row in range(last, 0, -1):
        decision.history_s[row] = decision.history_s[row - 1]
        for machine in range(len(state.free)):
            decision.history_speed[row, machine] = decision.history_speed[row - 1, machine]
            decision.noted[row, machine] = decision.noted[row - 1, machine]
    decision.counts[HISTORY_ROWS] = last + 1
    decision.history_s[0] = state.times[cols.NOW]
    for machine in range(len(state.free)):
        instances, speed = 0, 0.0
        row = state.machines[machine, cols.FIRST]
        while row != cols.NONE:
            count = state.rows[row, cols.COUNT]
            instances += count
            speed += count * state.progress[state.rows[row, cols.JOB], cols.RATE]
            row = state.rows[row, cols.NEXT]
        decision.noted[0, machine] = instances > 0
        decision.history_speed[0, machine] = speed / instances if instances > 0 else 0.0
