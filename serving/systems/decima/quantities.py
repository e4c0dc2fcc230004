"""Quantities of a decision that the guard bounds: the executors that each job will have.

Free executors count for a job only once they are assigned, also for the job they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.snapshot import (
    ClusterSnapshot,
    place_all,
    placeable,
    state_from_snapshot,
)
from loadmaster.models.decima.explain import counted
from loadmaster.serving.system import Quantity
from loadmaster.serving.systems.decima.rounds import stage_name
from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaState

_PREFIX = "job "


def executors_held(snapshot: ClusterSnapshot) -> NDArray[np.int64]:
    """(J,) executors of each job, moving and promised ones included, without those to place."""
    moving = np.add.reduceat(snapshot.stages[:, state_cols.MOVING], snapshot.bank.first_stage[:-1])
    held = snapshot.members + moving + snapshot.committed_in
    if snapshot.source_job != state_cols.NONE:
        held[snapshot.source_job] -= snapshot.left.sum()
    return held


def quantities(state: DecimaState, decision: DecimaDecision) -> tuple[Quantity, ...]:
    """Executors of each job that gets some, before and after."""
    given: dict[str, int] = {}
    for part in decision.assignments:
        given[part.job] = given.get(part.job, 0) + part.executors
    have = dict(
        zip((job.id for job in state.jobs), executors_held(state.snapshot).tolist(), strict=True)
    )
    return tuple(
        Quantity(f"{_PREFIX}{job}", float(have[job]), float(have[job] + more))
        for job, more in given.items()
        if job in have
    )


def constrain(
    state: DecimaState, decision: DecimaDecision, allowed: Mapping[str, float]
) -> DecimaDecision:
    """Remove executors of some jobs from the decision; they are left idle.

    A job's last assignments are cut first, since they may depend on earlier ones.
    """
    surplus: dict[str, int] = {}  # executors to remove from a job
    most: dict[str, int] = {}  # executors it may hold
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
    """Why the decision cannot be carried out: each assignment is tried on the state's tables."""
    free = sum(group.free for group in state.executors)
    given = decision.idle + decision.undecided + sum(a.executors for a in decision.assignments)
    if given != free:
        return f"it accounts for {counted(given, 'executor')}; expected the {free} free ones"
    cluster = state_from_snapshot(state.snapshot)
    stride = int(cluster.setup[state_cols.STRIDE])
    slots = {job.id: slot for slot, job in enumerate(state.jobs)}
    assigned = np.zeros((len(decision.assignments), 2), np.int64)
    for number, part in enumerate(decision.assignments):
        slot = slots.get(part.job)
        if slot is None:
            return f"there is no job {part.job!r}"
        names = [stage.id for stage in state.jobs[slot].stages]
        if part.stage not in names:
            return f"job {part.job!r} has no stage {part.stage!r}"
        assigned[number] = slot * stride + names.index(part.stage), part.executors
    made = place_all(cluster, state.snapshot.bank, assigned)
    if made == len(assigned):
        return None
    part = decision.assignments[made]
    room = placeable(cluster, state.snapshot.bank, assigned[made, 0])
    where = stage_name(part.job, part.stage)
    if room <= 0:
        return f"{where} may not be chosen"
    return f"{where} gets {part.executors} executors; expected at most {room}"
