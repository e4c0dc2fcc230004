"""DAS's reasons in words and figures: rows of an observation become jobs and machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.envs.gpu_scheduling.episode import Episode
from loadmaster.envs.gpu_scheduling.preemption import preempt_lower_ranked
from loadmaster.envs.gpu_scheduling.scheduling_pass import offer
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.models.das.ordering import Priorities
from loadmaster.models.das.placement import Placements
from loadmaster.models.keyed_random import standard_normal
from loadmaster.platform.systems.policies import Explanation, Options

# What could come first, jobs or machines, as DAS ranks it.


TOLD = 5  # jobs, and machines, of a decision
DRAWS = 1000  # by which the probability of coming first is estimated


class Ranking(NamedTuple):
    """K of them; the highest score comes first."""

    names: NDArray[np.int64]  # (K,)
    score: NDArray[np.float32]  # (K,) the mean of its priority or affinity
    probability: NDArray[np.float64]  # (K,) of coming first, while it learnt

    @property
    def first(self) -> int:
        """The name of what comes first."""
        return int(self.names[self.score.argmax()])

    @property
    def told(self) -> list[int]:
        """The highest scores first: the first of them is what is done."""
        return [int(place) for place in np.argsort(-self.score, kind="stable")[:TOLD]]

    def options(
        self,
        heading: str,
        columns: tuple[str, ...],
        name: Callable[[int], str],
        cells: Callable[[int], tuple[str, ...]],
    ) -> Options:
        told = self.told
        return Options(
            heading=heading,
            columns=(*columns, "score"),
            names=tuple(name(int(self.names[place])) for place in told),
            cells=tuple(
                (*cells(int(self.names[place])), f"{self.score[place]:+.3f}") for place in told
            ),
            probabilities=tuple(float(self.probability[place]) for place in told),
            chosen=0,
            others=len(self.names) - len(told),
        )

    def records(self, tell: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                **tell(int(self.names[place])),
                "score": round(float(self.score[place]), 6),
                "probability": round(float(self.probability[place]), 4),
            }
            for place in self.told
        ]


def rank(names: NDArray[np.int64], score: NDArray[Any], drawn: NDArray[Any]) -> Ranking:
    """Of scores (K,) and draws of them (DRAWS, K)."""
    highest = np.bincount(drawn.argmax(1), minlength=drawn.shape[1])
    return Ranking(names, score, highest / len(drawn))


# A decision of DAS as it is made: what is known, and what the network makes of it.


class Moment(NamedTuple):
    """It holds until the next one."""

    episode: Episode
    state: SimState
    kind: int  # what is asked for: one of desk.MOMENTS
    shown: NDArray[np.int64]  # the job behind each row of the observation
    observation: dict[str, Tensor]  # a batch of one
    priorities: Priorities
    placements: Placements

    @property
    def startable(self) -> NDArray[np.int64]:
        """Rows of the jobs that could start now."""
        return np.flatnonzero(self.placements.fits[0].any(1).numpy())

    @property
    def runs(self) -> NDArray[np.bool_]:
        """Whether the job of each row runs."""
        running: NDArray[np.bool_] = self.state.jobs[self.shown, at.ROWS_USED] > 0
        return running

    @property
    def time_s(self) -> float:
        return float(self.state.times[at.NOW])

    @property
    def priority(self) -> NDArray[np.float32]:
        """(Q,) what is acted on."""
        mean: NDArray[np.float32] = self.priorities.mean[0].numpy()
        return mean

    @property
    def has_choice(self) -> bool:
        """Whether another decision would have led elsewhere."""
        if self.kind == on.RECONSIDERING:
            waiting = np.flatnonzero(~self.runs)
            return bool(self.stopped_for(waiting, np.where(self.runs, 0.0, 1.0)))
        return len(self.startable) > 1 or int(self.placements.fits.sum()) > 1

    def stopped_for(self, waiting: NDArray[np.int64], priority: NDArray[np.float64]) -> set[int]:
        """Jobs that would have to stop if, of those who wait, these rows alone were offered."""
        cluster, jobs, _ = self.episode
        state = SimState._make(table.copy() for table in self.state)
        before = np.flatnonzero(state.jobs[:-1, at.ROWS_USED] > 0)
        state.key[before] = -np.inf  # who is not shown is left alone
        state.key[self.shown[self.runs]] = -priority[self.runs]
        offer(state, jobs, self.shown[waiting], priority[waiting], len(waiting))
        preempt_lower_ranked(state, cluster, jobs, np.zeros_like(state.free))
        return set(before[state.jobs[before, at.ROWS_USED] == 0].tolist())

    def rank_jobs(self, rows: NDArray[np.int64]) -> Ranking:
        standard = standard_normal(torch.arange(DRAWS), self.priorities.mean.shape[1:], stream=0)
        drawn = self.priorities.sample(standard).numpy()  # (DRAWS, Q)
        return rank(rows, self.priority[rows], drawn[:, rows])

    def rank_machines(self, row: int) -> Ranking:
        """For the job of this row, which could start."""
        machines = np.flatnonzero(self.placements.fits[0, row].numpy())
        affinity = self.placements.mean()[0, row].numpy()[machines]
        shape = self.placements.fits.shape[1:]
        drawn = np.stack([
            self.placements.sample(standard_normal(one[None], shape, stream=1))[0, row].numpy()
            for one in torch.arange(DRAWS)
        ])  # fmt: skip
        return rank(machines, affinity, drawn[:, machines])

    def job_id(self, row: int) -> int:
        return int(self.episode.jobs.job_id[self.shown[row]])

    def job_name(self, row: int) -> str:
        return f"job {self.job_id(row)}"

    def job_cells(self, row: int) -> tuple[str, str]:
        """Its GPUs, and how long it has been here."""
        jobs, job = self.episode.jobs, self.shown[row]
        gpus = f"{jobs.gpu[job] / WHOLE:g}"
        if jobs.instances[job] > 1:
            gpus = f"{jobs.instances[job]} x {gpus}"
        return gpus, f"{self.time_s - jobs.arrival_s[job]:,.0f}"


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
        "moment": on.PHASES[moment.kind],
        "free_gpus": float(moment.state.free[:, at.GPU].sum()) / WHOLE,
        "jobs_shown": len(moment.shown),
    }
