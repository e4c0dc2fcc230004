"""Candidates of `loadmaster calibrate` for the heuristics with parameters, and their mean JCT.

A rule starts from a coarse grid, and its best candidate moves by one value of one parameter at a
time.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from loadmaster.envs.calibration import ParameterSpace, Tuning, TuningProblem
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, PROCESS, SPEED_PRICE, Baseline
from loadmaster.envs.gpu_scheduling.calibration import (
    SHIPPED_PATH,
    Calibration,
    gpus_of,
    load_of,
)
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import (
    EpisodeResult,
    build_episode,
    episode_result,
    run_baseline,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

Values = Mapping[str, Sequence[float]]

_PLACE: Values = {
    "price": (0, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2),
    "spread": (0, 0.25, 0.5, 1, 2),
    "fit": (0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
}
_MOVE: Values = {
    "migrate": (0, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3),
    "swap": (0, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3),
}
_AGE: Values = {"age": (0.1, 0.25, 0.5, 1, 2, 4)}
_STICK: Values = {"stick": (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)}
_SIZE: Values = {"size": (0, 0.25, 0.5, 0.75, 1, 1.25)}
_REPLAN: Values = {"replan_s": (60, 120, 240, 360, 600, 1200)}
_QUEUES: Values = {
    "threshold_gpu_s": (600, 1200, 2400, 4800, 9600, 18_000, 36_000, 72_000),
    "second": (0, 3, 8, 20, 50),
    "promote": (0, 0.5, 1, 2, 4, 8, 16),
}
_MOVE_GRID: Values = {"swap": (0, 1.5), "migrate": (0, 1.5)}
_QUEUES_GRID: Values = {"threshold_gpu_s": (1200, 4800, 18_000)}

# Of the orderings: the values of the grid, and those that moves can reach.
_OWN: dict[str, tuple[Values, Values]] = {
    "srtf": (_MOVE_GRID, _MOVE),
    "las": (_MOVE_GRID, {**_MOVE, **_AGE}),
    "tiresias": ({**_QUEUES_GRID, **_MOVE_GRID}, {**_QUEUES, **_REPLAN, **_MOVE, **_AGE}),
    "predicted": (
        {"size": (0, 0.5, 1), "age": (0.5, 1), **_MOVE_GRID},
        {**_SIZE, **_STICK, **_REPLAN, **_MOVE, **_AGE},
    ),
    "gavel": (
        {"size": (0, 1), "replan_s": (120, 360), "swap": (0, 1.5)},
        {**_SIZE, **_STICK, **_REPLAN, **_MOVE, **_AGE},
    ),
    "themis": (
        {"replan_s": (120, 600), **_MOVE_GRID},
        {**_STICK, **_REPLAN, **_MOVE, **_AGE},
    ),
    "shockwave": (
        {"size": (0.5, 1), "fair": (0.5, 1, 2), "swap": (0, 1.5)},
        {**_SIZE, **_STICK, **_REPLAN, **_MOVE, **_AGE, "fair": (0, 0.25, 0.5, 1, 1.5, 2, 3)},
    ),
    "srsf": (
        {"size": (0.5, 1), "swap": (0, 1.5), "migrate": (1.2, 1.5)},
        {**_SIZE, **_STICK, **_MOVE},
    ),
}
_PLACE_GRID: Values = {"price": (0, 0.5), "spread": (0, 1), "fit": (0, 0.2)}


def _space(name: str) -> ParameterSpace | None:
    """Parameters of a rule that have an effect; None if there are none."""
    baseline, ordering = BASELINES[name], name.split("-")[0]
    grid, own = _OWN.get(ordering, ({}, {}))
    if baseline.speeds == PROCESS:
        own = {**own, "optimism": (0, 0.25, 0.5, 0.75, 1)}
    if baseline.placement == SPEED_PRICE:
        return ParameterSpace(grid or _PLACE_GRID, {**own, **_PLACE})
    if ordering == "tiresias":
        return ParameterSpace(_QUEUES_GRID, {**_QUEUES, **_REPLAN})
    return None


SPACES = {name: space for name in BASELINES if (space := _space(name)) is not None}


def prepare(settings: GpuSchedulingSettings) -> TuningProblem[Baseline]:
    """Tune for the mean JCT, in seconds; the fee is kept beside it."""
    workload, cluster = load_workload(settings), build_cluster(settings)
    load = round(load_of(settings, workload, cluster), 4)
    hidden = ", hidden speeds" if settings.speeds == "hidden" else ""

    def result(baseline: Baseline, seed: int) -> EpisodeResult:
        episode = build_episode(settings, seed, workload)
        state = run_baseline(settings, episode, baseline)
        return episode_result(state, *episode[:2], baseline.name, seed)

    def entry(baseline: Baseline, mean: float, seeds: range) -> Calibration:
        fees = [float(np.mean(result(baseline, seed).fee)) for seed in seeds]
        return Calibration(
            baseline=baseline.name,
            workload=workload.name,
            load=load,
            gpus=gpus_of(cluster),
            parameters=dict(baseline.parameters),
            jct_s=round(mean, 2),
            fee=round(float(np.mean(fees)), 4),
            first_seed=seeds.start,
            seeds=len(seeds),
            speeds=settings.speeds,
        )

    return TuningProblem(
        conditions=f"{workload.name}, load {load:g}, {gpus_of(cluster)} GPUs{hidden}",
        candidates=lambda name: SPACES[name].candidates(BASELINES[name]),
        score=lambda baseline, seed: result(baseline, seed).mean_jct_s,
        better="lower",
        entry=entry,
        describe=_describe,
        published=lambda name: BASELINES[name],
        moves=lambda baseline: SPACES[baseline.name].steps(),
        episodes="sequences",
    )


def _describe(baseline: Baseline, jct_s: float) -> str:
    words = [f"{name} {value:g}" for name, value in baseline.parameters.items()]
    return f"{', '.join(words) or 'no parameters'}: {jct_s:.1f} s"


TUNING = Tuning(path=SHIPPED_PATH, tunable=tuple(SPACES), prepare=prepare)
