"""A few figures of a state, and the training environment that resembles them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from loadmaster.envs.gpu_scheduling.cluster import CLUSTERS
from loadmaster.serving.systems.das.schema import DasState

_LOADS = 0.2, 1.5  # least and most that an episode is offered
_ROWS = 64, 128  # for jobs in the observation, as the policies that ship have learnt with


def features_of(state: DasState) -> dict[str, float]:
    """What there is nothing to say of is left out."""
    waiting = [job for job in state.jobs if not job.placements]
    running = [job for job in state.jobs if job.placements]
    gpus = float(sum(machine.gpus for machine in state.machines))
    asked = [job.instances * job.gpus for job in state.jobs]
    found = {
        "gpus": gpus,
        "jobs_waiting": float(len(waiting)),
        "jobs_running": float(len(running)),
        "gpu_utilisation": sum(job.instances * job.gpus for job in running) / gpus,
        "waited_log_min": 0.0,
    }
    if asked:
        found["gpus_per_job"] = sum(asked) / len(asked)
    if waiting:
        found["waited_log_min"] = sum(math.log1p(job.age_s / 60) for job in waiting) / len(waiting)
    speeds = [job.speed for job in running if job.speed is not None]
    if speeds:
        found["speed"] = sum(speeds) / len(speeds)
    return found


def settings_like(features: Mapping[str, float]) -> dict[str, Any]:
    """Of the environment gpu_scheduling: the cluster nearest in size, and about that load.

    Which machines there are cannot be told from means, nor the jobs' durations. Load is GPU time
    asked for over GPU time there is: GPUs in use, and beyond them those that waiting jobs ask for.
    """
    gpus = max(features.get("gpus", 1.0), 1.0)
    cluster = min(CLUSTERS, key=lambda name: abs(math.log(_gpus_of(name) / gpus)))
    waiting = features.get("jobs_waiting", 0.0)
    short = waiting * features.get("gpus_per_job", 1.0) / gpus
    load = features.get("gpu_utilisation", 0.0) + min(short, 1.0)
    jobs = waiting + features.get("jobs_running", 0.0)
    return {
        "cluster": cluster,
        "arrivals": "poisson",
        "load": round(min(max(load, _LOADS[0]), _LOADS[1]), 2),
        "preempt": True,
        "max_queue": _ROWS[0] if 2 * jobs <= _ROWS[0] else _ROWS[1],
    }


def _gpus_of(cluster: str) -> int:
    return sum(group.count * group.gpus for group in CLUSTERS[cluster])
