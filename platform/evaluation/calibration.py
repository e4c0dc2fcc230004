"""Tune the parameters of baselines, of any environment that has a `Tuning`.

Every candidate runs on a quarter of the seeds, the best quarter of the candidates on all. A good
candidate that fails on one of the first seeds is lost, and of a few seeds the best mean is too
good: the first stage has to have some seeds, and the result counts on the seeds of an evaluation.
The published parameters always run on all seeds, so what is found is no worse there.
The seeds start at FIRST_SEED; those of an evaluation start at 0.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic

import numpy as np

from loadmaster.envs.calibration import BaselineType, TunedEntry, TuningProblem

FIRST_SEED = 1_000_000
QUICK_SHARE = 4  # the first stage runs one seed in four
FINALIST_SHARE = 4  # the second stage runs one candidate in four
PASSES = 3  # over all moves, at most

Scored = tuple[float, BaselineType]  # mean score over the seeds
OnProgress = Callable[[int, int], None]  # episodes run; episodes planned so far


def calibrate(
    name: str,
    problem: TuningProblem[BaselineType],
    seeds: int,
    workers: int,
    on_progress: OnProgress = lambda run, planned: None,
) -> tuple[TunedEntry, list[Scored[BaselineType]]]:
    """Return the best parameters, and all finalists with their mean score, best first.

    Episodes run in threads; `on_progress` is called after each, from the calling thread.
    """
    search = _Search(problem, range(FIRST_SEED, FIRST_SEED + seeds), workers, on_progress)
    finalists = search.two_stages(problem.candidates(name), problem.published(name))
    improved = search.improve(*finalists[0])
    if improved is not None:
        finalists.insert(0, improved)
    scored = [(float(np.mean(scores)), baseline) for baseline, scores in finalists]
    best_score, best = scored[0]
    return problem.entry(best, best_score, search.seeds), scored


def entry_setting(name: str, problem: TuningProblem[BaselineType], seeds: int) -> tuple[Any, ...]:
    """What the entry of a tuned baseline would be tuned for; equal ones replace each other."""
    candidate = problem.candidates(name)[0]
    return problem.entry(candidate, 0.0, range(FIRST_SEED, FIRST_SEED + seeds)).setting


class _Search(Generic[BaselineType]):
    """Search over baselines, each with its scores on the seeds."""

    def __init__(
        self,
        problem: TuningProblem[BaselineType],
        seeds: range,
        workers: int,
        on_progress: OnProgress,
    ) -> None:
        self.seeds = seeds
        quick = max(1, len(seeds) // QUICK_SHARE)
        self._quick, self._rest = seeds[:quick], seeds[quick:]
        self._problem, self._workers, self._on_progress = problem, workers, on_progress
        self._run = self._planned = 0

    def two_stages(
        self, candidates: Sequence[BaselineType], published: BaselineType | None
    ) -> list[tuple[BaselineType, list[float]]]:
        """Run all on the first seeds, and the best of them and `published` on all; best first."""
        count = -(-len(candidates) // FINALIST_SHARE)
        extra = [] if published is None else [published]
        self._planned = len(candidates) * len(self._quick)
        self._planned += count * len(self._rest) + len(extra) * len(self.seeds)
        first = self._scores(candidates, self._quick)
        order = sorted(range(len(candidates)), key=lambda number: self._cost(first[number]))
        chosen = order[:count]
        second = self._scores([candidates[number] for number in chosen], self._rest)
        finalists = [
            (candidates[number], first[number] + more)
            for number, more in zip(chosen, second, strict=True)
        ]
        finalists += zip(extra, self._scores(extra, self.seeds), strict=True)
        return sorted(finalists, key=lambda finalist: self._cost(finalist[1]))

    def improve(
        self, best: BaselineType, scores: list[float]
    ) -> tuple[BaselineType, list[float]] | None:
        """Apply moves while the mean score improves; None if no move improves it.

        Each pass tries all moves on the first seeds. Those that are better there follow one after
        the other, each as often as the mean over all seeds improves.
        """
        begin, quick = best, len(self._quick)
        for _ in range(PASSES):
            moves, before = self._problem.moves(best), best
            near = [(move, moved) for move in moves if (moved := move(best)) is not None]
            self._planned += len(near) * quick
            found = self._scores([moved for _, moved in near], self._quick)
            costs = [self._cost(values) for values in found]
            for number in sorted(range(len(near)), key=lambda number: costs[number]):
                if costs[number] >= self._cost(scores[:quick]):
                    break
                move = near[number][0]
                while (moved := move(best)) is not None:
                    better = self._better_scores(moved, scores)
                    if better is None:
                        break
                    best, scores = moved, better
            if best is before:
                break
        return None if best is begin else (best, scores)

    def _better_scores(self, tried: BaselineType, limit: list[float]) -> list[float] | None:
        """Scores on all seeds if their mean is better, on the first ones and on all."""
        scores: list[float] = []
        for seeds in (self._quick, self._rest):
            self._planned += len(seeds)
            scores += self._scores([tried], seeds)[0]
            if self._cost(scores) >= self._cost(limit[: len(scores)]):
                return None
        return scores

    def _scores(self, tried: Sequence[BaselineType], seeds: Sequence[int]) -> list[list[float]]:
        """(tried, seeds)"""
        pairs = [(baseline, seed) for baseline in tried for seed in seeds]
        flat = []
        with ThreadPoolExecutor(self._workers) as threads:
            for value in threads.map(lambda pair: self._problem.score(*pair), pairs):
                flat.append(value)
                self._run += 1
                self._on_progress(self._run, self._planned)
        return [flat[place * len(seeds) : (place + 1) * len(seeds)] for place in range(len(tried))]

    def _cost(self, scores: Sequence[float]) -> float:
        """Mean score, as a cost; one that is undefined is the worst."""
        mean = float(np.mean(scores))
        if math.isnan(mean):
            return math.inf
        return mean if self._problem.better == "lower" else -mean
