"""From a state to the simulator's tables, which the policy observes as in training.

A state that is not consistent is refused by a ValidationError that names the field.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.jobs import build_templates
from loadmaster.envs.dag_scheduling.profiles import without_durations
from loadmaster.envs.dag_scheduling.snapshot import ClusterSnapshot
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.decima.records import (
    EDGES_MAX,
    EXECUTORS_MAX,
    STAGES_MAX,
    ExecutorClass,
    Job,
    Source,
)

Location = tuple[str | int, ...]  # of a field in the state
Fault = tuple[Location, str]  # arguments of `field_error`

# Rules that a stage may break.
CONSISTENT, TOO_MANY_STARTED, TOO_MANY_FINISHED, DUPLICATE_PARENT = range(4)
CYCLE, STARTED_EARLY, JOB_FINISHED = range(4, 7)

# Of a stage: counts by the columns of the simulator, then duration and demands.
_VALUES = attrgetter(
    "tasks", "started", "finished", "promised", "moving", "unlocked", "chosen",
    "task_ms", "cpu", "memory",
)  # fmt: skip
_COUNT_COLUMNS = (
    state_cols.TASKS,
    state_cols.STARTED,
    state_cols.FINISHED,
    state_cols.COMMITTED,
    state_cols.MOVING,
    state_cols.UNLOCKED,
    state_cols.CHOSEN,
)
_COUNTS = len(_COUNT_COLUMNS)
RUNNING, MOVING, PROMISED = range(3)  # rows of `job_sums`


def to_snapshot(
    executors: Sequence[ExecutorClass], jobs: Sequence[Job], source: Source, more_to_come: bool
) -> ClusterSnapshot:
    """Build the tables; ids and references between them are checked."""
    slot_of = _places_by_id([job.id for job in jobs], ("jobs",))
    stages = [stage for job in jobs for stage in job.stages]
    first_stage = _starts([len(job.stages) for job in jobs])
    parents = [_parents_of(number, job) for number, job in enumerate(jobs)]
    columns = _COUNTS + 3
    values = np.fromiter(
        chain.from_iterable(map(_VALUES, stages)), np.float64, columns * len(stages)
    ).reshape(-1, columns)
    parent_first = _starts([len(stage.parents) for stage in stages])
    parent = np.fromiter(chain.from_iterable(parents), np.int64)
    table = np.zeros((len(stages), state_cols.STAGE_COLUMNS), np.int64)
    _fill(values, first_stage, parent_first, parent, table)
    bank = build_templates(
        first_stage=first_stage,
        tasks=table[:, state_cols.TASKS].copy(),
        demand=values[:, _COUNTS + 1 :].copy(),
        parent_first=parent_first,
        parent=parent,
        profiles=without_durations(values[:, _COUNTS].copy()),
    )
    left = np.array([group.free for group in executors], np.int64)
    source_job = _source_job(source, jobs, slot_of)
    return ClusterSnapshot(
        bank=bank,
        amount=np.array([group.count for group in executors], np.int64),
        left=left,
        capacity=np.array([(group.cpu, group.memory) for group in executors]),
        members=_members(jobs, source, table, first_stage, source_job, int(left.sum())),
        committed_in=np.array([job.promised for job in jobs], np.int64),
        age_ms=np.array([round(job.age_s * 1000) for job in jobs], np.int64),
        stages=table,
        source_job=source_job,
        more_to_come=more_to_come,
    )


@compiled
def _fill(
    values: NDArray[np.float64],
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    table: NDArray[np.int64],
) -> None:
    """Fill `table` (S, STAGE_COLUMNS) from `values` (S, counts first) and the DAGs."""
    for stage in range(len(values)):
        table[stage, state_cols.PROFILE] = stage
        for place in range(_COUNTS):
            table[stage, _COUNT_COLUMNS[place]] = np.int64(values[stage, place])
    for job in range(len(first_stage) - 1):
        first = first_stage[job]
        for stage in range(first, first_stage[job + 1]):
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                above = first + parent[edge]
                table[stage, state_cols.WAITING] += (
                    table[above, state_cols.FINISHED] < table[above, state_cols.TASKS]
                )


def _members(
    jobs: Sequence[Job],
    source: Source,
    table: NDArray[np.int64],
    first_stage: NDArray[np.int64],
    source_job: int,
    free: int,
) -> NDArray[np.int64]:
    """(J,) executors of each job as given, or else the least that it must have."""
    held = np.array([-1 if job.executors is None else job.executors for job in jobs])
    running = job_sums(table, first_stage)[RUNNING]
    if source_job != state_cols.NONE:
        at_work = int(running[source_job])
        # The executors of a stage may still run their last tasks, all but the one that came free.
        own = at_work + free if source.stage is None else max(at_work + 1, free)
        running[source_job] = own
    return np.where(held < 0, running, held)


def job_sums(table: NDArray[np.int64], first_stage: NDArray[np.int64]) -> NDArray[np.int64]:
    """(3, J) tasks that run, executors that move to the stages, executors promised to them."""
    sums = np.zeros((3, len(first_stage) - 1), np.int64)
    _add_up(table, first_stage, sums)
    return sums


@compiled
def _add_up(
    table: NDArray[np.int64], first_stage: NDArray[np.int64], sums: NDArray[np.int64]
) -> None:
    for job in range(len(first_stage) - 1):
        for stage in range(first_stage[job], first_stage[job + 1]):
            row = table[stage]
            sums[RUNNING, job] += row[state_cols.STARTED] - row[state_cols.FINISHED]
            sums[MOVING, job] += row[state_cols.MOVING]
            sums[PROMISED, job] += row[state_cols.COMMITTED]


def _parents_of(number: int, job: Job) -> list[int]:
    """Parents of all its stages, stage after stage, by their place in the job."""
    at = ("jobs", number, "stages")
    place_of = _places_by_id([stage.id for stage in job.stages], at)
    try:
        return [place_of[parent] for stage in job.stages for parent in stage.parents]
    except KeyError:
        where, unknown = next(
            ((*at, place, "parents", which), parent)
            for place, stage in enumerate(job.stages)
            for which, parent in enumerate(stage.parents)
            if parent not in place_of
        )
        why = f"{unknown!r} is no stage of its job; expected the id of one"
        raise field_error(where, why) from None


def _places_by_id(ids: list[str], at: Location) -> dict[str, int]:
    places = {name: place for place, name in enumerate(ids)}
    if len(places) < len(ids):
        first, again = next((n, places[name]) for n, name in enumerate(ids) if places[name] != n)
        name = ids[again]
        why = f"{name!r} is also the id of number {first}; expected ids that differ"
        raise field_error((*at, again, "id"), why)
    return places


def _source_job(source: Source, jobs: Sequence[Job], slot_of: dict[str, int]) -> int:
    job, stage = source.job, source.stage
    if job is None and stage is None:
        return state_cols.NONE
    if job is None:
        why = f"{stage!r} has no job; expected source.job beside it"
        raise field_error(("source", "stage"), why)
    if job not in slot_of:
        why = f"{job!r} is no job of this state; expected the id of one"
        raise field_error(("source", "job"), why)
    slot = slot_of[job]
    if stage is not None and all(stage != known.id for known in jobs[slot].stages):
        why = f"{stage!r} is no stage of that job; expected the id of one"
        raise field_error(("source", "stage"), why)
    return slot


def _starts(counts: list[int]) -> NDArray[np.int64]:
    return np.array(list(accumulate(counts, initial=0)), np.int64)


def size_faults(executors: Sequence[ExecutorClass], jobs: Sequence[Job]) -> Iterator[Fault]:
    """Faults of sums over the state, found before any table is built."""
    total = sum(group.count for group in executors)
    if total > EXECUTORS_MAX:
        why = f"{total} in all; expected at most {EXECUTORS_MAX:,} executors"
        yield ("executors",), why
    stages = sum(len(job.stages) for job in jobs)
    if stages > STAGES_MAX:
        yield ("jobs",), f"{stages} stages in all; expected at most {STAGES_MAX:,}"
    edges = sum(len(stage.parents) for job in jobs for stage in job.stages)
    if edges > EDGES_MAX:
        yield ("jobs",), f"{edges} parents in all; expected at most {EDGES_MAX:,}"
    for number, (count, free) in enumerate((group.count, group.free) for group in executors):
        if free > count:
            why = f"{free} of {count} executors are free; expected at most as many as there are"
            yield ("executors", number, "free"), why
    if not any(group.free for group in executors):
        why = "0 executors are free; expected at least one to place"
        yield ("executors", 0, "free"), why


def stage_faults(snapshot: ClusterSnapshot, jobs: Sequence[Job]) -> Iterator[Fault]:
    """The first fault in the counts of tasks and in the DAGs."""
    facts, bank = snapshot.stages, snapshot.bank
    rule, row = _first_broken(
        facts, bank.first_stage, bank.parent_first, bank.parent, bank.height,
        np.full(len(facts), state_cols.NONE),
    )  # fmt: skip
    if rule == CONSISTENT:
        return
    job = int(np.searchsorted(bank.first_stage, row, side="right")) - 1
    where: Location = ("jobs", job, "stages")
    if rule == JOB_FINISHED:
        yield where, "are all finished; expected jobs that are not"
        return
    if rule == CYCLE:
        row = _stage_on_cycle(snapshot)
    place = row - int(bank.first_stage[job])
    stage = jobs[job].stages[place]
    tasks, started, finished = stage.tasks, stage.started, stage.finished
    field, why = {
        TOO_MANY_STARTED: ("started", f"{started} are started; expected at most the {tasks} tasks"),
        TOO_MANY_FINISHED: (
            "finished", f"{finished} are finished; expected at most {started} started"
        ),
        DUPLICATE_PARENT: ("parents", "a parent is named twice; expected each once"),
        CYCLE: ("parents", "is its own ancestor; expected a DAG"),
        STARTED_EARLY: (
            "started", f"{started} are started before its parents are finished; expected 0"
        ),
    }[rule]  # fmt: skip
    yield (*where, place, field), why


@compiled
def _first_broken(
    facts: NDArray[np.int64],
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    height: NDArray[np.int64],
    named_by: NDArray[np.int64],
) -> tuple[int, int]:
    """The first stage that breaks a rule, as (rule, stage).

    `facts` are a snapshot's stages, `named_by` (S,) is NONE; the others are its templates' tables.
    """
    for job in range(len(first_stage) - 1):
        first, unfinished = first_stage[job], 0
        for stage in range(first, first_stage[job + 1]):
            row = facts[stage]
            if row[state_cols.STARTED] > row[state_cols.TASKS]:
                return TOO_MANY_STARTED, stage
            if row[state_cols.FINISHED] > row[state_cols.STARTED]:
                return TOO_MANY_FINISHED, stage
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                if named_by[first + parent[edge]] == stage:
                    return DUPLICATE_PARENT, stage
                named_by[first + parent[edge]] = stage
            if height[stage] < 0:
                return CYCLE, stage
            if row[state_cols.STARTED] > 0 and row[state_cols.WAITING] > 0:
                return STARTED_EARLY, stage
            unfinished += row[state_cols.FINISHED] < row[state_cols.TASKS]
        if unfinished == 0:
            return JOB_FINISHED, first
    return CONSISTENT, 0


def _stage_on_cycle(snapshot: ClusterSnapshot) -> int:
    """A stage that is its own ancestor; there is one."""
    bank = snapshot.bank
    # A stage without height has a child without height, so following children reaches a cycle.
    row = int(np.argmin(bank.height))
    first = int(bank.first_stage[np.searchsorted(bank.first_stage, row, side="right") - 1])
    visited = set()
    while row not in visited:
        visited.add(row)
        below = first + bank.child[bank.child_first[row] : bank.child_first[row + 1]]
        row = int(below[bank.height[below] < 0][0])
    return row


def executor_faults(snapshot: ClusterSnapshot, source: Source) -> Iterator[Fault]:
    """Faults in the counts of executors."""
    source_job = snapshot.source_job
    members, committed_in = snapshot.members, snapshot.committed_in
    total, free = int(snapshot.amount.sum()), int(snapshot.left.sum())
    least, moving, promised = job_sums(snapshot.stages, snapshot.bank.first_stage)
    elsewhere = free
    if source_job != state_cols.NONE:
        # The executors of a stage that ran out of tasks may all run their last ones.
        own = least[source_job]
        least[source_job] = own + free if source.stage is None else max(own, free)
        elsewhere = 0
    for job in np.flatnonzero(members < least).tolist():
        why = f"{members[job]} belong to it; expected at least {least[job]}, those with tasks and "
        yield ("jobs", job, "executors"), f"{why}those to place"
    for job in np.flatnonzero(committed_in > promised).tolist():
        why = f"{committed_in[job]} of other jobs' executors; expected at most the {promised[job]} "
        yield ("jobs", job, "promised"), f"{why}promised to its stages"
    owned, on_the_way = int(members.sum()), int(moving.sum())
    if (known := owned + on_the_way + elsewhere) > total:
        why = (
            f"{total} in all, but {owned} belong to jobs, {on_the_way} are moving and {elsewhere} "
            f"free ones belong to none; expected at least {known}"
        )
        yield ("executors",), why
    most = members + moving + committed_in + free
    if source_job != state_cols.NONE:
        most[source_job] -= free
    for job in np.flatnonzero(most > total).tolist():
        why = (
            f"{committed_in[job]} are too many: with its own, those moving and the free ones there "
            f"would be {most[job]}; expected at most {total} in all"
        )
        yield ("jobs", job, "promised"), why
