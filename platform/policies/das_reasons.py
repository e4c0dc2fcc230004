"""DAS's reasons in words and figures: rows of an observation become jobs and machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.platform.policies import Explanation
from loadmaster.platform.policies.das_moment import Moment
from loadmaster.platform.policies.das_ranking import TOLD


def explanation(moment: Moment, decision: int) -> Explanation:
    """Decision number `decision` of the episode, from 0."""
    if moment.kind == on.RECONSIDERING:
        return _of_reconsidering(moment, decision)
    return _of_placing(moment, decision)


def _of_placing(moment: Moment, decision: int) -> Explanation:
    """Who goes first, and where to."""
    cluster = moment.episode.cluster
    # In a strict queue one that does not fit may come first, and block those behind it.
    going = moment.rank_jobs(np.flatnonzero(moment.priorities.mask[0].numpy()))
    first, startable = going.first, moment.startable
    options = [
        going.options(
            "job that goes first", ("GPUs", "waited, s"), moment.job_name, moment.job_cells
        )
    ]
    record = {
        "jobs_that_could_start": len(startable),
        "jobs": going.records(lambda row: {"job": moment.job_id(row)}),
        "machines": [],
        "chosen": {"job": moment.job_id(first), "machine": None},
    }
    outcome = f"{moment.job_name(first)} goes first, does not fit, and blocks those behind it"
    if first in startable:
        where = moment.rank_machines(first)
        free = moment.state.free[:, at.GPU]
        options.append(
            where.options(
                "machine it fills first",
                ("free GPUs", "speed", "$ a GPU-hour"),
                lambda place: f"machine {place + 1} (rack {cluster.rack[place] + 1})",
                lambda place: (
                    f"{free[place] / WHOLE:g}",
                    f"{cluster.speed[place]:.2f}",
                    f"{cluster.price_per_s[place] * 3600:.2f}",
                ),
            )
        )
        record["machines"] = where.records(lambda place: {"machine": place})
        record["chosen"] = {"job": moment.job_id(first), "machine": where.first}
        outcome = f"{moment.job_name(first)} goes first, and to machine {where.first + 1}"
    again = ", after reconsidering" if moment.kind == on.PLACING_AGAIN else ""
    situation = f"{len(moment.shown)} jobs shown, {len(startable)} could start{again}"
    return Explanation(
        moment.time_s,
        f"{situation}; {_free(moment)}",
        tuple(options),
        outcome,
        {**_record(moment, decision), **record},
    )


def _of_reconsidering(moment: Moment, decision: int) -> Explanation:
    """All jobs by priority, and who is stopped for whom."""
    runs = moment.runs
    order = moment.rank_jobs(np.arange(len(runs)))
    stopped = _stopped_for_whom(moment)
    options = order.options(
        "job by priority",
        ("GPUs", "here for, s", "now"),
        moment.job_name,
        lambda row: (*moment.job_cells(row), "runs" if runs[row] else "waits"),
    )
    record = {
        "jobs_running": int(runs.sum()),
        "jobs_waiting": int((~runs).sum()),
        "jobs": order.records(lambda row: {"job": moment.job_id(row), "running": bool(runs[row])}),
        "stopped": [
            {"job": moment.job_id(row), "for": moment.job_id(other)}
            for row, other in stopped.items()
        ],
    }
    told = [
        f"{moment.job_name(row)} is stopped for {moment.job_name(other)}"
        for row, other in list(stopped.items())[:TOLD]
    ]
    if len(stopped) > TOLD:
        told.append(f"{len(stopped) - TOLD} more are stopped")
    return Explanation(
        moment.time_s,
        f"{len(runs)} jobs reconsidered, {runs.sum()} run, {(~runs).sum()} wait; {_free(moment)}",
        (options,),
        ", ".join(told) or "nobody is stopped",
        {**_record(moment, decision), **record},
    )


def _stopped_for_whom(moment: Moment) -> dict[int, int]:
    """Rows of jobs that are stopped, each with that of the job it is stopped for.

    That is the one at whose coming it first has to go, when those who wait come one by one in
    their order.
    """
    priority = moment.priority.astype(np.float64)
    waiting = np.flatnonzero(~moment.runs)
    waiting = waiting[np.argsort(-priority[waiting], kind="stable")]
    row_of = {int(job): row for row, job in enumerate(moment.shown)}
    finally_stopped = moment.stopped_for(waiting, priority)
    found: dict[int, int] = {}
    for count, row in enumerate(waiting, start=1):
        for job in sorted(finally_stopped & moment.stopped_for(waiting[:count], priority)):
            found.setdefault(row_of[job], int(row))
        if len(found) == len(finally_stopped):
            break
    return found


def _free(moment: Moment) -> str:
    free, capacity = moment.state.free[:, at.GPU], moment.episode.cluster.gpu_capacity
    return f"{free.sum() / WHOLE:g} of {capacity.sum() / WHOLE:g} GPUs free"


def _record(moment: Moment, decision: int) -> dict[str, Any]:
    return {
        "decision": decision,
        "time_s": moment.time_s,
        "moment": on.MOMENTS[moment.kind],
        "free_gpus": float(moment.state.free[:, at.GPU].sum()) / WHOLE,
        "jobs_shown": len(moment.shown),
    }
