"""The state of a Slurm cluster as DAS's endpoint takes it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.slurm.records import SlurmJob, SlurmNode

# Reasons for which a pending job cannot be started, by its user or by limits of the site.
_BLOCKED = (
    "JobHeld", "Dependency", "Assoc", "QOS", "Licenses", "Reservation", "Partition",
    "BadConstraints", "Prolog", "Invalid", "AccountNotAllowed", "JobArrayTaskLimit",
)  # fmt: skip


def is_managed(job: SlurmJob, now_s: float) -> bool:
    """Whether a pending job may be started and put off: nothing but the steerer delays it."""
    if not job.pending or job.constrained or job.reason.startswith(_BLOCKED):
        return False
    return job.mark is not None or job.eligible_s <= now_s


def since_start_s(job: SlurmJob, now_s: float) -> float | None:
    """Time since a pending job was started; None: it was not, or its begin time is to come."""
    if not job.pending or job.mark is None or not (job.mark.placed and job.required):
        return None
    return now_s - job.eligible_s if now_s >= job.eligible_s else None


@dataclass(frozen=True)
class StartTimes:
    """How long a start may take, and after what time a job is started again."""

    start_s: float = 5.0  # until then a pending job counts as running where it was placed
    retry_s: float = 15.0  # such as after a start on GPUs that another job took


class GpuKind(Settings):
    """A type of GPU that is not built in."""

    speed: float = Field(gt=0, le=1000, description="Relative to a V100.")
    price_per_hour: float = Field(ge=0, le=1e6, description="Dollars, of one GPU.")


@dataclass(frozen=True)
class ClusterState:
    """The endpoint's document, and the waiting jobs that may be started."""

    document: dict[str, Any] | None  # None: no job waits or runs
    waiting: Mapping[str, SlurmJob]
    running: Mapping[str, SlurmJob]
    notes: tuple[str, ...]


def cluster_state(
    jobs: Sequence[SlurmJob],
    nodes: Sequence[SlurmNode],
    gpu_types: Mapping[str, GpuKind],
    default_gpu: str,
    now_s: float,
    times: StartTimes | None = None,
) -> ClusterState:
    """Convert jobs and nodes; `gpu_types` are speeds and prices of types of the site."""
    times = times or StartTimes()
    shards = {node.name: node.shards / node.gpus for node in nodes}
    most = max(shards.values(), default=0.0)
    waiting, running = dict[str, SlurmJob](), dict[str, SlurmJob]()
    records, notes = list[dict[str, Any]](), list[str]()
    gpus_used: dict[str, float] = defaultdict(float)
    cpus_used: dict[str, float] = defaultdict(float)
    for job in sorted(jobs, key=lambda one: (one.first_submit_s, one.id)):
        name = str(job.id)
        kind, amount = job.per_instance
        if kind == "shard" and not most:
            continue
        gpus = float(amount) if kind == "gpu" else round(amount / most, 2)
        started_s = since_start_s(job, now_s)
        if job.holds_gpus or (started_s is not None and started_s < times.start_s):
            placements = _placements(job)
            if not placements or any(one not in shards for one in placements):
                continue
            running[name] = job
        elif is_managed(job, now_s) and (started_s is None or started_s >= times.retry_s):
            placements, waiting[name] = {}, job
        else:
            continue
        instances = sum(placements.values()) or job.instances
        cpus = max(job.cpus / instances, 0.0)
        for machine, count in placements.items():
            gpus_used[machine] += count * gpus
            cpus_used[machine] += count * cpus
        record: dict[str, Any] = {
            "id": name, "user": job.user[:100], "instances": instances, "gpus": gpus, "cpus": cpus,
            "age_s": max(now_s - job.first_submit_s, 0.0), "ran_s": job.ran_s,
        }  # fmt: skip
        if job.gpu_type is not None:
            record["gpu_type"] = job.gpu_type
        if placements:
            record["placements"] = [
                {"machine": machine, "instances": count} for machine, count in placements.items()
            ]
            record["running_s"] = 0.0 if job.pending else max(now_s - job.start_s, 0.0)
        records.append(record)
    machines = list[dict[str, Any]]()
    for node in sorted(nodes, key=lambda one: one.name):
        used = math.ceil(gpus_used[node.name] - 1e-6)
        # No room on a node that is drained or down, or that has more jobs than its GPUs explain.
        count = max(node.gpus, used) if node.usable else used
        if not count:
            continue
        kind = node.gpu or default_gpu
        listed: dict[str, Any] = {
            "name": node.name, "gpus": count, "gpu": kind,
            "cpus": max(node.cpus, cpus_used[node.name], 1.0),
        }  # fmt: skip
        if kind in gpu_types:
            listed["speed"] = gpu_types[kind].speed
            listed["price_per_hour"] = gpu_types[kind].price_per_hour
        elif kind not in GPU_TYPES:
            raise InputError(
                f"node {node.name} has GPUs of type {kind or 'none'!r}; expected one of "
                f"{', '.join(GPU_TYPES)}, or speed and price_per_hour in the setting gpu_types"
            )
        machines.append(listed)
    kinds = {machine["gpu"] for machine in machines}
    for name in [one for one, job in waiting.items() if job.gpu_type not in {None, *kinds}]:
        notes.append(f"job {name} needs a GPU of type {waiting.pop(name).gpu_type}: left alone")
        records = [record for record in records if record["id"] != name]
    document = {"machines": machines, "jobs": records} if machines and records else None
    return ClusterState(document, waiting, running, tuple(notes))


def _placements(job: SlurmJob) -> dict[str, int]:
    """Instances of a job by node: by the GPUs that Slurm gave it there, else in equal shares."""
    if job.pending:
        return dict(job.mark.placed) if job.mark is not None else {}
    if not job.nodes:
        return {}
    amount = job.per_instance[1]
    if len(job.used) == len(job.nodes) and all(count % amount == 0 for _, count in job.used):
        counts = [count // amount for _, count in job.used]
    else:
        share, rest = divmod(job.instances, len(job.nodes))
        counts = [share + (place < rest) for place in range(len(job.nodes))]
    return {name: count for name, count in zip(job.nodes, counts, strict=True) if count}
