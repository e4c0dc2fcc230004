"""Tuned parameters of the heuristics, as found by `loadmaster calibrate`.

A fair comparison needs baselines tuned for the load, on job sequences that no evaluation uses. A
calibration file holds one entry per workload, kind of arrivals and load; an episode uses the
nearest entry.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rollout import mean_interarrival_s
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError

SHIPPED_PATH = Path(__file__).parent / "baselines" / "calibrated.json"
STAND_IN = "tpch-like"  # its entries serve workloads without any


@dataclass(frozen=True)
class Calibration:
    """The best parameters of one baseline in one setting."""

    baseline: str
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
    entries = read_calibrations(path) if baseline.calibrated else ()
    near = min((entry for entry in entries if entry.baseline == name), key=distance, default=None)
    if near is None:
        return baseline
    return replace(baseline, alpha=near.alpha, threshold=near.threshold, release=near.release)


@lru_cache(maxsize=8)
def read_calibrations(path: Path) -> tuple[Calibration, ...]:
    """Read all entries of a calibration file."""
    try:
        return tuple(Calibration(**entry) for entry in json.loads(path.read_text()))
    except OSError as fault:
        raise InputError(
            f"calibration {path}: {fault.strerror}; expected a readable file"
        ) from None
    except (ValueError, TypeError):
        raise InputError(
            f"calibration {path} is malformed; expected what `loadmaster calibrate` writes"
        ) from None


def merge_calibrations(path: Path, fresh: Sequence[Calibration]) -> str:
    """Return the file's new text, in which `fresh` entries replace those of the same setting."""

    def setting(entry: Calibration) -> tuple[str, str, str, str, float]:
        key = (entry.workload, entry.arrivals, entry.objective)
        return (*key, entry.baseline, round(entry.load, 2))

    entries = {setting(e): e for e in (read_calibrations(path) if path.exists() else ())}
    entries |= {setting(e): e for e in fresh}
    return json.dumps([asdict(entries[key]) for key in sorted(entries)], indent=1) + "\n"
