"""From a state to the simulator's tables, for the same `observe` that training has."""

from __future__ import annotations

from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.snapshot import ClusterSnapshot, templates_without_durations
from loadmaster.serving.systems.decima.checks import wrong

if TYPE_CHECKING:
    from loadmaster.serving.systems.decima.schema import DecimaState, Job

_COUNTS = attrgetter("tasks", "started", "finished", "promised", "moving", "unlocked", "chosen")
_COUNT_COLUMNS = (
    at.TASKS,
    at.STARTED,
    at.FINISHED,
    at.COMMITTED,
    at.MOVING,
    at.UNLOCKED,
    at.CHOSEN,
)
_SIZES = attrgetter("task_ms", "cpu", "memory")


def moment_of(state: DecimaState) -> ClusterSnapshot:
    """The tables; what has no place in them is a ValidationError that names the field."""
    slot_of = _numbered([job.id for job in state.jobs], ("jobs",))
    stages = [stage for job in state.jobs for stage in job.stages]
    first_stage = _starts([len(job.stages) for job in state.jobs])
    parents = [_parents_of(number, job) for number, job in enumerate(state.jobs)]
    counts = np.fromiter(
        chain.from_iterable(map(_COUNTS, stages)), np.int64, len(_COUNT_COLUMNS) * len(stages)
    )
    sizes = np.fromiter(chain.from_iterable(map(_SIZES, stages)), np.float64, 3 * len(stages))
    sizes = sizes.reshape(-1, 3)
    parent_first = _starts([len(stage.parents) for stage in stages])
    parent = np.fromiter(chain.from_iterable(parents), np.int64)
    table = np.zeros((len(stages), at.STAGE_COLUMNS), np.int64)
    _fill(counts.reshape(-1, len(_COUNT_COLUMNS)), first_stage, parent_first, parent, table)
    bank = templates_without_durations(
        first_stage=first_stage,
        tasks=table[:, at.TASKS].copy(),
        mean_ms=sizes[:, 0].copy(),
        demand=sizes[:, 1:].copy(),
        parent_first=parent_first,
        parent=parent,
    )
    classes = state.executors
    left = np.array([group.free for group in classes], np.int64)
    source_job = _source_job(state, slot_of)
    return ClusterSnapshot(
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


@compiled
def _fill(
    counts: NDArray[np.int64],
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    table: NDArray[np.int64],
) -> None:
    """Fill `table` (S, STAGE_COLUMNS) from `counts` (S, the count columns) and the DAGs."""
    for stage in range(len(counts)):
        table[stage, at.PROFILE] = stage
        for place in range(len(_COUNT_COLUMNS)):
            table[stage, _COUNT_COLUMNS[place]] = counts[stage, place]
    for job in range(len(first_stage) - 1):
        first = first_stage[job]
        for stage in range(first, first_stage[job + 1]):
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                above = first + parent[edge]
                table[stage, at.WAITING] += table[above, at.FINISHED] < table[above, at.TASKS]


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
    place_of = _numbered([stage.id for stage in job.stages], ("jobs", number, "stages"))
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


def _numbered(ids: list[str], where: tuple[str | int, ...]) -> dict[str, int]:
    """Places by id."""
    places = {name: place for place, name in enumerate(ids)}
    if len(places) < len(ids):
        first, again = next((n, places[name]) for n, name in enumerate(ids) if places[name] != n)
        raise wrong(
            (*where, again, "id"),
            ids[again],
            f"is the id of number {first} as well; expected ids that differ",
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
    return np.array(list(accumulate(counts, initial=0)), np.int64)
