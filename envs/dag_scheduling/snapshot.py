"""Simulator states built from a description of a real cluster at a decision.

`state_from_snapshot` fills the tables that `observe` and `place` read, so that the decision
service decides as the simulator does. Events, random keys and single executors are not part of a
snapshot: such a state can be observed and acted on, but not advanced.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.placement import fits, schedulable, unassigned_tasks
from loadmaster.envs.dag_scheduling.rounds import place
from loadmaster.envs.dag_scheduling.state import NONE, SimState


@dataclass(frozen=True, eq=False)
class ClusterSnapshot:
    """C executor classes; J jobs in order of arrival; their S stages, job by job."""

    bank: JobTemplates  # a template for every job
    amount: Ints  # (C,) executors there are
    left: Ints  # (C,) of these, the ones to place
    capacity: NDArray[np.float64]  # (C, 2) CPU and memory
    members: Ints  # (J,) executors that belong to the job
    committed_in: Ints  # (J,) executors of others that are committed to it
    age_ms: Ints  # (J,)
    stages: Ints  # (S, STAGE_COLUMNS) as in SimState; CHOSEN 1: in this round
    source_job: int  # whose executors are to be placed, or NONE
    more_to_come: bool  # more jobs, or executors on their way to no job


def state_from_snapshot(snapshot: ClusterSnapshot) -> SimState:
    """Build a state in the middle of a round."""
    first_stage, stages = snapshot.bank.first_stage, snapshot.stages
    starts = first_stage.tolist()
    jobs, stride = len(starts) - 1, max(map(int.__sub__, starts[1:], starts))
    state = SimState(
        clock=np.zeros(cols.CLOCK_SIZE, np.int64),
        setup=np.zeros(cols.SETUP_SIZE, np.int64),
        arrivals=np.zeros((1, 2), np.int64),  # stands for all later jobs
        completed_ms=np.array([NONE]),
        order=np.arange(jobs),
        jobs=np.zeros((jobs, cols.JOB_COLUMNS), np.int64),
        stages=np.zeros((jobs * stride, cols.STAGE_COLUMNS), np.int64),
        executors=np.zeros((sum(snapshot.amount.tolist()), cols.EXECUTOR_COLUMNS), np.int64),
        tree=np.zeros(2, np.int64),
        left=snapshot.left.copy(),
        capacity=snapshot.capacity,
        amount=snapshot.amount,
        commit_first=np.array([NONE]),  # the one source, number 0
        commitments=np.zeros((sum(snapshot.left.tolist()) + 1, 4), np.int64),
        levels=np.zeros((0, 3), np.int64),
        trace=np.zeros((0, 4), np.int32),
        trace_ms=np.zeros((0, 2), np.int64),
    )
    state.setup[cols.STRIDE] = stride
    state.clock[cols.NEXT_JOB] = 0 if snapshot.more_to_come else 1
    state.clock[cols.SOURCE_JOB] = snapshot.source_job
    _fill(state, first_stage, stages, snapshot.members, snapshot.committed_in, snapshot.age_ms)
    return state


@compiled
def _fill(
    state: SimState,
    first_stage: Ints,
    stages: Ints,
    members: Ints,
    committed_in: Ints,
    age_ms: Ints,
) -> None:
    """Copy a snapshot's jobs and stages, its fields being the other arguments, into the state."""
    clock, jobs, stride = state.clock, len(members), state.setup[cols.STRIDE]
    for job in range(jobs):
        clock[cols.NOW] = max(clock[cols.NOW], age_ms[job])
    clock[cols.ACTIVE] = jobs
    clock[cols.ROUND] = 1
    clock[cols.HELD_EXECUTOR] = NONE
    chosen = False
    for job in range(jobs):
        facts, first, end = state.jobs[job], first_stage[job], first_stage[job + 1]
        facts[cols.TEMPLATE] = facts[cols.NUMBER] = job
        facts[cols.ARRIVAL] = clock[cols.NOW] - age_ms[job]
        facts[cols.STAGES] = end - first
        facts[cols.MEMBERS] = members[job]
        facts[cols.COMMITTED_IN] = committed_in[job]
        for stage in range(first, end):
            given, row = stages[stage], job * stride + stage - first
            for column in range(cols.STAGE_COLUMNS):
                state.stages[row, column] = given[column]
            facts[cols.INCOMING] += given[cols.MOVING]
            clock[cols.PENDING] += given[cols.STARTED] - given[cols.FINISHED] + given[cols.MOVING]
            chosen |= given[cols.CHOSEN] != 0
    commitments = state.commitments
    for free in range(len(commitments)):
        commitments[free, cols.NEXT] = free + 1
    commitments[len(commitments) - 1, cols.NEXT] = NONE
    if chosen:
        # Some of the round's executors are placed already. A commitment, to any stage, allows the
        # rest to idle.
        state.commit_first[0], clock[cols.FREE_COMMIT] = 0, 1
        commitments[0, cols.NEXT] = NONE


@compiled
def placeable_executors(state: SimState, bank: JobTemplates, stage: int) -> int:
    """Count the round's executors that may be placed at the stage; 0 if it is not schedulable."""
    fitting = 0
    for kind in range(len(state.left)):
        if fits(state, bank, kind, stage):
            fitting += state.left[kind]
    return min(fitting, unassigned_tasks(state, stage)) if schedulable(state, bank, stage) else 0


@compiled
def place_executors(state: SimState, bank: JobTemplates, given: Ints) -> int:
    """Place executors by `given` (G, 2), rows of (stage row, amount).

    Stop at the first placement that is not possible; return how many were made.
    """
    for number in range(len(given)):
        stage, amount = given[number, 0], given[number, 1]
        if not 0 < amount <= placeable_executors(state, bank, stage):
            return number
        place(state, bank, stage, amount)
    return len(given)
