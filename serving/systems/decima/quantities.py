"""What a decision sets, for the guard: how many executors each job will have.

Executors that are asked about count for nobody until they are given, for their own job no more
than for another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.snapshot import (
    ClusterSnapshot,
    place_all,
    placeable,
    state_from_snapshot,
)
from loadmaster.serving.system import Quantity
from loadmaster.serving.systems.decima import explanation as wording
from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaState

_PREFIX = "job "


def held(moment: ClusterSnapshot) -> NDArray[np.int64]:
    """(J,) executors each job has, on their way and promised, without those asked about."""
    moving = np.add.reduceat(moment.stages[:, at.MOVING], moment.bank.first_stage[:-1])
    found = moment.members + moving + moment.committed_in
    if moment.source_job != at.NONE:
        found[moment.source_job] -= moment.left.sum()
    return found


def quantities(state: DecimaState, decision: DecimaDecision) -> tuple[Quantity, ...]:
    """One for each job that gets executors: how many it has, and how many it then will."""
    given: dict[str, int] = {}
    for part in decision.assignments:
        given[part.job] = given.get(part.job, 0) + part.executors
    have = dict(zip((job.id for job in state.jobs), held(state.moment).tolist(), strict=True))
    return tuple(
        Quantity(f"{_PREFIX}{job}", float(have[job]), float(have[job] + more))
        for job, more in given.items()
        if job in have
    )


def constrain(
    state: DecimaState, decision: DecimaDecision, allowed: Mapping[str, float]
) -> DecimaDecision:
    """Fewer executors for some jobs, never more; those taken away are left idle.

    A job's last assignments go first: an earlier one may be what made them possible.
    """
    surplus: dict[str, int] = {}  # executors a job has to do without
    most: dict[str, int] = {}  # what it may hold
    for name, current, proposed in quantities(state, decision):
        bound = allowed.get(name, proposed)
        if bound < proposed:
            job = name.removeprefix(_PREFIX)
            most[job] = max(math.floor(bound), int(current))
            surplus[job] = int(proposed) - most[job]
    freed, kept = 0, []
    for part in reversed(decision.assignments):
        if part.job not in most:
            kept.append(part)
            continue
        cut = min(surplus[part.job], part.executors)
        surplus[part.job] -= cut
        freed += cut
        if cut < part.executors:
            limit = min(part.limit, most[part.job])
            kept.append(part.model_copy(update={"executors": part.executors - cut, "limit": limit}))
    return DecimaDecision(
        assignments=tuple(reversed(kept)),
        idle=decision.idle + freed,
        undecided=decision.undecided,
    )


def validate_decision(state: DecimaState, decision: DecimaDecision) -> str | None:
    """Why the decision cannot be carried out; every promise is tried on the state's tables."""
    free = sum(group.free for group in state.executors)
    told = decision.idle + decision.undecided + sum(a.executors for a in decision.assignments)
    if told != free:
        return f"it speaks of {wording.counted(told, 'executor')}; expected the {free} free ones"
    cluster = state_from_snapshot(state.moment)
    stride = int(cluster.setup[at.STRIDE])
    slots = {job.id: slot for slot, job in enumerate(state.jobs)}
    given = np.zeros((len(decision.assignments), 2), np.int64)
    for number, part in enumerate(decision.assignments):
        slot = slots.get(part.job)
        if slot is None:
            return f"there is no job {part.job!r}"
        names = [stage.id for stage in state.jobs[slot].stages]
        if part.stage not in names:
            return f"job {part.job!r} has no stage {part.stage!r}"
        given[number] = slot * stride + names.index(part.stage), part.executors
    made = place_all(cluster, state.moment.bank, given)
    if made == len(given):
        return None
    part = decision.assignments[made]
    room = placeable(cluster, state.moment.bank, given[made, 0])
    where = wording.place(part.job, part.stage)
    if room <= 0:
        return f"{where} may not be chosen"
    return f"{where} gets {part.executors} executors; expected at most {room}"
