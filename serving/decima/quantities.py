"""What a decision sets, for the guard: how many executors each job will have.

Executors that are asked about count for nobody until they are given, their own job included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.moment import place_all, placeable, state_at
from loadmaster.serving.decima import wording
from loadmaster.serving.decima.schema import Assignment, DecimaDecision, DecimaState
from loadmaster.serving.endpoint import Quantity


def quantities(state: DecimaState, decision: DecimaDecision) -> tuple[Quantity, ...]:
    """One for each job that gets executors: what it has, on their way and promised, and will."""
    given: dict[str, int] = {}
    for part in decision.assignments:
        given[part.job] = given.get(part.job, 0) + part.executors
    moment = state.moment
    moving = np.add.reduceat(moment.stages[:, at.MOVING], moment.bank.first_stage[:-1])
    held = moment.members + moving + moment.committed_in
    if moment.source_job != at.NONE:
        held[moment.source_job] -= moment.left.sum()
    # A stage's executors at their last task are asked about although they still work: of those,
    # none may be left to count.
    have = dict(zip((job.id for job in state.jobs), np.maximum(held, 0).tolist(), strict=True))
    return tuple(
        Quantity(f"job {job}", float(have[job]), float(have[job] + more))
        for job, more in given.items()
        if job in have
    )


def constrain(
    state: DecimaState, decision: DecimaDecision, allowed: Mapping[str, float]
) -> DecimaDecision:
    """Fewer executors for some jobs, never more; those taken away are left idle.

    A job's last assignments go first: what was given before may be what allowed them.
    """
    surplus: dict[str, int] = {}
    limits: dict[str, int] = {}
    for quantity in quantities(state, decision):
        most = math.floor(min(allowed.get(quantity.name, math.inf), quantity.proposed))
        job = quantity.name.removeprefix("job ")
        kept = max(most, int(quantity.current))
        surplus[job] = int(quantity.proposed) - kept
        limits[job] = max(kept, 1)
    assignments: list[Assignment] = []
    idle = decision.idle
    for part in reversed(decision.assignments):
        cut = min(surplus.get(part.job, 0), part.executors)
        if cut == 0 and not _was_cut(part.job, decision, assignments):
            assignments.append(part)
            continue
    return decision
