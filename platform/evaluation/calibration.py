"""Tune the parameters of the dag_scheduling heuristics.

Every candidate runs on a quarter of the job sequences, the best quarter of the candidates on all.
The seeds start at FIRST_SEED; those of an evaluation start at 0.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from loadmaster.envs.dag_scheduling.baselines import BASELINES, TROUBLESOME, Baseline
from loadmaster.envs.dag_scheduling.calibration import Calibration, offered_load
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rollout import episode_result, initial_state, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

FIRST_SEED = 1_000_000
QUICK_SHARE = 4  # the first pass runs one sequence in four
FINALIST_SHARE = 4  # the second pass runs one candidate in four

Scored = tuple[float, Baseline]


def candidates(name: str) -> list[Baseline]:
    """Grid of alpha in -2, -1.9 .. 2, threshold and release."""
    baseline = BASELINES[name]
    alphas = np.round(np.arange(-2, 2.05, 0.1), 1).tolist()
    troublesome = baseline.rule == TROUBLESOME
    return [
        replace(baseline, alpha=alpha, threshold=threshold, release=release)
        for alpha in (alphas[::2] if troublesome else alphas)
        for threshold in ((0.4, 0.7, 1.0) if troublesome else (1.0,))
        for release in (False, True)
    ]


def episodes_needed(name: str, seeds: int) -> int:
    """Number of episodes that `calibrate` runs."""
    tried = len(candidates(name))
    return tried * _quick(seeds) + _finalists(tried) * (seeds - _quick(seeds))


def calibrate(
    name: str,
    settings: DagSchedulingSettings,
    workload: Workload,
    seeds: int,
    workers: int,
    on_episode: Callable[[], None],
) -> tuple[Calibration, list[Scored]]:
    """Return the best parameters, and all finalists with their mean cost in s, best first."""

    def cost(baseline: Baseline, seed: int) -> float:
        state = run_baseline(initial_state(settings, workload, seed), workload.bank, baseline)
        result = episode_result(state, workload, settings, baseline.name, seed)
        return result.mean_jct_s if settings.objective == "jct" else result.makespan_s

    def costs(tried: Sequence[Baseline], chosen: Sequence[int]) -> list[list[float]]:
        """(tried, chosen)"""
        pairs = [(baseline, seed) for baseline in tried for seed in chosen]
        with ThreadPoolExecutor(workers) as threads:
            flat = []
            for value in threads.map(lambda pair: cost(*pair), pairs):
                flat.append(value)
                on_episode()
        return [flat[i : i + len(chosen)] for i in range(0, len(flat), len(chosen))]

    grid = candidates(name)
    sequences = range(FIRST_SEED, FIRST_SEED + seeds)
    quick, rest = sequences[: _quick(seeds)], sequences[_quick(seeds) :]
    first = costs(grid, quick)
    order = sorted(range(len(grid)), key=lambda i: float(np.mean(first[i])))
    finalists = order[: _finalists(len(grid))]
    second = costs([grid[i] for i in finalists], rest) if rest else [[] for _ in finalists]
    scored = [
        (float(np.mean(first[i] + more)), grid[i])
        for i, more in zip(finalists, second, strict=True)
    ]
    scored.sort(key=lambda pair: pair[0])
    best_cost, best = scored[0]
    found = Calibration(
        baseline=name,
        workload=workload.name,
        arrivals=settings.arrivals,
        objective=settings.objective,
        load=round(offered_load(settings, workload), 4),
        alpha=best.alpha,
        threshold=best.threshold,
        release=best.release,
        cost=round(best_cost, 3),
        first_seed=FIRST_SEED,
        seeds=seeds,
    )
    return found, scored


def _quick(seeds: int) -> int:
    return max(1, seeds // QUICK_SHARE)


def _finalists(tried: int) -> int:
    return -(-tried // FINALIST_SHARE)
