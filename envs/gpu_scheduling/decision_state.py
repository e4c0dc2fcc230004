"""What lies on the scheduler's desk between two decisions, and the way from one to the next.

At an event, the agents are asked to place jobs if a pending one that is shown could start. Where
they may preempt and jobs are left waiting, they are asked to reconsider: all jobs in the system are
put in one order, and those that are in the way of others before them are stopped; then the agents
place jobs once more. All else happens without asking; meanwhile the costs that the reward speaks
of are added up, and the desk keeps what an operator can see and the simulator has no use for:
speeds that were observed, and how long the finished jobs of each user ran.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.features import lasting_features
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.shapes import fits
from loadmaster.envs.gpu_scheduling.simulator import advance, settle
from loadmaster.envs.gpu_scheduling.state import SimState

# `counts`
SHOWN, LISTED, NOTED, PREEMPTS, MOMENT = 0, 1, 2, 3, 4
COUNTS = 5
# SHOWN           rows of the observation in use
# LISTED          entries of `running` in use
# NOTED           rows of the history in use
# PREEMPTS        1: agents may stop running jobs
# MOMENT          what is asked for, or was last: one of the following

NOTHING, PLACING, RECONSIDERING, PLACING_AGAIN, SETTLED = 0, 1, 2, 3, 4
# NOTHING         nothing was asked yet at this event
# SETTLED         nothing more is
PHASES = {PLACING: "placing", RECONSIDERING: "reconsidering", PLACING_AGAIN: "placing again"}

# `sums`, all of them since the episode began, but the first.
FEE_RATE, JOB_S, FEE, PUBLISHED = 0, 1, 2, 3
SUMS = 4
# FEE_RATE        dollars a second of all running jobs
# JOB_S           seconds that jobs spent in the system, over all jobs
# FEE             dollars, up to now
# PUBLISHED       the published rewards

# `users`
JOBS_DONE, LOG_RUN = 0, 1
# LOG_RUN         the mean of log(1 + minutes on machines) over the user's finished jobs


class DecisionState(NamedTuple):
    """Q rows of pending jobs, M machines, N jobs, T past decisions, U users."""

    counts: NDArray[np.int64]  # (COUNTS,)
    sums: NDArray[np.float64]  # (SUMS,)
    shown: NDArray[np.int64]  # (Q,) the job behind each row of the observation
    running: NDArray[np.int64]  # (N,) the running jobs, in any order
    affinity: NDArray[np.float64]  # (Q, M) the placement agent's last word
    row_of: NDArray[np.int64]  # (N,) the row of a job that is shown
    free: NDArray[np.int64]  # (M, 2) scratch, of those who make way
    noted_s: NDArray[np.float64]  # (T,) when each row of the history was noted; the latest first
    noted_speed: NDArray[np.float32]  # (T, M)
    noted: NDArray[np.bool_]  # (T, M)
    users: NDArray[np.float64]  # (U, 2)
    facts: NDArray[np.float32]  # (N, JOB_FEATURES) what an observation tells of a job at any time


def new_decision_state(
    settings: GpuSchedulingSettings, cluster: Cluster, jobs: Jobs
) -> DecisionState:
    """As it is before the first arrival."""
    queue, past = settings.max_queue, settings.history
    machines, count = len(cluster.rack), len(jobs.arrival_s)
    desk = DecisionState(
        counts=np.zeros(COUNTS, np.int64),
        sums=np.zeros(SUMS),
        shown=np.zeros(queue, np.int64),
        running=np.zeros(count, np.int64),
        affinity=np.zeros((queue, machines)),
        row_of=np.zeros(count, np.int64),
        free=np.zeros((machines, 2), np.int64),
        noted_s=np.zeros(past),
        noted_speed=np.zeros((past, machines), np.float32),
        noted=np.zeros((past, machines), np.bool_),
        users=np.zeros((int(jobs.user.max(initial=0)) + 1, 2)),
        facts=lasting_features(cluster, jobs, settings.durations == "known"),
    )
    desk.counts[PREEMPTS] = settings.preempt
    return desk


@compiled
def advance_to_decision(state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState) -> int:
    """Let time pass until there is something to decide; the status.

    Where the trace is full it may be called again with a larger one.
    """
    while not is_asked(state, cluster, jobs, desk):
        before_s, finished = state.times[at.NOW], state.clock[at.FINISHED]
        in_system = state.clock[at.QUEUED] + state.clock[at.RUNNING]
        status = advance(state, cluster, jobs, rules.GIVEN)
        if status != at.DECIDE:
            return status
        passed_s = state.times[at.NOW] - before_s
        desk.sums[JOB_S] += in_system * passed_s
        desk.sums[FEE] += desk.sums[FEE_RATE] * passed_s
        if state.clock[at.FINISHED] > finished:
            strike_off(state, jobs, desk)
        desk.counts[MOMENT] = NOTHING
    return at.DECIDE


@njit_inline
def is_asked(state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState) -> bool:
    """Whether there is something to decide now, without time passing; then speeds are noted."""
    if not _goes_on(state, cluster, jobs, desk):
        return False
    if state.times[at.NOW] != desk.noted_s[0] or desk.counts[NOTED] == 0:
        _note_speeds(state, desk)
    return True


@njit_inline
def _goes_on(state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState) -> bool:
    """Whether there is something to decide, or more of it, at the event that was reached."""
    moment, waiting = desk.counts[MOMENT], state.clock[at.QUEUED]
    # It stays so until time has passed: a trace that is full must not open the event anew.
    desk.counts[MOMENT] = SETTLED
    if waiting == 0 or moment in (PLACING_AGAIN, SETTLED):
        return False
    if moment in (NOTHING, RECONSIDERING) and _can_start(state, len(desk.shown)):
        desk.counts[MOMENT] = PLACING if moment == NOTHING else PLACING_AGAIN
        return True
    if moment == RECONSIDERING or desk.counts[PREEMPTS] == 0:
        return False
    if state.clock[at.RUNNING] == 0 or waiting >= len(desk.shown):
        return False  # no running job would be shown
    settle(state, cluster, jobs)  # those just started have a speed that can be told
    desk.counts[MOMENT] = RECONSIDERING
    return True


@njit_internal
def list_started(state: SimState, desk: DecisionState) -> None:
    """Take up the jobs that the epoch just held has started."""
    for place in range(state.clock[at.STARTS]):
        job = state.jobs[place, at.STARTED]
        desk.running[desk.counts[LISTED]] = job
        desk.counts[LISTED] += 1
        desk.sums[FEE_RATE] += state.progress[job, at.FEE_RATE]


@njit_internal
def strike_off(state: SimState, jobs: Jobs, desk: DecisionState) -> None:
    """Take jobs that run no more off the list; what the others cost is added up afresh."""
    rate, place = 0.0, 0
    while place < desk.counts[LISTED]:
        job = desk.running[place]
        if state.jobs[job, at.ROWS_USED] > 0:
            rate += state.progress[job, at.FEE_RATE]
            place += 1
            continue
        if not np.isnan(state.progress[job, at.FINISHED_S]):
            _learn_of(desk, jobs.user[job], state.progress[job, at.RUN_S])
        desk.counts[LISTED] -= 1
        desk.running[place] = desk.running[desk.counts[LISTED]]
    desk.sums[FEE_RATE] = rate


@njit_internal
def _learn_of(desk: DecisionState, user: int, run_s: float) -> None:
    """A job of this user is done."""
    desk.users[user, JOBS_DONE] += 1
    apart = np.log1p(run_s / 60) - desk.users[user, LOG_RUN]
    desk.users[user, LOG_RUN] += apart / desk.users[user, JOBS_DONE]


@njit_inline
def _can_start(state: SimState, rows: int) -> bool:
    """Whether one of the first `rows` pending jobs fits."""
    end, row = len(state.jobs) - 1, 0
    job = state.jobs[end, at.LATER]
    while job != end and row < rows:
        if fits(state, state.jobs[job, at.GROUP]):
            return True
        job = state.jobs[job, at.LATER]
        row += 1
    return False


@njit_inline
def _note_speeds(state: SimState, desk: DecisionState) -> None:
    """Put the speed of what runs on each machine, mean over its instances, before the history."""
    last = min(desk.counts[NOTED], len(desk.noted_s) - 1)
    for row in range(last, 0, -1):
        desk.noted_s[row] = desk.noted_s[row - 1]
        for machine in range(len(state.free)):
            desk.noted_speed[row, machine] = desk.noted_speed[row - 1, machine]
            desk.noted[row, machine] = desk.noted[row - 1, machine]
    desk.counts[NOTED] = last + 1
    desk.noted_s[0] = state.times[at.NOW]
    for machine in range(len(state.free)):
        instances, speed = 0, 0.0
        row = state.machines[machine, at.FIRST]
        while row != at.NONE:
            count = state.rows[row, at.COUNT]
            instances += count
            speed += count * state.progress[state.rows[row, at.JOB], at.RATE]
            row = state.rows[row, at.NEXT]
        desk.noted[0, machine] = instances > 0
        desk.noted_speed[0, machine] = speed / instances if instances > 0 else 0.0
