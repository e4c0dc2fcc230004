"""Why the network decides as it does: the stages and limits it scored highest, with probabilities.

An observation goes in and a small record comes out, fit for a log line: rows of the observation,
for whoever built it to translate into names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import executors_granted, useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima.compiled import SCORE_LIMIT, Scratch, Weights, decide
from loadmaster.models.decima.network import ILLEGAL
from loadmaster.models.layers import top_k

_ILLEGAL = np.float32(ILLEGAL)


class TopOptions(NamedTuple):
    """The best T options of a choice, best first."""

    places: NDArray[np.int64]  # (T,)
    scores: NDArray[np.float32]  # (T,)
    chances: NDArray[np.float64]  # (T,)

    def told(self, count: int) -> list[tuple[int, float, float]]:
        """The first so many: place, score and probability."""
        columns = (column[:count].tolist() for column in self)
        return list(zip(*columns, strict=True))


def empty_top_options(top: int) -> TopOptions:
    """With room for so many."""
    return TopOptions(np.zeros(top, np.int64), np.zeros(top, np.float32), np.zeros(top))


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
    best_stages, best_limits = empty_top_options(top), empty_top_options(top)
    row, limit, stages, limits = decide_with_scores(view, weights, room, best_stages, best_limits)
    rows = best_stages.places[:stages]
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
                best_stages.scores[:stages].tolist(),
                best_stages.chances[:stages].tolist(),
            )
        ),
        limits=tuple(
            LimitScore(place + 1, score, chance)
            for place, score, chance in best_limits.told(limits)
        ),
        row=row,
        limit=limit,
        executors=executors_granted(view, row, limit),
    )


@compiled
def decide_with_scores(
    view: Observation,
    weights: Weights,
    room: Scratch,
    best_stages: TopOptions,
    best_limits: TopOptions,
) -> tuple[int, int, int, int]:
    """Decide as `decide` does without draws, and tell the best options: rows of the observation,
    and limits, each less one.

    The stage's row, the limit, and how many options of either kind are told.
    """
    row, limit, _ = decide(view, weights, room, -1.0, -1.0)
    stages = _best_of(room.stage_scores, 0, int(view.cluster[seen.STAGES]), best_stages)
    if weights.shape[SCORE_LIMIT, 0, 0] == 0:
        return row, limit, stages, 0
    lowest, highest = useful_limits(view, row)
    return row, limit, stages, _best_of(room.limit_scores, lowest - 1, highest, best_limits)


@njit_internal
def _best_of(scores: NDArray[np.float32], first: int, end: int, best: TopOptions) -> int:
    """Fill `best` from the scores of places `first` to `end`; how many rows are filled.

    Illegal places are left out. Of equal scores the earlier place comes first, as `decide` takes
    it. Where any score is no number, nothing has a probability.
    """
    count = 0
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            count = top_k(place, scores[place], best.places, best.scores, count)
    total = 0.0
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            total += np.exp(scores[place] - np.float64(best.scores[0]))
    for row in range(count):
        best.chances[row] = np.exp(best.scores[row] - np.float64(best.scores[0])) / total
    return count
