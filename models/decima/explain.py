"""Why the network decides as it does: the stages and limits it scored highest, with probabilities.

An observation goes in and a small record comes out, fit for a log line: rows of the observation,
for whoever built it to translate into names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, inner
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import executors_granted, useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima.kernel import SCORE_LIMIT, Scratch, Weights, decide
from loadmaster.models.decima.network import ILLEGAL

PLACE, SCORE, CHANCE = range(3)  # columns of what is told of an option
TOLD = 3
_ILLEGAL = np.float32(ILLEGAL)


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
    best_stages, best_limits = np.zeros((top, TOLD)), np.zeros((top, TOLD))
    row, limit, stages, limits = weigh(view, weights, room, best_stages, best_limits)
    rows = best_stages[:stages, PLACE].astype(np.int64)
    lowest, highest = useful_limits(view, row)
    return Reasons(
        free_executors=int(view.cluster[seen.FREE_EXECUTORS]),
        total_executors=int(view.cluster[seen.TOTAL_EXECUTORS]),
        jobs=int(view.cluster[seen.JOBS]),
        schedulable=int(np.count_nonzero(view.schedulable[: int(view.cluster[seen.STAGES])])),
        useful_limits=highest - lowest + 1,
        stages=tuple(
            map(
                StageScore,
                rows.tolist(),
                view.stage_job[rows].tolist(),
                map(int, view.stages[rows, seen.UNSTARTED].tolist()),
                view.stages[rows, seen.MEAN_S].tolist(),
                best_stages[:stages, SCORE].tolist(),
                best_stages[:stages, CHANCE].tolist(),
            )
        ),
        limits=tuple(
            LimitScore(int(place) + 1, score, chance)
            for place, score, chance in best_limits[:limits].tolist()
        ),
        row=row,
        limit=limit,
        executors=executors_granted(view, row, limit),
    )


@compiled
def weigh(
    view: Observation,
    weights: Weights,
    room: Scratch,
    best_stages: NDArray[np.float64],
    best_limits: NDArray[np.float64],
) -> tuple[int, int, int, int]:
    """Decide as `decide` does without draws, and fill two tables (T, TOLD) with the best options.

    The stage's row, the limit, and how many rows of either table are filled. In a limit's row,
    PLACE is the limit less one.
    """
    row, limit, _ = decide(view, weights, room, -1.0, -1.0)
    stages = rank(room.stage_scores, 0, int(view.cluster[seen.STAGES]), best_stages)
    if weights.shape[SCORE_LIMIT, 0, 0] == 0:
        return row, limit, stages, 0
    lowest, highest = useful_limits(view, row)
    return row, limit, stages, rank(room.limit_scores, lowest - 1, highest, best_limits)


@inner
def rank(scores: NDArray[np.float32], first: int, end: int, best: NDArray[np.float64]) -> int:
    """Fill `best` (T, TOLD) from the scores of places `first` to `end`; how many rows are filled.

    Illegal places are left out. Of equal scores the earlier place comes first, as `decide` takes
    it. Scores that are no numbers have no order, and no probabilities.
    """
    legal, highest = 0, -np.inf
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            legal += 1
            highest = max(highest, scores[place])
    total = 0.0
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            total += np.exp(scores[place] - highest)
    told = min(legal, len(best))
    last, last_place = np.inf, first - 1
    for row in range(told):
        found = -1
        for place in range(first, end):
            score = scores[place]
            if score == _ILLEGAL or score > last or (score == last and place <= last_place):
                continue
            if found < 0 or score > scores[found]:
                found = place
        last, last_place = scores[found], found
        best[row, PLACE] = found
        best[row, SCORE] = last
        best[row, CHANCE] = np.exp(last - highest) / total
    return told
