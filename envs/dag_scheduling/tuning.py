"""Candidates of `loadmaster calibrate` for the heuristics with parameters, and their cost.

A rule starts from a coarse grid, and its best candidate moves by one value of one parameter at a
time.
"""

from functools import partial

import numpy as np

from loadmaster.envs.calibration import Move, ParameterSpace, Tuning, TuningProblem, with_parameters
from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.calibration import SHIPPED_PATH, Calibration, conditions_of
from loadmaster.envs.dag_scheduling.rollout import episode_result, initial_state, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload

_ALPHAS = np.round(np.arange(-2, 2.05, 0.1), 1).tolist()
_SWITCH = (0.0, 1.0)
_STAY = (0.0, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 3.0, 8.0)

SPACES = {
    "weighted-fair": ParameterSpace({"alpha": _ALPHAS, "release": _SWITCH}, {}),
    "graphene": ParameterSpace(
        {"alpha": _ALPHAS[::2], "threshold": (0.4, 0.7, 1.0), "release": _SWITCH}, {}
    ),
    "srpt-caps": ParameterSpace(
        {
            "scale": (0.09, 0.18, 0.36, 0.72), "alpha": (0.3, 0.45), "stay": (0.7, 1.4),
            "spill": _SWITCH,
        },
        {
            "scale": np.geomspace(0.01, 10, 49).round(4).tolist(),
            "alpha": np.arange(-0.5, 1.21, 0.05).round(2).tolist(),
            "share": np.arange(0, 1.51, 0.1).round(1).tolist(),
            "stay": _STAY, "path": (0.0, 0.1, 0.2, 0.35, 0.5, 1.0), "spill": _SWITCH,
        },
    ),
    "hesrpt": ParameterSpace(
        {"speedup": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "stay": _STAY[::2],
         "spill": _SWITCH},
        {"path": (0.0, 0.1, 0.2, 0.35, 0.5, 1.0)},
    ),
    "carbyne": ParameterSpace(
        {"altruism": (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0), "stay": _STAY},
        {"path": (0.0, 0.1, 0.2, 0.35, 0.5, 1.0)},
    ),
}  # fmt: skip


def _turn(up: bool, baseline: Baseline) -> Baseline | None:
    """The next exponent of the work, with the scale that keeps the cap of a job of 1,000 s."""
    now = baseline.parameters["alpha"]
    alpha = SPACES[baseline.name].next_value("alpha", now, up)
    if alpha is None:
        return None
    scale = round(baseline.parameters["scale"] * 1000.0 ** (now - alpha), 5)
    return with_parameters(baseline, {"alpha": alpha, "scale": scale})


def moves(baseline: Baseline) -> list[Move[Baseline]]:
    """All changes of one parameter by one value, and of alpha with the scale."""
    turns = [partial(_turn, up) for up in (True, False)] if "scale" in baseline.parameters else []
    steps: list[Move[Baseline]] = SPACES[baseline.name].steps()
    return [*steps, *turns]


def prepare(settings: DagSchedulingSettings) -> TuningProblem[Baseline]:
    """Tune for the objective's mean, in seconds."""
    workload = load_workload(settings)
    conditions = conditions_of(settings, workload)

    def cost(baseline: Baseline, seed: int) -> float:
        state = run_baseline(initial_state(settings, workload, seed), workload.bank, baseline)
        result = episode_result(state, workload, settings, baseline.name, seed)
        return result.mean_jct_s if settings.objective == "jct" else result.makespan_s

    def entry(baseline: Baseline, mean: float, seeds: range) -> Calibration:
        return Calibration(
            baseline=baseline.name,
            conditions=conditions,
            parameters=dict(baseline.parameters),
            cost=round(mean, 3),
            first_seed=seeds.start,
            seeds=len(seeds),
        )

    return TuningProblem(
        conditions=f"{workload.name}, load {conditions.load:g}",
        candidates=lambda name: SPACES[name].candidates(BASELINES[name]),
        score=cost,
        better="lower",
        entry=entry,
        describe=_describe,
        moves=moves,
        episodes="sequences",
    )


def _describe(baseline: Baseline, cost: float) -> str:
    words = [f"{name} {value:g}" for name, value in baseline.parameters.items()]
    return f"{', '.join(words)}: {cost:.1f} s"


TUNING = Tuning(
    path=SHIPPED_PATH,
    tunable=tuple(name for name, baseline in BASELINES.items() if baseline.calibrated),
    prepare=prepare,
)
