"""Tuned parameters of the rules, as found by `loadmaster calibrate`.

A calibration file holds one entry per rule, application (or set of them), workload, level and scale
of the load, way of resizing and weight of the SLO.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.envs.calibration import TunedEntry, cached_entries, nearest_entry
from loadmaster.envs.pod_scaling.applications import TEST, TRAIN
from loadmaster.envs.pod_scaling.baselines import BASELINES, PARAMETERS, RANDOM, Baseline
from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"


@dataclass(frozen=True)
class Calibration(TunedEntry):
    """The best parameters of one rule in one setting."""

    application: str  # the name of one, or the setting of a set
    workload: str
    load: str
    load_scale: float
    resize: str
    slo_weight: float
    parameters: Mapping[str, float]
    reward: float  # mean over the episodes it was tuned on
    first_seed: int
    seeds: int

    def __post_init__(self) -> None:
        """Raise for what no rule can use."""
        numbers = [self.load_scale, self.slo_weight, *dict(self.parameters).values()]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("a number below 0, or none")
        if self.load_scale <= 0:
            raise ValueError("load_scale too low")
        if self.baseline not in BASELINES or not {*self.parameters} <= {*PARAMETERS}:
            raise ValueError("an unknown rule or parameter")

    @property
    def setting(self) -> tuple[str, str, str, float, str, float, str]:
        where = (self.application, self.workload, self.load, self.load_scale)
        return (*where, self.resize, self.slo_weight, self.baseline)


def tuned_baseline(
    name: str, settings: PodScalingSettings, application: str | None = None
) -> Baseline:
    """Return the named baseline with the parameters of the nearest calibration.

    `application` is that of an episode, where the settings name a set. Without an entry for it,
    those of the set apply, or of the generated training set.
    """
    baseline, near = BASELINES[name], _nearest(name, settings, application)
    if near is None:
        return baseline
    return replace(baseline, parameters={**baseline.parameters, **near.parameters})


def tuned_for(settings: PodScalingSettings, setup: Setup) -> str:
    """The name of the only application, else the setting that stands for a set."""
    single = len(setup.applications) == 1
    return setup.applications[0].name if single else settings.application


def untuned_baselines(settings: PodScalingSettings, setup: Setup) -> tuple[str, ...]:
    """Names of the rules that were not tuned for these applications; of `test` by `train`.

    A set counts as tuned for if it is as a whole, or if each of its applications is.
    """
    name = tuned_for(settings, setup)
    own = {name, TRAIN if name == TEST else name}
    members = {application.name for application in setup.applications}
    entries = cached_entries(settings.calibration or SHIPPED_PATH, Calibration)

    def is_tuned(rule: str) -> bool:
        known = {entry.application for entry in entries if entry.baseline == rule}
        return bool(known & own) or members <= known

    return tuple(
        rule for rule in BASELINES if BASELINES[rule].rule != RANDOM and not is_tuned(rule)
    )


def _nearest(
    name: str, settings: PodScalingSettings, application: str | None
) -> Calibration | None:
    def distance(entry: Calibration) -> tuple[int, bool, bool, bool, float, float]:
        order = (application, settings.application, TRAIN)
        place = order.index(entry.application) if entry.application in order else len(order)
        return (
            place,
            entry.workload != settings.workload,
            entry.load != settings.load,
            entry.resize != settings.resize,
            abs(math.log(entry.load_scale / settings.load_scale)),
            abs(entry.slo_weight - settings.slo_weight),
        )

    entries = cached_entries(settings.calibration or SHIPPED_PATH, Calibration)
    return nearest_entry(entries, name, distance)
