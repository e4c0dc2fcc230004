"""From a state to the simulator's tables, which the policy observes as in training.

A state that is not consistent is refused by a ValidationError that names the field.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from operator import attrgetter

import numpy as np

from loadmaster.envs.compiled import Ints, compiled
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
    Stage,
)

Location = tuple[str | int, ...]  # of a field in the state
Fault = tuple[Location, str]  # arguments of `field_error`

# Rules that a stage may break.
CONSISTENT, TOO_MANY_STARTED, TOO_MANY_FINISHED, DUPLICATE_PARENT = range(4)
CYCLE, STARTED_EARLY, JOB_FINISHED = range(4, 7)

# Fields of a stage; read column by column, which takes half the time of reading row by row.
_COUNTS = {
    state_cols.TASKS: attrgetter("tasks"),
    state_cols.STARTED: attrgetter("started"),
    state_cols.FINISHED: attrgetter("finished"),
    state_cols.COMMITTED: attrgetter("promised"),
    state_cols.MOVING: attrgetter("moving"),
    state_cols.UNLOCKED: attrgetter("unlocked"),
    state_cols.CHOSEN: attrgetter("chosen"),
}
_TASK_MS, _DEMANDS = attrgetter("task_ms"), (attrgetter("cpu"), attrgetter("memory"))
_ID, _PARENTS, _STAGES = attrgetter("id"), attrgetter("parents"), attrgetter("stages")
RUNNING, MOVING, PROMISED = range(3)  # rows of `job_sums`


@dataclass(frozen=True, eq=False, slots=True)
class StageRows:
    """The stages of all jobs, job after job."""

    stages: Sequence[Stage]  # (S,)
    first_stage: Ints  # (J + 1,)
    parent_first: Ints  # (S + 1,) the first parent of each stage


def stage_rows(jobs: Sequence[Job]) -> StageRows:
    stages: list[Stage] = list(chain.from_iterable(map(_STAGES, jobs)))
    lengths, parents = map(len, map(_STAGES, jobs)), map(len, map(_PARENTS, stages))
    return StageRows(
        stages,
        np.fromiter(accumulate(lengths, initial=0), np.int64, len(jobs) + 1),
        np.fromiter(accumulate(parents, initial=0), np.int64, len(stages) + 1),
    )


def to_snapshot(
    executors: Sequence[ExecutorClass],
    jobs: Sequence[Job],
    rows: StageRows,
    source: Source,
    more_to_come: bool,
) -> ClusterSnapshot:
    """Build the tables; ids and references between them are checked."""
    slot_of = _places_by_id([job.id for job in jobs], ("jobs",))
    stages, size = rows.stages, len(rows.stages)
    first_stage, parent_first = rows.first_stage, rows.parent_first
    parent = _parent_places(jobs, rows)
    table = np.zeros((size, state_cols.STAGE_COLUMNS), np.int64)
    for column, field in _COUNTS.items():
        table[:, column] = np.fromiter(map(field, stages), np.int64, size)
    table[:, state_cols.PROFILE] = np.arange(size)
    _count_unfinished_parents(first_stage, parent_first, parent, table)
    demand = np.empty((size, len(_DEMANDS)))
    for column, field in enumerate(_DEMANDS):
        demand[:, column] = np.fromiter(map(field, stages), np.float64, size)
    bank = build_templates(
        first_stage=first_stage,
        tasks=table[:, state_cols.TASKS].copy(),
        demand=demand,
        parent_first=parent_first,
        parent=parent,
        profiles=without_durations(np.fromiter(map(_TASK_MS, stages), np.float64, size)),
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
def _count_unfinished_parents(
    first_stage: Ints, parent_first: Ints, parent: Ints, table: Ints
) -> None:
    """Fill the column WAITING of `table` (S, STAGE_COLUMNS)."""
    for job in range(len(first_stage) - 1):
        first = first_stage[job]
        for stage in range(first, first_stage[job + 1]):
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                above = first + parent[edge]
                table[stage, state_cols.WAITING] += (
                    table[above, state_cols.FINISHED] < table[above, state_cols.TASKS]
                )


def _members(
    jobs: Sequence[Job], source: Source, table: Ints, first_stage: Ints, source_job: int, free: int
) -> Ints:
    """(J,) executors of each job as given, or else the least that it must have."""
    held = np.array([-1 if job.executors is None else job.executors for job in jobs])
    running = job_sums(table, first_stage)[RUNNING]
    if source_job != state_cols.NONE:
        at_work = int(running[source_job])
        # The executors of a stage may still run their last tasks, all but the one that came free.
        own = at_work + free if source.stage is None else max(at_work + 1, free)
        running[source_job] = own
    return np.where(held < 0, running, held)


def job_sums(table: Ints, first_stage: Ints) -> Ints:
    """(3, J) tasks that run, executors that move to the stages, executors promised to them."""
    sums = np.zeros((3, len(first_stage) - 1), np.int64)
    _add_up(table, first_stage, sums)
    return sums


@compiled
def _add_up(table: Ints, first_stage: Ints, sums: Ints) -> None:
    for job in range(len(first_stage) - 1):
        for stage in range(first_stage[job], first_stage[job + 1]):
            row = table[stage]
            sums[RUNNING, job] += row[state_cols.STARTED] - row[state_cols.FINISHED]
            sums[MOVING, job] += row[state_cols.MOVING]
            sums[PROMISED, job] += row[state_cols.COMMITTED]


def _parent_places(jobs: Sequence[Job], rows: StageRows) -> Ints:
    """Parents of all stages, stage after stage, by their place in the job."""
    stages, edges = len(rows.stages), int(rows.parent_first[-1])
    number_of = defaultdict[str, int](count().__next__)  # of a name, in any job
    names = chain(map(_ID, rows.stages), chain.from_iterable(map(_PARENTS, rows.stages)))
    numbers = np.fromiter(map(number_of.__getitem__, names), np.int64, stages + edges)
    parent = np.empty(edges, np.int64)
    scratch = np.full((2, len(number_of)), state_cols.NONE)
    faulty = _link_parents(
        rows.first_stage, rows.parent_first, numbers[:stages], numbers[stages:], scratch, parent
    )
    if faulty != state_cols.NONE:
        _raise_wrong_names(faulty, jobs[faulty])
    return parent


@compiled
def _link_parents(
    first_stage: Ints,
    parent_first: Ints,
    name: Ints,
    parent_name: Ints,
    scratch: Ints,
    parent: Ints,
) -> int:
    """Fill `parent` (E,) from numbers of the names; the first job with wrong names, or NONE.

    `scratch` (2, names) is NONE: the latest job with a stage of that name, and the stage's place.
    """
    for job in range(len(first_stage) - 1):
        first, after = first_stage[job], first_stage[job + 1]
        for stage in range(first, after):
            if scratch[0, name[stage]] == job:
                return job
            scratch[0, name[stage]], scratch[1, name[stage]] = job, stage - first
        for edge in range(parent_first[first], parent_first[after]):
            if scratch[0, parent_name[edge]] != job:
                return job
            parent[edge] = scratch[1, parent_name[edge]]
    return state_cols.NONE


def _raise_wrong_names(number: int, job: Job) -> None:
    """Raise the error of a stage's id that is repeated, or of a parent that is none of the ids."""
    at: Location = ("jobs", number, "stages")
    place_of = _places_by_id([stage.id for stage in job.stages], at)
    for place, stage in enumerate(job.stages):
        for which, parent in enumerate(stage.parents):
            if parent not in place_of:
                why = f"{parent!r} is no stage of its job; expected the id of one"
                raise field_error((*at, place, "parents", which), why)


def _places_by_id(ids: list[str], at: Location) -> dict[str, int]:
    places = dict(zip(ids, range(len(ids)), strict=True))
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


def size_faults(executors: Sequence[ExecutorClass], rows: StageRows) -> Iterator[Fault]:
    """Faults of sums over the state, found before any table is built."""
    total = sum(group.count for group in executors)
    if total > EXECUTORS_MAX:
        why = f"{total} in all; expected at most {EXECUTORS_MAX:,} executors"
        yield ("executors",), why
    stages, edges = len(rows.stages), int(rows.parent_first[-1])
    if stages > STAGES_MAX:
        yield ("jobs",), f"{stages} stages in all; expected at most {STAGES_MAX:,}"
    if edges > EDGES_MAX:
        yield ("jobs",), f"{edges} parents in all; expected at most {EDGES_MAX:,}"
    for number, (amount, free) in enumerate((group.count, group.free) for group in executors):
        if free > amount:
            why = f"{free} of {amount} executors are free; expected at most as many as there are"
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
    facts: Ints, first_stage: Ints, parent_first: Ints, parent: Ints, height: Ints, named_by: Ints
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
