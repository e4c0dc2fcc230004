"""From a state to the simulator's tables, for the same `observe` that training has."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.moment import Moment, bank_without_durations, waiting_for
from loadmaster.serving.decima.checks import wrong

if TYPE_CHECKING:
    from loadmaster.serving.decima.schema import DecimaState, Job, Stage

_COUNTS = attrgetter("tasks", "started", "finished", "promised", "moving", "unlocked", "chosen")
_COUNT_COLUMNS = [
    at.TASKS,
    at.STARTED,
    at.FINISHED,
    at.COMMITTED,
    at.MOVING,
    at.UNLOCKED,
    at.CHOSEN,
]
_SIZES = attrgetter("task_ms", "cpu", "memory")


def moment_of(state: DecimaState) -> Moment:
    """The tables; what has no place in them is a ValidationError that names the field."""
    slot_of = _numbered(state.jobs, ("jobs",))
    stages = [stage for job in state.jobs for stage in job.stages]
    first_stage = _starts([len(job.stages) for job in state.jobs])
    parents = [_parents_of(number, job) for number, job in enumerate(state.jobs)]
    counts = np.fromiter(
        chain.from_iterable(map(_COUNTS, stages)), np.int64, len(_COUNT_COLUMNS) * len(stages)
    )
    sizes = np.fromiter(chain.from_iterable(map(_SIZES, stages)), np.float64, 3 * len(stages))
    sizes = sizes.reshape(-1, 3)
    table = np.zeros((len(stages), at.STAGE_COLUMNS), np.int64)
    table[:, _COUNT_COLUMNS] = counts.reshape(-1, len(_COUNT_COLUMNS))
    table[:, at.PROFILE] = np.arange(len(stages))
    bank = bank_without_durations(
        first_stage=first_stage,
        tasks=table[:, at.TASKS].copy(),
        mean_ms=sizes[:, 0].copy(),
        demand=sizes[:, 1:].copy(),
        parent_first=_starts([len(stage.parents) for stage in stages]),
        parent=np.fromiter(chain.from_iterable(parents), np.int64),
    )
    table[:, at.WAITING] = waiting_for(bank, table[:, at.FINISHED] < table[:, at.TASKS])
    classes = state.executors
    left = np.array([group.free for group in classes], np.int64)
    source_job = _source_job(state, slot_of)
    return Moment(
        bank=bank,
        amount=np.array([group.count for group in classes], np.int64),
        left=left,
        capacity=np.array([(group.cpu, group.memory) for group in classes]),
        members=_members(state, table, first_stage, source_job, int(left.sum())),
        committed_in=np.array([job.promised for job in state.jobs], np.int64),
        age_ms=np.array([round(job.age_s * 1000) for job in state.jobs], np.int64),
        stages=table,
        source_job=source_job,
        more_to_come=state.more_to_come,
    )


def _members(
    state: DecimaState,
    table: NDArray[np.int64],
    first_stage: NDArray[np.int64],
    source_job: int,
    free: int,
) -> NDArray[np.int64]:
    """(J,) what each job says it holds, or what it must at least."""
    held = np.array([-1 if job.executors is None else job.executors for job in state.jobs])
    running = np.add.reduceat(table[:, at.STARTED] - table[:, at.FINISHED], first_stage[:-1])
    if source_job != at.NONE:
        at_work = int(running[source_job])
        # A stage's last executors may still be at work, all but the one that has come free.
        own = at_work + free if state.source.stage is None else max(at_work + 1, free)
        running[source_job] = own
    return np.where(held < 0, running, held)


def _parents_of(number: int, job: Job) -> list[int]:
    """The parents of all its stages, one stage after another, by their place in the job."""
    place_of = _numbered(job.stages, ("jobs", number, "stages"))
    try:
        return [place_of[parent] for stage in job.stages for parent in stage.parents]
    except KeyError:
        where, unknown = next(
            ((place, "parents", which), parent)
            for place, stage in enumerate(job.stages)
            for which, parent in enumerate(stage.parents)
            if parent not in place_of
        )
        raise wrong(
            ("jobs", number, "stages", *where),
            unknown,
            "is no stage of its job; expected the id of one",
        ) from None


def _numbered(
    things: tuple[Job, ...] | tuple[Stage, ...], where: tuple[str | int, ...]
) -> dict[str, int]:
    """Places by id."""
    places = {thing.id: place for place, thing in enumerate(things)}
    if len(places) < len(things):
        for place, thing in enumerate(things):
            if places[thing.id] != place:
                raise wrong(
                    (*where, places[thing.id], "id"),
                    thing.id,
                    f"is the id of number {place} as well; expected ids that differ",
                )
    return places


def _source_job(state: DecimaState, slot_of: dict[str, int]) -> int:
    job, stage = state.source.job, state.source.stage
    if job is None:
        if stage is not None:
            raise wrong(("source", "stage"), stage, "has no job; expected source.job beside it")
        return at.NONE
    if job not in slot_of:
        raise wrong(("source", "job"), job, "is no job of this state; expected the id of one")
    slot = slot_of[job]
    if stage is not None and all(stage != known.id for known in state.jobs[slot].stages):
        raise wrong(("source", "stage"), stage, "is no stage of that job; expected the id of one")
    return slot


def _starts(counts: list[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
