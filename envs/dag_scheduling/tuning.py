"""Candidates of `loadmaster calibrate` for the heuristics with parameters, and their cost."""

from dataclasses import replace

import numpy as np

from loadmaster.envs.calibration import Tuning, TuningProblem
from loadmaster.envs.dag_scheduling.baselines import BASELINES, TROUBLESOME, Baseline
from loadmaster.envs.dag_scheduling.calibration import SHIPPED_PATH, Calibration, offered_load
from loadmaster.envs.dag_scheduling.rollout import episode_result, initial_state, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload


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


def prepare(settings: DagSchedulingSettings) -> TuningProblem[Baseline]:
    """Tune for the objective's mean, in seconds."""
    workload = load_workload(settings)
    load = round(offered_load(settings, workload), 4)

    def cost(baseline: Baseline, seed: int) -> float:
        state = run_baseline(initial_state(settings, workload, seed), workload.bank, baseline)
        result = episode_result(state, workload, settings, baseline.name, seed)
        return result.mean_jct_s if settings.objective == "jct" else result.makespan_s

    def entry(baseline: Baseline, mean: float, seeds: range) -> Calibration:
        return Calibration(
            baseline=baseline.name,
            workload=workload.name,
            arrivals=settings.arrivals,
            objective=settings.objective,
            load=load,
            alpha=baseline.alpha,
            threshold=baseline.threshold,
            release=baseline.release,
            cost=round(mean, 3),
            first_seed=seeds.start,
            seeds=len(seeds),
        )

    return TuningProblem(
        conditions=f"{workload.name}, load {load:g}",
        candidates=candidates,
        score=cost,
        better="lower",
        entry=entry,
        describe=_describe,
        episodes="sequences",
    )


def _describe(baseline: Baseline, cost: float) -> str:
    kept = "released" if baseline.release else "kept"
    return (
        f"alpha {baseline.alpha:4.1f}, threshold {baseline.threshold:g}, "
        f"executors beyond the share {kept}: {cost:.1f} s"
    )


TUNING = Tuning(
    path=SHIPPED_PATH,
    tunable=tuple(name for name, baseline in BASELINES.items() if baseline.calibrated),
    prepare=prepare,
)
