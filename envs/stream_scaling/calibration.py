"""Tuned parameters of the rules, as found by `loadmaster calibrate`.

A calibration file holds one entry per rule, job, workload, semantics, weight of the latency and
scale of the load.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.envs.calibration import TunedEntry, cached_entries, nearest_entry
from loadmaster.envs.stream_scaling.baselines import BASELINES, PARAMETERS, RANDOM, STATIC, Baseline
from loadmaster.envs.stream_scaling.episode import Setup
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"


@dataclass(frozen=True)
class Calibration(TunedEntry):
    """The best parameters of one rule in one setting; for the rule `static`, a plan."""

    job: str
    tasks: int  # of the job
    workload: str
    semantics: str
    latency_weight: float
    load_scale: float
    parameters: Mapping[str, float]  # those that differ from the published ones, or all
    plan: Sequence[int]  # instances of each task; empty: none
    reward: float  # mean over the episodes it was tuned on
    first_seed: int
    seeds: int

    def __post_init__(self) -> None:
        """Raise for what no rule can use."""
        parameters = dict(self.parameters)
        numbers = [self.latency_weight, self.load_scale, *parameters.values()]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("a number below 0, or none")
        if self.load_scale <= 0 or parameters.get("interval_min", 1) < 1 or self.tasks < 1:
            raise ValueError("load_scale, interval_min or tasks too low")
        if self.baseline not in BASELINES or not {*parameters} <= {*PARAMETERS}:
            raise ValueError("an unknown rule or parameter")
        counts = [count for count in self.plan if isinstance(count, int) and count >= 1]
        if self.plan and not len(counts) == len(self.plan) == self.tasks:
            raise ValueError("a plan without a number from 1 on for each task")

    @property
    def setting(self) -> tuple[str, str, str, float, float, str]:
        where = (self.job, self.workload, self.semantics)
        return (*where, self.latency_weight, self.load_scale, self.baseline)


def tuned_baseline(name: str, settings: StreamScalingSettings, setup: Setup) -> Baseline:
    """Return the named baseline with the parameters of the nearest calibration.

    Without an entry of the same job, a rule has the parameters of a job with about as many tasks;
    a static plan fits no other job, so the published parameters apply.
    """
    baseline, near = BASELINES[name], _nearest(name, settings, setup)
    if near is None or (baseline.rule == STATIC and near.job != setup.job.name):
        return baseline
    parameters = {**baseline.parameters, **near.parameters}
    return replace(baseline, parameters=parameters, plan=tuple(near.plan))


def untuned_baselines(settings: StreamScalingSettings, setup: Setup) -> tuple[str, ...]:
    """Names of the rules that were not tuned for this job; `random` has nothing to tune."""
    found = {name: _nearest(name, settings, setup) for name in BASELINES}
    return tuple(
        name
        for name, entry in found.items()
        if BASELINES[name].rule != RANDOM and (entry is None or entry.job != setup.job.name)
    )


def _nearest(name: str, settings: StreamScalingSettings, setup: Setup) -> Calibration | None:
    job = setup.job

    def distance(entry: Calibration) -> tuple[bool, bool, bool, float, float, float]:
        return (
            entry.job != job.name,
            entry.semantics != settings.semantics,
            entry.workload != settings.workload,
            abs(entry.latency_weight - settings.latency_weight),
            abs(math.log(entry.load_scale / settings.load_scale)),
            abs(math.log(entry.tasks / len(job.tasks))),
        )

    entries = cached_entries(settings.calibration or SHIPPED_PATH, Calibration)
    return nearest_entry(entries, name, distance)
