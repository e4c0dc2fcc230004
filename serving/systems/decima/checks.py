"""Numbers of a state that must go together: who breaks which rule, told by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.serving.systems.decima.limits import EDGES_MAX, EXECUTORS_MAX, STAGES_MAX

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.snapshot import ClusterSnapshot
    from loadmaster.serving.systems.decima.schema import DecimaState

# What can be wrong with a stage, in the order it is looked for.
SOUND, TOO_MANY_STARTED, TOO_MANY_FINISHED, TWICE, CIRCLE, TOO_EARLY, DONE = range(7)


def wrong(where: tuple[str | int, ...], given: Any, why: str) -> ValidationError:
    """The error about one field: "'x' is no stage of its job; expected ..."."""
    told = repr(given) if isinstance(given, int | str) else ""
    kind = PydanticCustomError("inconsistent", "{text}", {"text": f"{told} {why}".strip()})
    return ValidationError.from_exception_data(
        "state", [InitErrorDetails(type=kind, loc=where, input=given)]
    )


def check_numbers(state: DecimaState) -> None:
    """A ValidationError names the first field whose value cannot be."""
    _check_sizes(state)
    _check_stages(state, state.moment)
    _check_executors(state, state.moment)


def _check_sizes(state: DecimaState) -> None:
    """Before any table is made."""
    total = sum(group.count for group in state.executors)
    if total > EXECUTORS_MAX:
        raise wrong(("executors",), total, f"in all; expected at most {EXECUTORS_MAX:,} executors")
    stages = sum(len(job.stages) for job in state.jobs)
    if stages > STAGES_MAX:
        raise wrong(("jobs",), stages, f"stages in all; expected at most {STAGES_MAX:,}")
    edges = sum(len(stage.parents) for job in state.jobs for stage in job.stages)
    if edges > EDGES_MAX:
        raise wrong(("jobs",), edges, f"parents in all; expected at most {EDGES_MAX:,}")
    for number, group in enumerate(state.executors):
        if group.free > group.count:
            raise wrong(
                ("executors", number, "free"),
                group.free,
                f"of {group.count} executors are free; expected at most as many as there are",
            )
    if not any(group.free for group in state.executors):
        raise wrong(
            ("executors", 0, "free"), 0, "executors are free; expected at least one to place"
        )


def _check_stages(state: DecimaState, moment: ClusterSnapshot) -> None:
    facts, bank = moment.stages, moment.bank
    rule, row = _first_broken(
        facts, bank.first_stage, bank.parent_first, bank.parent, bank.height,
        np.full(len(facts), at.NONE),
    )  # fmt: skip
    if rule == SOUND:
        return
    job = int(np.searchsorted(bank.first_stage, row, side="right")) - 1
    if rule == DONE:
        raise wrong(("jobs", job, "stages"), None, "are all finished; expected jobs that are not")
    if rule == CIRCLE:
        row = _on_circle(moment)
    place = row - int(bank.first_stage[job])
    stage = state.jobs[job].stages[place]
    field, why = {
        TOO_MANY_STARTED: ("started", f"are started; expected at most the {stage.tasks} tasks"),
        TOO_MANY_FINISHED: ("finished", f"are finished; expected at most {stage.started} started"),
        TWICE: ("parents", "a parent is named twice; expected each once"),
        CIRCLE: ("parents", "it waits for itself; expected a DAG"),
        TOO_EARLY: ("started", "are started before its parents are finished; expected 0"),
    }[rule]
    raise wrong(("jobs", job, "stages", place, field), getattr(stage, field), why)


@compiled
def _first_broken(
    facts: NDArray[np.int64],
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    height: NDArray[np.int64],
    named_by: NDArray[np.int64],
) -> tuple[int, int]:
    """The first rule that a stage breaks, and the first stage that does.

    `facts` are a moment's stages, `named_by` (S,) is NONE everywhere; the others are its bank's.
    """
    for stage in range(len(facts)):
        if facts[stage, at.STARTED] > facts[stage, at.TASKS]:
            return TOO_MANY_STARTED, stage
    for stage in range(len(facts)):
        if facts[stage, at.FINISHED] > facts[stage, at.STARTED]:
            return TOO_MANY_FINISHED, stage
    for job in range(len(first_stage) - 1):
        first = first_stage[job]
        for stage in range(first, first_stage[job + 1]):
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                if named_by[first + parent[edge]] == stage:
                    return TWICE, stage
                named_by[first + parent[edge]] = stage
    for stage in range(len(facts)):
        if height[stage] < 0:
            return CIRCLE, stage
    for stage in range(len(facts)):
        if facts[stage, at.STARTED] > 0 and facts[stage, at.WAITING] > 0:
            return TOO_EARLY, stage
    for job in range(len(first_stage) - 1):
        unfinished = 0
        for stage in range(first_stage[job], first_stage[job + 1]):
            unfinished += facts[stage, at.FINISHED] < facts[stage, at.TASKS]
        if unfinished == 0:
            return DONE, first_stage[job]
    return SOUND, 0


def _on_circle(moment: ClusterSnapshot) -> int:
    """A stage that waits for itself; there is one."""
    bank = moment.bank
    # Whoever was not reached has a child that was not: from child to child one meets a circle.
    row = int(np.argmin(bank.height))
    first = int(bank.first_stage[np.searchsorted(bank.first_stage, row, side="right") - 1])
    met = set()
    while row not in met:
        met.add(row)
        below = first + bank.child[bank.child_first[row] : bank.child_first[row + 1]]
        row = int(below[bank.height[below] < 0][0])
    return row


def _check_executors(state: DecimaState, moment: ClusterSnapshot) -> None:
    bank, facts = moment.bank, moment.stages
    total, free = int(moment.amount.sum()), int(moment.left.sum())
    firsts, source = bank.first_stage[:-1], moment.source_job
    running = np.add.reduceat(facts[:, at.STARTED] - facts[:, at.FINISHED], firsts)
    moving = np.add.reduceat(facts[:, at.MOVING], firsts)
    promised = np.add.reduceat(facts[:, at.COMMITTED], firsts)

    least = running.copy()
    if source != at.NONE:
        # A stage that ran out of tasks may have all its executors still at their last ones.
        idle_ones = state.source.stage is None
        least[source] = running[source] + free if idle_ones else max(running[source], free)
    if (moment.members < least).any():
        job = int(np.argmax(moment.members < least))
        raise wrong(
            ("jobs", job, "executors"),
            int(moment.members[job]),
            f"belong to it; expected at least {least[job]}, those at work and those asked about",
        )
    if (moment.committed_in > promised).any():
        job = int(np.argmax(moment.committed_in > promised))
        raise wrong(
            ("jobs", job, "promised"),
            int(moment.committed_in[job]),
            f"of other jobs' executors; expected at most the {promised[job]} promised to its "
            "stages",
        )
    elsewhere = free if source == at.NONE else 0
    known = int(moment.members.sum() + moving.sum()) + elsewhere
    if known > total:
        raise wrong(
            ("executors",),
            total,
            f"in all, but {moment.members.sum()} belong to jobs, {moving.sum()} are on their way "
            f"and {elsewhere} free ones are nobody's; expected at least {known}",
        )
    beside = np.full(len(firsts), free)
    if source != at.NONE:
        beside[source] = 0
    most = moment.members + moving + moment.committed_in + beside
    if (most > total).any():
        job = int(np.argmax(most > total))
        raise wrong(
            ("jobs", job, "promised"),
            int(moment.committed_in[job]),
            f"are too many: with its own, those on their way and the free ones there would be "
            f"{most[job]}; expected at most {total} in all",
        )
