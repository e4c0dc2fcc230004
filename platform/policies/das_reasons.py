"""DAS's reasons in words and figures: rows of an observation become jobs and machines."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.envs.gpu_scheduling.episode import Episode
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.models.das.ordering import Priorities
from loadmaster.models.das.placement import Placements
from loadmaster.models.luck import standard_normal
from loadmaster.platform.policies import Explanation, Options

TOLD = 5  # jobs, and machines, of a decision
DRAWS = 1000  # by which the probability of coming first is estimated


class Moment(NamedTuple):
    """A decision as it is made."""

    episode: Episode
    state: SimState
    shown: NDArray[np.int64]  # the job behind each row of the observation
    observation: dict[str, Tensor]  # a batch of one
    priorities: Priorities
    placements: Placements

    @property
    def startable(self) -> NDArray[np.int64]:
        """Rows of the jobs that could start now."""
        return np.flatnonzero(self.placements.fits[0].any(1).numpy())

    @property
    def has_choice(self) -> bool:
        return len(self.startable) > 1 or int(self.placements.fits.sum()) > 1


def explanation(moment: Moment, decision: int) -> Explanation:
    """Decision number `decision` of the episode, from 0: who goes first, and where to."""
    cluster, jobs, _ = moment.episode
    rows, luck = moment.startable, torch.arange(DRAWS)
    priority = moment.priorities.mean[0].numpy()
    first = int(rows[priority[rows].argmax()])
    orders = _drawn_priorities(moment, luck)[:, rows]
    going = _Ranking(rows, priority[rows], _shares(orders), int(np.flatnonzero(rows == first)[0]))
    machines = np.flatnonzero(moment.placements.fits[0, first].numpy())
    affinity = moment.placements.mean()[0, first].numpy()[machines]
    where = _Ranking(
        machines,
        affinity,
        _shares(_drawn_affinities(moment, first, luck)[:, machines]),
        int(affinity.argmax()),
    )
    free = moment.state.free[:, at.GPU]
    job, machine = int(moment.shown[first]), int(machines[where.chosen])
    time_s = float(moment.state.times[at.NOW])
    options = (
        going.options(
            "job that goes first",
            ("GPUs", "waited, s"),
            lambda row: f"job {jobs.job_id[moment.shown[row]]}",
            lambda row: _job_cells(moment, int(moment.shown[row]), time_s),
        ),
        where.options(
            "machine it fills first",
            ("free GPUs", "speed", "$ a GPU-hour"),
            lambda place: f"machine {place + 1} (rack {cluster.rack[place] + 1})",
            lambda place: (
                f"{free[place] / WHOLE:g}",
                f"{cluster.speed[place]:.2f}",
                f"{cluster.price_per_s[place] * 3600:.2f}",
            ),
        ),
    )
    return Explanation(
        time_s=time_s,
        situation=(
            f"{len(moment.shown)} jobs shown, {len(rows)} could start; "
            f"{free.sum() / WHOLE:g} of {cluster.gpu_capacity.sum() / WHOLE:g} GPUs free"
        ),
        options=options,
        outcome=f"job {jobs.job_id[job]} goes first, and to machine {machine + 1}",
        record={
            "decision": decision,
            "time_s": time_s,
            "free_gpus": float(free.sum()) / WHOLE,
            "jobs_shown": len(moment.shown),
            "jobs_that_could_start": len(rows),
            "jobs": going.records("job", lambda row: int(jobs.job_id[moment.shown[row]])),
            "machines": where.records("machine", int),
            "chosen": {"job": int(jobs.job_id[job]), "machine": machine},
        },
    )


class _Ranking(NamedTuple):
    """What could come first, K of them."""

    names: NDArray[np.int64]  # (K,)
    score: NDArray[np.float32]  # (K,) the mean of its priority or affinity
    probability: NDArray[np.float64]  # (K,) of coming first, while it learnt
    chosen: int

    @property
    def told(self) -> list[int]:
        """The highest scores first: the first of them is what is done."""
        return [int(place) for place in np.argsort(-self.score, kind="stable")[:TOLD]]

    def options(self, heading: str, columns: tuple[str, ...], name: Any, cells: Any) -> Options:
        told = self.told
        return Options(
            heading=heading,
            columns=(*columns, "score"),
            names=tuple(name(int(self.names[place])) for place in told),
            cells=tuple(
                (*cells(int(self.names[place])), f"{self.score[place]:+.3f}") for place in told
            ),
            probabilities=tuple(float(self.probability[place]) for place in told),
            chosen=told.index(self.chosen),
            others=len(self.names) - len(told),
        )

    def records(self, what: str, name: Any) -> list[dict[str, Any]]:
        return [
            {
                what: name(int(self.names[place])),
                "score": round(float(self.score[place]), 6),
                "probability": round(float(self.probability[place]), 4),
            }
            for place in self.told
        ]


def _job_cells(moment: Moment, job: int, time_s: float) -> tuple[str, str]:
    jobs = moment.episode.jobs
    gpus = f"{jobs.gpu[job] / WHOLE:g}"
    if jobs.instances[job] > 1:
        gpus = f"{jobs.instances[job]} x {gpus}"
    return gpus, f"{time_s - jobs.arrival_s[job]:,.0f}"


def _drawn_priorities(moment: Moment, luck: Tensor) -> NDArray[np.float32]:
    """(DRAWS, Q)"""
    standard = standard_normal(luck, moment.priorities.mean.shape[1:], stream=0)
    return moment.priorities.sample(standard).numpy()


def _drawn_affinities(moment: Moment, row: int, luck: Tensor) -> NDArray[np.float32]:
    """(DRAWS, M) of the job in this row."""
    shape = moment.placements.fits.shape[1:]
    return np.stack([
        moment.placements.sample(standard_normal(one[None], shape, stream=1))[0, row].numpy()
        for one in luck
    ])  # fmt: skip


def _shares(drawn: NDArray[np.float32]) -> NDArray[np.float64]:
    """(K,) of the draws (DRAWS, K) in which each is the highest."""
    return np.bincount(drawn.argmax(1), minlength=drawn.shape[1]) / len(drawn)
