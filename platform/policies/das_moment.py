"""A decision of DAS as it is made: what is known, and what the network makes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE
from loadmaster.envs.gpu_scheduling.episode import Episode
from loadmaster.envs.gpu_scheduling.epoch import offer
from loadmaster.envs.gpu_scheduling.preemption import make_way
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.models.das.ordering import Priorities
from loadmaster.models.das.placement import Placements
from loadmaster.models.luck import standard_normal
from loadmaster.platform.policies.das_ranking import DRAWS, Ranking, rank


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
        make_way(state, cluster, jobs, np.zeros_like(state.free))
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
