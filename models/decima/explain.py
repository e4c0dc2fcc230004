"""Why the network decides as it does: the stages and limits it scored highest, with probabilities.

An observation goes in and a small record comes out, fit for a log line: rows of the observation,
for whoever built it to translate into names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import executors_granted, useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima.kernel import SCORE_LIMIT, Scratch, Weights, decide


@dataclass(frozen=True)
class StageScore:
    """A stage that could have come next."""

    row: int  # of the observation's stages
    job: int  # row of its job
    tasks_left: int  # not started
    mean_s: float  # mean task duration
    score: float  # the network's own
    probability: float


@dataclass(frozen=True)
class LimitScore:
    """A number of executors that the chosen stage's job may hold."""

    limit: int
    score: float
    probability: float


@dataclass(frozen=True)
class Reasons:
    """One decision: what there was to choose from, and what was chosen."""

    free_executors: int  # the round's, not yet placed
    total_executors: int
    jobs: int  # in the system
    schedulable: int  # stages that could have been chosen
    useful_limits: int  # of the chosen stage's job, that differ in what they place
    stages: tuple[StageScore, ...]  # the likeliest ones, best first
    limits: tuple[LimitScore, ...]  # likewise; empty where the network sets none
    row: int  # the stage chosen
    limit: int
    executors: int  # that it gets


def explain(view: Observation, weights: Weights, room: Scratch, top: int = 5) -> Reasons:
    """Decide as `decide` does without draws, and say why. `view` must have a stage to choose."""
    row, limit, _ = decide(view, weights, room, -1.0, -1.0)
    stages = int(view.cluster[seen.STAGES])
    legal = view.schedulable[:stages].nonzero()[0]
    scores = room.stage_scores[legal]
    chances = _probabilities(scores)
    best = _highest(chances, top)
    rows = legal[best]
    total = int(view.cluster[seen.TOTAL_EXECUTORS])
    lowest, highest = useful_limits(view, row)
    sets_limits = weights.shape[SCORE_LIMIT, 0, 0] > 0
    limit_scores = room.limit_scores[lowest - 1 : highest if sets_limits else 0]
    limit_chances = _probabilities(limit_scores)
    return Reasons(
        free_executors=int(view.cluster[seen.FREE_EXECUTORS]),
        total_executors=total,
        jobs=int(view.cluster[seen.JOBS]),
        schedulable=len(legal),
        useful_limits=highest - lowest + 1,
        stages=tuple(
            map(
                StageScore,
                rows.tolist(),
                view.stage_job[rows].tolist(),
                map(int, view.stages[rows, seen.UNSTARTED].tolist()),
                view.stages[rows, seen.MEAN_S].tolist(),
                scores[best].tolist(),
                chances[best].tolist(),
            )
        ),
        limits=tuple(
            LimitScore(lowest + int(place), float(limit_scores[place]), float(limit_chances[place]))
            for place in _highest(limit_chances, top)
        ),
        row=row,
        limit=limit,
        executors=executors_granted(view, row, limit),
    )


def _probabilities(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(scores.astype(np.float64) - scores.max(initial=-np.inf))
    chances: NDArray[np.float64] = weights / weights.sum()
    return chances


def _highest(chances: NDArray[np.float64], top: int) -> NDArray[np.int64]:
    """Places of the highest, best first; of equals the earlier one, as `decide` takes it."""
    return np.argsort(-chances, kind="stable")[:top]
