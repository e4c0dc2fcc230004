"""A moment of the simulator as the state that an operator of that cluster would send."""

from __future__ import annotations

from typing import Literal

import numpy as np

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.serving.systems.decima.schema import DecimaState, ExecutorClass, Job, Source, Stage


def state_of(
    state: SimState, bank: JobTemplates, ask: Literal["round", "one"] = "round"
) -> DecimaState:
    """The simulator must be waiting for a decision. Jobs and stages go by their numbers."""
    clock = state.clock
    slots = state.order[: clock[at.ACTIVE]].tolist()
    to_nobody = state.executors[:, at.ACTIVITY] == at.TRAVELLING
    to_nobody &= state.executors[:, at.DESTINATION] == at.NONE
    return DecimaState(
        executors=tuple(
            ExecutorClass(count=count, free=free, cpu=cpu, memory=memory)
            for count, free, (cpu, memory) in zip(
                state.amount.tolist(), state.left.tolist(), state.capacity.tolist(), strict=True
            )
        ),
        jobs=tuple(_job(state, bank, slot) for slot in slots),
        source=_source(state),
        more_to_come=bool(clock[at.NEXT_JOB] < len(state.arrivals) or to_nobody.any()),
        ask=ask,
    )


def _source(state: SimState) -> Source:
    slot, source = int(state.clock[at.SOURCE_JOB]), int(state.clock[at.SOURCE])
    if slot == at.NONE:
        return Source()
    job = _id(state.jobs[slot, at.NUMBER])
    if source >= len(state.stages):  # its idle executors
        return Source(job=job)
    return Source(job=job, stage=_id(source % state.setup[at.STRIDE]))


def _job(state: SimState, bank: JobTemplates, slot: int) -> Job:
    job = state.jobs[slot]
    first = slot * int(state.setup[at.STRIDE])
    return Job(
        id=_id(job[at.NUMBER]),
        age_s=float(state.clock[at.NOW] - job[at.ARRIVAL]) / 1000,
        executors=int(job[at.MEMBERS]),
        promised=int(job[at.COMMITTED_IN]),
        stages=tuple(
            _stage(state, bank, first + place, place) for place in range(int(job[at.STAGES]))
        ),
    )


def _stage(state: SimState, bank: JobTemplates, row: int, place: int) -> Stage:
    facts = state.stages[row].tolist()
    profile = facts[at.PROFILE]
    typical_ms = float(state.setup[at.TYPICAL_MS])  # above 0 where durations are not known
    cpu, memory = bank.demand[profile].tolist()
    parents = bank.parent[bank.parent_first[profile] : bank.parent_first[profile + 1]]
    return Stage(
        id=_id(place),
        tasks=facts[at.TASKS],
        task_ms=typical_ms or float(bank.mean_ms[profile]),
        started=facts[at.STARTED],
        finished=facts[at.FINISHED],
        parents=tuple(_id(parent) for parent in parents),
        promised=facts[at.COMMITTED],
        moving=facts[at.MOVING],
        cpu=cpu,
        memory=memory,
        unlocked=facts[at.UNLOCKED],
        chosen=facts[at.CHOSEN] == state.clock[at.ROUND],
    )


def _id(number: int | np.int64) -> str:
    return str(int(number))
