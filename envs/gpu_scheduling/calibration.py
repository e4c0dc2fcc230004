"""Tuned parameters of the heuristics, as found by `loadmaster calibrate`.

A calibration file holds one entry per baseline, workload, load and number of GPUs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loadmaster.envs.calibration import TunedEntry, cached_entries, nearest_entry
from loadmaster.envs.gpu_scheduling.arrivals import mean_gap_s
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, PARAMETERS, Baseline
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"
STAND_IN = "pai-like"  # its entries serve workloads without any
BATCH_LOAD = 10.0  # of jobs that arrive at once


@dataclass(frozen=True)
class Calibration(TunedEntry):
    """The best parameters of one baseline in one setting."""

    workload: str
    load: float  # GPU time requested over that available, at speed 1
    gpus: int
    parameters: Mapping[str, float]
    jct_s: float  # mean over the sequences it was tuned on
    fee: float  # likewise, dollars
    first_seed: int
    seeds: int
    speeds: Literal["known", "hidden"] = "known"

    def __post_init__(self) -> None:
        """Raise for what no rule can use."""
        numbers = [self.load, self.gpus, *dict(self.parameters).values()]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("a number below 0, or none")
        if self.load <= 0 or self.gpus <= 0:
            raise ValueError("load or gpus too low")
        if self.baseline not in BASELINES or not {*self.parameters} <= {*PARAMETERS}:
            raise ValueError("an unknown rule or parameter")
        if self.speeds not in ("known", "hidden"):
            raise ValueError("speeds that are neither known nor hidden")

    @property
    def setting(self) -> tuple[str, str, int, float, str]:
        return (self.speeds, self.workload, self.gpus, round(self.load, 2), self.baseline)


def load_of(settings: GpuSchedulingSettings, workload: Workload, cluster: Cluster) -> float:
    """Return the GPU seconds arriving per second over those that the cluster can do."""
    if settings.arrivals == "batch":
        return BATCH_LOAD
    speed = float((cluster.gpu_capacity * cluster.speed).sum()) / WHOLE
    return workload.mean_gpu_s / (mean_gap_s(settings, workload, cluster) * speed)


def gpus_of(cluster: Cluster) -> int:
    return int(cluster.gpu_capacity.sum()) // WHOLE


def tuned_baseline(name: str, settings: GpuSchedulingSettings, workload: Workload) -> Baseline:
    """Return the named baseline with the parameters of the nearest calibration."""
    cluster = build_cluster(settings)
    return tuned_baseline_for(
        name,
        workload=workload.name,
        load=load_of(settings, workload, cluster),
        gpus=gpus_of(cluster),
        path=settings.calibration or SHIPPED_PATH,
        speeds=settings.speeds,
    )


def tuned_baseline_for(
    name: str,
    *,
    load: float,
    gpus: int,
    workload: str = STAND_IN,
    path: Path = SHIPPED_PATH,
    speeds: str = "known",
) -> Baseline:
    """Return the named baseline tuned for a setting given by its fields."""

    def distance(entry: Calibration) -> tuple[bool, bool, bool, float]:
        farther = abs(math.log(entry.load / load)) + abs(math.log(entry.gpus / gpus))
        unlike = (entry.workload != workload, entry.workload != STAND_IN)
        return (*unlike, entry.speeds != speeds, farther)

    baseline = BASELINES[name]
    entries = cached_entries(path, Calibration)
    near = nearest_entry(entries, name, distance)
    if near is None or (near.speeds != speeds and baseline.tuned_as):
        near = nearest_entry(entries, baseline.tuned_as, distance) or near
    if near is None:
        return baseline
    return replace(baseline, parameters={**baseline.parameters, **near.parameters})
