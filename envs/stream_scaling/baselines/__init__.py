"""Baseline rules by name, with their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STATIC, RANDOM, THRESHOLD, HPA, DS2, DHALION, FLINK = range(7)

# Columns of the parameters of all rules, for compiled code.
PARAMETERS = (
    "interval_min", "window_min", "target", "low", "tolerance", "down_min", "settle_min",
    "restart_min", "catch_up_min", "level",
)  # fmt: skip
INTERVAL, WINDOW, TARGET, LOW, TOLERANCE, DOWN_MIN, SETTLE, RESTART, CATCH_UP, LEVEL = range(10)


@dataclass(frozen=True)
class Baseline:
    """A rule (`rules.py`, `formulas.py`) and its parameters by name; those not given are 0.

    The rule `static` may have a `plan` for a job instead, the instances of each task.
    """

    name: str
    summary: str
    rule: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    plan: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of PARAMETERS."""
        return tuple(float(self.parameters.get(name, 0.0)) for name in PARAMETERS)


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline(
            "static", "instances for a share `target` at a load of `level`, never changed", STATIC,
            {"interval_min": 1e9, "target": 0.8, "level": 472},
        ),
        Baseline(
            "threshold", "one instance more above 70% busy, one less if 75% of that then suffices",
            THRESHOLD,
            {"interval_min": 5, "window_min": 5, "target": 0.7, "low": 0.525, "settle_min": 5},
        ),
        Baseline(
            "hpa", "Kubernetes' horizontal pod autoscaler on busy time", HPA,
            {"interval_min": 1, "window_min": 1, "target": 0.8, "tolerance": 0.1, "down_min": 5},
        ),
        Baseline(
            "ds2", "instances for the true rate of each task (Kalavri et al. 2018)", DS2,
            {"interval_min": 5, "window_min": 5, "target": 1.0, "settle_min": 5},
        ),
        Baseline(
            "dhalion", "more where a task holds others up, a fifth less where none does", DHALION,
            {"interval_min": 5, "window_min": 5, "target": 0.1, "low": 0.8, "settle_min": 10},
        ),
        Baseline(
            "flink", "the autoscaler of Flink's Kubernetes operator", FLINK,
            {
                "interval_min": 1, "window_min": 15, "target": 0.7, "tolerance": 0.3,
                "down_min": 60, "settle_min": 5, "restart_min": 5, "catch_up_min": 30,
            },
        ),
        Baseline("random", "every hour a random plan", RANDOM, {"interval_min": 60}),
    )
}  # fmt: skip
