"""Where a state is decided on: tables that are kept from one decision to the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import JobBank
from loadmaster.envs.dag_scheduling.moment import state_at
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.serving.decima.rounds import GIVEN
from loadmaster.serving.decima.schema import Assignment, DecimaDecision, DecimaState

ROUND_MAX = 256  # decisions in one answer; what is free beyond them is undecided


class Desk:
    """An observation's tables, grown when a larger state comes. Not for two threads at once."""

    def __init__(self) -> None:
        self.view: Observation = blank_observation(64, 8, 128)
        self.rows: NDArray[np.int64] = np.zeros(64, np.int64)

    def open(self, asked: DecimaState) -> Round:
        """Make room, and lay out the state's round."""
        bank = asked.moment.bank
        stages, jobs, edges = len(bank.tasks), len(asked.jobs), len(bank.child)
        view = self.view
        if stages > len(view.stages) or jobs > len(view.jobs) or edges > len(view.edges):
            self.view = blank_observation(
                _room(len(view.stages), stages),
                _room(len(view.jobs), jobs),
                _room(len(view.edges), edges),
            )
            self.rows = np.zeros(len(self.view.stages), np.int64)
        return Round(asked)


class Round:
    """One state being decided on."""

    def __init__(self, asked: DecimaState) -> None:
        self.asked = asked
        self.bank: JobBank = asked.moment.bank
        self.state: SimState = state_at(asked.moment)
        self.free = int(asked.moment.left.sum())
        most = 1 if asked.ask == "one" else min(self.free, ROUND_MAX)
        self.given: NDArray[np.int64] = np.zeros((most, GIVEN), np.int64)

    def place_of(self, stage: int) -> tuple[str, str]:
        """The ids of job and stage behind a row of the state's stages."""
        slot, place = divmod(stage, int(self.state.setup[at.STRIDE]))
        job = self.asked.jobs[slot]
        return job.id, job.stages[place].id

    def decision(self, count: int) -> DecimaDecision:
        """What the first `count` rows of `given` say."""
        assignments = []
        for stage, executors, limit in self.given[:count].tolist():
            job_id, stage_id = self.place_of(stage)
            assignments.append(
                Assignment(job=job_id, stage=stage_id, executors=executors, limit=max(limit, 1))
            )
        left = int(self.state.left.sum())
        ended = count < len(self.given)  # nobody could take the rest, or nobody should
        return DecimaDecision(
            assignments=tuple(assignments),
            idle=left if ended else 0,
            undecided=0 if ended else left,
        )


def _room(have: int, need: int) -> int:
    return have if need <= have else max(need, 2 * have)
