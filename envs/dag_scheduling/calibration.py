"""Tuned parameters of the heuristics, as found by `loadmaster calibrate`.

A calibration file holds one entry per workload, kind of arrivals, load, size and kind of cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.envs.calibration import TunedEntry, cached_entries, nearest_entry
from loadmaster.envs.dag_scheduling.baselines import BASELINES, PARAMETERS, Baseline
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rollout import mean_interarrival_s
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"
STAND_IN = "tpch-like"  # its entries serve workloads without any


@dataclass(frozen=True)
class Conditions:
    """What parameters are tuned for."""

    workload: str = STAND_IN
    arrivals: str = "batch"
    objective: str = "jct"
    estimates: str = "known"
    load: float = 0.0  # work offered per executor; 0 for a batch
    jobs: int = 20  # of a batch; 0 for a stream
    executors: int = 50
    classes: int = 1  # of executors
    moving_delay_s: float = 2.0

    def distance(self, other: Conditions) -> tuple[bool, bool, bool, bool, bool, bool, float]:
        """Compare what must be equal first, then the sizes by their ratios."""
        ratios = (
            (self.load or 1e-3, other.load or 1e-3),
            (self.jobs or 1, other.jobs or 1),
            (self.executors, other.executors),
            (1 + self.moving_delay_s, 1 + other.moving_delay_s),
        )
        return (
            self.arrivals != other.arrivals,
            self.workload != other.workload,
            other.workload != STAND_IN,
            self.objective != other.objective,
            self.estimates != other.estimates,
            self.classes != other.classes,
            sum(abs(math.log(one / another)) for one, another in ratios),
        )


@dataclass(frozen=True)
class Calibration(TunedEntry):
    """The best parameters of one baseline in one setting."""

    conditions: Conditions
    parameters: Mapping[str, float]
    cost: float  # the objective's mean (s) over the sequences it was tuned on
    first_seed: int
    seeds: int

    def __post_init__(self) -> None:
        """Read the conditions of a file; raise for what no rule can use."""
        if isinstance(self.conditions, dict):
            object.__setattr__(self, "conditions", Conditions(**self.conditions))
        if self.baseline not in BASELINES or not {*self.parameters} <= {*PARAMETERS}:
            raise ValueError("an unknown rule or parameter")
        if not all(math.isfinite(number) for number in self.parameters.values()):
            raise ValueError("a parameter that is no number")

    @property
    def setting(self) -> tuple[str | float, ...]:
        at = self.conditions
        key = (at.workload, at.arrivals, at.objective, at.estimates, self.baseline)
        return (*key, round(at.load, 2), at.jobs, at.executors, at.classes, at.moving_delay_s)


def offered_load(settings: DagSchedulingSettings, workload: Workload) -> float:
    """Return the work (executor-seconds) arriving per executor and second; 0 for a batch."""
    if settings.arrivals == "batch":
        return 0.0
    work_s = float(workload.bank.work_ms.mean()) / 1000
    return work_s / (mean_interarrival_s(settings, workload) * settings.total_executors)


def conditions_of(settings: DagSchedulingSettings, workload: Workload) -> Conditions:
    """Return what a calibration in these settings is tuned for."""
    return Conditions(
        workload=workload.name,
        arrivals=settings.arrivals,
        objective=settings.objective,
        estimates=settings.estimates,
        load=round(offered_load(settings, workload), 4),
        jobs=settings.jobs_at_start if settings.arrivals == "batch" else 0,
        executors=settings.total_executors,
        classes=len(settings.cluster),
        moving_delay_s=settings.moving_delay_s,
    )


def tuned_baseline(name: str, settings: DagSchedulingSettings, workload: Workload) -> Baseline:
    """Return the named baseline with the parameters of the nearest calibration."""
    where = conditions_of(settings, workload)
    return tuned_baseline_for(name, where, settings.calibration or SHIPPED_PATH)


def tuned_baseline_for(name: str, where: Conditions, path: Path = SHIPPED_PATH) -> Baseline:
    """Return the named baseline tuned for conditions.

    Caps tuned for the jobs of another workload may be far too low: no executor idles by them.
    """
    baseline = BASELINES[name]
    entries = cached_entries(path, Calibration) if baseline.calibrated else ()
    near = nearest_entry(entries, name, lambda entry: where.distance(entry.conditions))
    if near is None:
        return baseline
    parameters = {**baseline.parameters, **near.parameters}
    if near.conditions.workload != where.workload and "spill" in parameters:
        parameters["spill"] = 1.0
    return replace(baseline, parameters=parameters)
