"""Baseline rules by name, with their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STATIC, RANDOM, HPA, VPA, MPA, MPA_USAGE, HPA_VPA, PEAK = range(8)

# Columns of the parameters of all rules, for compiled code. Factors are of the episode's first
# plan: a core a pod, memory for all its workers, replicas for half of the CPU at the first load.
PARAMETERS = (
    "target", "tolerance", "down_min", "cpu_factor", "memory_factor", "replicas_factor",
    "percentile", "margin", "half_life_min", "window_min",
)  # fmt: skip
(
    TARGET, TOLERANCE, DOWN_MIN, CPU_FACTOR, MEMORY_FACTOR, REPLICAS_FACTOR, PERCENTILE, MARGIN,
    HALF_LIFE, WINDOW,
) = range(10)  # fmt: skip

_SIZES = {"cpu_factor": 1.0, "memory_factor": 1.0, "replicas_factor": 1.0}
_HPA = {"target": 0.7, "tolerance": 0.1, "down_min": 5}
_VPA = {"percentile": 0.9, "margin": 0.15, "half_life_min": 60}


@dataclass(frozen=True)
class Baseline:
    """A rule (`rules.py`) and its parameters by name; those not given are 0."""

    name: str
    summary: str
    rule: int
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of PARAMETERS."""
        return tuple(float(self.parameters.get(name, 0.0)) for name in PARAMETERS)


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("static", "factors of the first plan, never changed", STATIC, _SIZES),
        Baseline(
            "hpa", "Kubernetes' horizontal pod autoscaler on CPU utilisation", HPA,
            {**_SIZES, **_HPA},
        ),
        Baseline(
            "vpa", "Kubernetes' vertical pod autoscaler, replicas never changed", VPA,
            {**_SIZES, **_VPA},
        ),
        Baseline(
            "mpa", "vpa and hpa in alternate control steps", MPA, {**_SIZES, **_HPA, **_VPA},
        ),
        Baseline(
            "mpa-usage", "the same with hpa on usage, a number of cores a pod", MPA_USAGE,
            {**_SIZES, **_HPA, **_VPA},
        ),
        Baseline(
            "hpa-cpu-vpa-memory", "hpa on CPU with vpa on memory alone", HPA_VPA,
            {**_SIZES, **_HPA, **_VPA},
        ),
        Baseline(
            "window-peak", "limits at the peak of a moving window with a margin (Autopilot)", PEAK,
            {**_SIZES, "margin": 0.15, "window_min": 30},
        ),
        Baseline("random", "a random plan in every control step", RANDOM),
    )
}  # fmt: skip
