"""Explanation of a decision: the stages and limits with the highest scores, and probabilities."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.errors import counted
from loadmaster.models.decima.compiled import Scratch, decide
from loadmaster.models.decima.network import ILLEGAL
from loadmaster.models.decima.weights import SCORE_LIMIT, Weights
from loadmaster.models.layers import top_k
from loadmaster.models.policy import Explanation, Option

TOP = 5  # stages and limits of an explanation
_ILLEGAL = np.float32(ILLEGAL)

StageNames = Callable[[int], str]  # name of the stage behind a row


# Columns of `TopScores.values`; the last two are of stages only.
PROBABILITY, TASKS_LEFT, MEAN_S = range(3)


class TopScores(NamedTuple):
    """Buffers for the T options with the highest scores, best first."""

    option: NDArray[np.int64]  # (T,) row of a stage, or a limit less one
    score: NDArray[np.float32]  # (T,)
    values: NDArray[np.float64]  # (T, 3)


class BestOptions(NamedTuple):
    stages: TopScores
    limits: TopScores


def empty_options() -> BestOptions:
    return BestOptions(*(
        TopScores(np.zeros(TOP, np.int64), np.zeros(TOP, np.float32), np.zeros((TOP, 3)))
        for _ in range(2)
    ))  # fmt: skip


class StageScore(NamedTuple):
    """A schedulable stage."""

    row: int
    score: float
    probability: float
    tasks_left: int
    mean_s: float


class LimitScore(NamedTuple):
    """A parallelism limit for the job of the chosen stage."""

    limit: int
    score: float
    probability: float


class Decision(NamedTuple):
    """A stage and a parallelism limit, and the best options of both choices."""

    row: int  # of the stage chosen, in the observation
    limit: int
    executors: int  # that the stage gets; 0: the free ones idle
    schedulable: int  # stages that could have been chosen
    useful_limits: int  # limits that differ in the executors they place
    stages: list[StageScore]  # best first
    limits: list[LimitScore]  # best first; empty where the network sets none


@compiled
def decide_with_scores(
    view: Observation, weights: Weights, scratch: Scratch, best: BestOptions
) -> tuple[int, int, int, int]:
    """Decide without sampling and fill the tables of best options.

    Returns the stage's row, the limit, and how many rows of either table are filled: none where the
    decision idles.
    """
    row, limit, _ = decide(view, weights, scratch, -1.0, -1.0)
    if row == len(view.schedulable) - 1:
        return row, limit, 0, 0
    stages = _fill_best(scratch.stage_scores, 0, int(view.cluster[obs_cols.STAGES]), best.stages)
    for place in range(stages):
        stage = view.stages[best.stages.option[place]]
        best.stages.values[place, TASKS_LEFT] = stage[obs_cols.UNSTARTED]
        best.stages.values[place, MEAN_S] = stage[obs_cols.MEAN_S]
    if weights.shape[SCORE_LIMIT, 0, 0] == 0:
        return row, limit, stages, 0
    lowest, highest = useful_limits(view, row)
    return row, limit, stages, _fill_best(scratch.limit_scores, lowest - 1, highest, best.limits)


@njit_internal
def _fill_best(scores: NDArray[np.float32], first: int, end: int, best: TopScores) -> int:
    """Fill `best` from scores[first:end]; how many rows are filled.

    Of equal scores the earlier one comes first, as in `decide`. Where any score is NaN, all
    probabilities are.
    """
    count = 0
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            count = top_k(place, scores[place], best.option, best.score, count)
    total = 0.0
    for place in range(first, end):
        if scores[place] != _ILLEGAL:
            total += np.exp(scores[place] - np.float64(best.score[0]))
    for row in range(count):
        weight = np.exp(best.score[row] - np.float64(best.score[0]))
        best.values[row, PROBABILITY] = weight / total
    return count


def read_options(
    best: BestOptions, stages: int, limits: int
) -> tuple[list[StageScore], list[LimitScore]]:
    """The first `stages` and `limits` rows of the tables."""
    of_stages, of_limits = (
        zip(*(column[:count].tolist() for column in table), strict=True)
        for table, count in ((best.stages, stages), (best.limits, limits))
    )
    return (
        [StageScore(row, score, own[0], int(own[1]), own[2]) for row, score, own in of_stages],
        [LimitScore(place + 1, score, own[0]) for place, score, own in of_limits],
    )


def explain(decision: Decision, stage_name: StageNames, summary: str) -> Explanation:
    """Name the options of a decision; the best one of each choice is the one chosen."""
    choices = {
        "stage": [
            Option(
                stage_name(stage.row), stage.score, None, stage.probability, place == 0,
                {"tasks left": stage.tasks_left, "s a task": stage.mean_s},
            )
            for place, stage in enumerate(decision.stages)
        ]
    }  # fmt: skip
    others = {"stage": decision.schedulable - len(decision.stages)}
    if decision.limits:
        choices["limit"] = [
            Option(counted(limit.limit, "executor"), limit.score, None, limit.probability, i == 0)
            for i, limit in enumerate(decision.limits)
        ]
        others["limit"] = decision.useful_limits - len(decision.limits)
    return Explanation(summary, choices, others)


def situation(free: int, total: int, jobs: int, schedulable: int | None, source: str = "") -> str:
    """What is to be decided; `source` names the job that the free executors belong to."""
    text = f"{free:,} of {total:,} executors to place{source}; {counted(jobs, 'job')} in the system"
    if schedulable is None:
        return text
    return f"{text}, {counted(schedulable, 'stage') if schedulable else 'no stage'} to choose from"


def grant(stage: str, executors: int, limit: int) -> str:
    """What a stage gets; no executor: all idle."""
    if executors == 0:
        return "they idle, since every job holds as many as it may"
    return f"{stage} gets {counted(executors, 'executor')}, its job may hold {limit:,}"
