"""Candidates of `loadmaster calibrate` for the rules with parameters, and their score, the reward.

A rule starts from a coarse grid, and its best candidate moves by one value of one parameter at a
time. An application is tuned alone (`application=NAME`), a set of applications with one
parametrisation for all (`application=train`).
"""

from loadmaster.envs.calibration import ParameterSpace, Tuning, TuningProblem
from loadmaster.envs.pod_scaling.baselines import BASELINES, Baseline
from loadmaster.envs.pod_scaling.calibration import SHIPPED_PATH, Calibration, tuned_for
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.rollout import run_baseline
from loadmaster.envs.pod_scaling.settings import PodScalingSettings

_FACTORS = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
_TARGETS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
_MARGINS = (0.0, 0.1, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
_SIZES = {"cpu_factor": _FACTORS, "memory_factor": _FACTORS, "replicas_factor": _FACTORS}
_HPA = {"target": _TARGETS, "tolerance": (0.02, 0.05, 0.1, 0.2), "down_min": (0, 1, 2, 5, 10, 20)}
_VPA = {
    "percentile": (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0), "margin": _MARGINS,
    "half_life_min": (10, 20, 60, 240),
}  # fmt: skip
_HPA_GRID = {
    "target": (0.4, 0.55, 0.7), "down_min": (1, 5), "cpu_factor": (0.5, 1.0, 2.0),
    "memory_factor": (0.6, 0.8, 1.0),
}  # fmt: skip
_MPA_GRID = {
    "target": (0.4, 0.55, 0.7), "percentile": (0.9, 0.98), "margin": (0.15, 0.5, 1.0),
    "half_life_min": (10, 60),
}  # fmt: skip

SPACES = {
    "static": ParameterSpace(
        {
            "cpu_factor": (0.5, 0.8, 1.0, 2.0), "memory_factor": (0.5, 0.6, 0.7, 0.8, 1.0),
            "replicas_factor": (0.5, 0.7, 1.0, 1.3, 2.0),
        },
        _SIZES,
    ),
    "hpa": ParameterSpace(_HPA_GRID, {**_SIZES, **_HPA}),
    "vpa": ParameterSpace(
        {
            "replicas_factor": (0.5, 1.0), "percentile": (0.9, 0.98),
            "margin": (0.15, 0.5, 1.0), "half_life_min": (10, 60),
        },
        {**_SIZES, **_VPA},
    ),
    "mpa": ParameterSpace(_MPA_GRID, {**_SIZES, **_HPA, **_VPA}),
    "mpa-usage": ParameterSpace(_MPA_GRID, {**_SIZES, **_HPA, **_VPA}),
    "hpa-cpu-vpa-memory": ParameterSpace(
        {
            "target": (0.4, 0.55, 0.7), "down_min": (1, 5), "cpu_factor": (0.5, 1.0, 2.0),
            "percentile": (0.9, 0.98), "margin": (0.0, 0.15), "half_life_min": (60,),
        },
        {**_SIZES, **_HPA, **_VPA},
    ),
    "window-peak": ParameterSpace(
        {
            "replicas_factor": (0.5, 0.7, 1.0), "margin": (0.15, 0.5, 1.0, 2.0),
            "window_min": (10, 30),
        },
        {**_SIZES, "margin": _MARGINS, "window_min": (2, 5, 10, 20, 30, 60)},
    ),
}  # fmt: skip


def prepare(settings: PodScalingSettings) -> TuningProblem[Baseline]:
    """Tune for the mean reward."""
    setup = build_setup(settings)

    def entry(baseline: Baseline, mean: float, seeds: range) -> Calibration:
        return Calibration(
            baseline=baseline.name,
            application=tuned_for(settings, setup),
            workload=settings.workload,
            load=settings.load,
            load_scale=settings.load_scale,
            resize=settings.resize,
            slo_weight=settings.slo_weight,
            parameters=dict(baseline.parameters),
            reward=round(mean, 4),
            first_seed=seeds.start,
            seeds=len(seeds),
        )

    return TuningProblem(
        conditions=f"{tuned_for(settings, setup)}, {settings.workload}",
        candidates=lambda name: SPACES[name].candidates(BASELINES[name]),
        score=lambda baseline, seed: run_baseline(baseline, settings, setup, seed).reward,
        better="higher",
        entry=entry,
        describe=_describe,
        published=lambda name: BASELINES[name],
        moves=lambda baseline: SPACES[baseline.name].steps(),
    )


def _describe(baseline: Baseline, reward: float) -> str:
    words = [f"{name} {value:g}" for name, value in baseline.parameters.items()]
    return f"{', '.join(words)}: reward {reward:.4f}"


def each_application(settings: PodScalingSettings) -> list[PodScalingSettings]:
    """Settings for every application of the set alone."""
    names = [application.name for application in build_setup(settings).applications]
    return [settings.model_copy(update={"application": name}) for name in names]


TUNING = Tuning(path=SHIPPED_PATH, tunable=tuple(SPACES), prepare=prepare, each=each_application)
