"""Tuned parameters of the heuristics, as found by `loadmaster calibrate`.

A calibration file holds one entry per workload, kind of arrivals and load.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.envs.calibration import TunedEntry, cached_entries, nearest_entry
from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rollout import mean_interarrival_s
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"
STAND_IN = "tpch-like"  # its entries serve workloads without any


@dataclass(frozen=True)
class Calibration(TunedEntry):
    """The best parameters of one baseline in one setting."""

    workload: str
    arrivals: str
    objective: str
    load: float  # work offered per executor; 0 for a batch
    alpha: float
    threshold: float
    release: bool
    cost: float  # the objective's mean (s) over the sequences it was tuned on
    first_seed: int
    seeds: int

    @property
    def setting(self) -> tuple[str, str, str, str, float]:
        key = (self.workload, self.arrivals, self.objective)
        return (*key, self.baseline, round(self.load, 2))


def offered_load(settings: DagSchedulingSettings, workload: Workload) -> float:
    """Return the work (executor-seconds) arriving per executor and second; 0 for a batch."""
    if settings.arrivals == "batch":
        return 0.0
    work_s = float(workload.bank.work_ms.mean()) / 1000
    return work_s / (mean_interarrival_s(settings, workload) * settings.total_executors)


def tuned_baseline(name: str, settings: DagSchedulingSettings, workload: Workload) -> Baseline:
    """Return the named baseline with the parameters of the nearest calibration."""
    return tuned_baseline_for(
        name,
        workload=workload.name,
        arrivals=settings.arrivals,
        objective=settings.objective,
        load=offered_load(settings, workload),
        path=settings.calibration or SHIPPED_PATH,
    )


def tuned_baseline_for(
    name: str,
    *,
    arrivals: str,
    load: float,
    workload: str = STAND_IN,
    objective: str = "jct",
    path: Path = SHIPPED_PATH,
) -> Baseline:
    """Return the named baseline tuned for a setting given by its fields."""

    def distance(entry: Calibration) -> tuple[bool, bool, bool, bool, float]:
        return (
            entry.arrivals != arrivals,
            entry.workload != workload,
            entry.workload != STAND_IN,
            entry.objective != objective,
            abs(math.log(max(entry.load, 1e-3) / max(load, 1e-3))),
        )

    baseline = BASELINES[name]
    entries = cached_entries(path, Calibration) if baseline.calibrated else ()
    near = nearest_entry(entries, name, distance)
    if near is None:
        return baseline
    return replace(baseline, alpha=near.alpha, threshold=near.threshold, release=near.release)
