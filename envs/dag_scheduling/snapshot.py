"""A cluster at the moment of a decision, as somebody else tells it, in the simulator's own tables.

Whoever runs a real cluster knows what is asked here. `state_at` makes of it a state that `observe`
reads and that promises are made on, so that a decision there is the one made here. Events, luck
and single executors are not told: such a state is asked about, never advanced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, lay_out
from loadmaster.envs.dag_scheduling.placement import fits, schedulable, unassigned_tasks
from loadmaster.envs.dag_scheduling.profiles import Profiles
from loadmaster.envs.dag_scheduling.rounds import place
from loadmaster.envs.dag_scheduling.state import SimState


@dataclass(frozen=True, eq=False)
class ClusterSnapshot:
    """C executor classes; J jobs in order of arrival; their S stages, job by job."""

    bank: JobTemplates  # a template for every job
    amount: NDArray[np.int64]  # (C,) executors there are
    left: NDArray[np.int64]  # (C,) of these, the ones to place
    capacity: NDArray[np.float64]  # (C, 2) CPU and memory
    members: NDArray[np.int64]  # (J,) executors that belong to the job
    committed_in: NDArray[np.int64]  # (J,) executors of others that are promised to it
    age_ms: NDArray[np.int64]  # (J,)
    # (S, STAGE_COLUMNS) as in SimState, PROFILE, TASKS and WAITING included; 1 under CHOSEN: in
    # this round
    stages: NDArray[np.int64]
    source_job: int  # whose executors are to be placed, or NONE
    more_to_come: bool  # jobs, or executors on their way to none


def templates_without_durations(
    first_stage: NDArray[np.int64],
    tasks: NDArray[np.int64],
    mean_ms: NDArray[np.float64],
    demand: NDArray[np.float64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
) -> JobTemplates:
    """Jobs of which mean durations are known and no others: nobody simulates their tasks."""
    waves, cold = np.zeros((0, 3, 0), np.int64), np.zeros((0, 0), np.int64)
    return lay_out(
        first_stage=first_stage,
        tasks=tasks,
        demand=demand,
        parent_first=parent_first,
        parent=parent,
        levels=np.zeros(0, np.int64),
        profiles=Profiles(mean_ms, waves, waves, cold, np.zeros(0, np.int32)),
    )


def state_from_snapshot(moment: ClusterSnapshot) -> SimState:
    """The moment as a state in the middle of a round, on tables of its own."""
    first_stage, stages = moment.bank.first_stage, moment.stages
    starts = first_stage.tolist()
    jobs, stride = len(starts) - 1, max(map(int.__sub__, starts[1:], starts))
    state = SimState(
        clock=np.zeros(at.CLOCK_SIZE, np.int64),
        setup=np.zeros(at.SETUP_SIZE, np.int64),
        arrivals=np.zeros((1, 2), np.int64),  # stands for all that is to come
        completed_ms=np.array([at.NONE]),
        order=np.arange(jobs),
        jobs=np.zeros((jobs, at.JOB_COLUMNS), np.int64),
        stages=np.zeros((jobs * stride, at.STAGE_COLUMNS), np.int64),
        executors=np.zeros((sum(moment.amount.tolist()), at.EXECUTOR_COLUMNS), np.int64),
        tree=np.zeros(2, np.int64),
        left=moment.left.copy(),
        capacity=moment.capacity,
        amount=moment.amount,
        commit_first=np.array([at.NONE]),  # the one source, number 0
        commitments=np.zeros((sum(moment.left.tolist()) + 1, 4), np.int64),
        levels=np.zeros((0, 3), np.int64),
        trace=np.zeros((0, 6), np.int64),
    )
    state.setup[at.STRIDE] = stride
    state.clock[at.NEXT_JOB] = 0 if moment.more_to_come else 1
    state.clock[at.SOURCE_JOB] = moment.source_job
    _fill(state, first_stage, stages, moment.members, moment.committed_in, moment.age_ms)
    return state


@compiled
def _fill(
    state: SimState,
    first_stage: NDArray[np.int64],
    stages: NDArray[np.int64],
    members: NDArray[np.int64],
    committed_in: NDArray[np.int64],
    age_ms: NDArray[np.int64],
) -> None:
    """The jobs and stages of a moment, which the others are fields of, on empty tables."""
    clock, jobs, stride = state.clock, len(members), state.setup[at.STRIDE]
    for job in range(jobs):
        clock[at.NOW] = max(clock[at.NOW], age_ms[job])
    clock[at.ACTIVE] = jobs
    clock[at.ROUND] = 1
    clock[at.IN_HAND] = at.NONE
    chosen = False
    for job in range(jobs):
        facts, first, end = state.jobs[job], first_stage[job], first_stage[job + 1]
        facts[at.TEMPLATE] = facts[at.NUMBER] = job
        facts[at.ARRIVAL] = clock[at.NOW] - age_ms[job]
        facts[at.STAGES] = end - first
        facts[at.MEMBERS] = members[job]
        facts[at.COMMITTED_IN] = committed_in[job]
        for stage in range(first, end):
            told, row = stages[stage], job * stride + stage - first
            for column in range(at.STAGE_COLUMNS):
                state.stages[row, column] = told[column]
            facts[at.INCOMING] += told[at.MOVING]
            clock[at.PENDING] += told[at.STARTED] - told[at.FINISHED] + told[at.MOVING]
            chosen |= told[at.CHOSEN] != 0
    commitments = state.commitments
    for free in range(len(commitments)):
        commitments[free, at.NEXT] = free + 1
    commitments[len(commitments) - 1, at.NEXT] = at.NONE
    if chosen:
        # Some of the round's executors were placed before. To whom does not matter any more,
        # but that there is a promise does: it allows the rest to idle.
        state.commit_first[0], clock[at.FREE_COMMIT] = 0, 1
        commitments[0, at.NEXT] = at.NONE


@compiled
def placeable(state: SimState, bank: JobTemplates, stage: int) -> int:
    """How many of the round's executors the stage may be given; 0: it may not be chosen."""
    fitting = 0
    for kind in range(len(state.left)):
        if fits(state, bank, kind, stage):
            fitting += state.left[kind]
    return min(fitting, unassigned_tasks(state, stage)) if schedulable(state, bank, stage) else 0


@compiled
def place_all(state: SimState, bank: JobTemplates, given: NDArray[np.int64]) -> int:
    """Make the promises `given` (G, 2) of executors to stages: (row of the stage, amount).

    How many could be made; the first that cannot leaves the state as it found it.
    """
    for number in range(len(given)):
        stage, amount = given[number, 0], given[number, 1]
        if not 0 < amount <= placeable(state, bank, stage):
            return number
        place(state, bank, stage, amount)
    return len(given)
