"""Example states: one by hand, generated ones of busy clusters, and those of the simulator."""

import random
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.serving.systems.decima.records import ExecutorClass, Job, Source, Stage
from loadmaster.serving.systems.decima.schema import EXAMPLE, DecimaState


@cache
def examples() -> Mapping[str, DecimaState]:
    """tiny: 2 jobs, 4 stages; small: 5 jobs, 30 stages; large: 100 jobs, 1,000 stages."""
    return MappingProxyType(
        {
            "tiny": DecimaState.model_validate(EXAMPLE),
            "small": busy_cluster(jobs=5, stages=6, executors=50, free=3, seed=1),
            "large": busy_cluster(jobs=100, stages=10, executors=500, free=3, seed=2),
        }
    )


def busy_cluster(jobs: int, stages: int, executors: int, free: int, seed: int) -> DecimaState:
    """Jobs in progress with equal shares of the executors; those of the first are to place.

    A function of the arguments alone.
    """
    draw = random.Random(seed)
    share = max(1, (executors - free) // jobs)
    made = tuple(_busy_job(number, jobs, stages, share, draw) for number in range(jobs))
    source = Source(job=made[0].id)
    return DecimaState(
        executors=(ExecutorClass(count=executors, free=free),), jobs=made, source=source
    )


def _busy_job(number: int, jobs: int, stages: int, share: int, draw: random.Random) -> Job:
    done = draw.randrange(stages // 2)
    made = []
    for place in range(stages):
        tasks = draw.randrange(1, 4 * share + 2)
        finished = started = 0
        if place < done:
            finished = started = tasks
        elif place == done:  # in progress; the stages after it wait
            tasks = max(tasks, share + 1)
            finished = draw.randrange(tasks - share)
            started = finished + share
        parents = {place - 1, draw.randrange(place)} if place > done else set(range(place)[-1:])
        made.append(
            Stage(
                id=str(place),
                tasks=tasks,
                task_ms=round(draw.uniform(200, 4000), 3),
                started=started,
                finished=finished,
                parents=tuple(str(parent) for parent in sorted(parents) if place > 0),
                unlocked=(number + 1) * stages + place if place <= done else 0,
            )
        )
    return Job(id=str(number), age_s=round(25.0 * (jobs - number), 3), stages=tuple(made))


def state_of(
    state: SimState, bank: JobTemplates, ask: Literal["round", "one"] = "round"
) -> DecimaState:
    """The state that the operator of a simulated cluster would send.

    The simulator must wait for a decision. Ids of jobs and stages are their numbers.
    """
    clock = state.clock
    slots = state.order[: clock[state_cols.ACTIVE]].tolist()
    unbound = state.executors[:, state_cols.ACTIVITY] == state_cols.TRAVELLING
    unbound &= state.executors[:, state_cols.DESTINATION] == state_cols.NONE
    return DecimaState(
        executors=tuple(
            ExecutorClass(count=count, free=free, cpu=cpu, memory=memory)
            for count, free, (cpu, memory) in zip(
                state.amount.tolist(), state.left.tolist(), state.capacity.tolist(), strict=True
            )
        ),
        jobs=tuple(_recorded_job(state, bank, slot) for slot in slots),
        source=_recorded_source(state),
        more_to_come=bool(clock[state_cols.NEXT_JOB] < len(state.arrivals) or unbound.any()),
        ask=ask,
    )


def _recorded_source(state: SimState) -> Source:
    slot, source = int(state.clock[state_cols.SOURCE_JOB]), int(state.clock[state_cols.SOURCE])
    if slot == state_cols.NONE:
        return Source()
    job = _id(state.jobs[slot, state_cols.NUMBER])
    if source >= len(state.stages):  # idle executors of the job
        return Source(job=job)
    return Source(job=job, stage=_id(source % state.setup[state_cols.STRIDE]))


def _recorded_job(state: SimState, bank: JobTemplates, slot: int) -> Job:
    job = state.jobs[slot]
    first = slot * int(state.setup[state_cols.STRIDE])
    return Job(
        id=_id(job[state_cols.NUMBER]),
        age_s=float(state.clock[state_cols.NOW] - job[state_cols.ARRIVAL]) / 1000,
        executors=int(job[state_cols.MEMBERS]),
        promised=int(job[state_cols.COMMITTED_IN]),
        stages=tuple(
            _recorded_stage(state, bank, first + place, place)
            for place in range(int(job[state_cols.STAGES]))
        ),
    )


def _recorded_stage(state: SimState, bank: JobTemplates, row: int, place: int) -> Stage:
    facts = state.stages[row].tolist()
    profile = facts[state_cols.PROFILE]
    typical_ms = float(state.setup[state_cols.TYPICAL_MS])  # above 0 where durations are unknown
    cpu, memory = bank.demand[profile].tolist()
    parents = bank.parent[bank.parent_first[profile] : bank.parent_first[profile + 1]]
    return Stage(
        id=_id(place),
        tasks=facts[state_cols.TASKS],
        task_ms=typical_ms or float(bank.mean_ms[profile]),
        started=facts[state_cols.STARTED],
        finished=facts[state_cols.FINISHED],
        parents=tuple(_id(parent) for parent in parents),
        promised=facts[state_cols.COMMITTED],
        moving=facts[state_cols.MOVING],
        cpu=cpu,
        memory=memory,
        unlocked=facts[state_cols.UNLOCKED],
        chosen=facts[state_cols.CHOSEN] == state.clock[state_cols.ROUND],
    )


def _id(number: int | np.int64) -> str:
    return str(int(number))
