"""Pods and nodes of the Kubernetes API, as far as GPUs are concerned."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loadmaster.platform.steering.kubernetes.quantities import parse_quantity
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings

SIZE = "loadmaster.dev/instances"  # annotation: so many pods of a job start together
NAME_MAX = 100  # characters of a name in states of the endpoint
SUCCEEDED, FAILED = "Succeeded", "Failed"

Object = Mapping[str, Any]


def short_name(text: str) -> str:
    """The name, or its beginning and a hash where it is too long for the endpoint."""
    if len(text) <= NAME_MAX:
        return text
    return f"{text[: NAME_MAX - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class GpuPod:
    """A pod that requests GPUs."""

    uid: str
    namespace: str
    name: str
    job: str  # of which it is an instance; the id in states of the endpoint
    owner: str
    size: int  # instances that the job starts with; 0: those that exist
    gpus: int
    cpus: float
    gpu_label: str | None  # the only value of the nodes' label that the pod accepts
    node: str  # where it is bound, or nothing
    phase: str
    constrained: str  # why it is left to the scheduler, or nothing
    created_s: float
    started_s: float  # 0: not yet
    ended_s: float

    @property
    def ended(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)


def parse_pod(record: Object, settings: GpuClusterSettings) -> GpuPod | None:
    """A pod of the API; None if it requests no GPU."""
    spec, metadata = record.get("spec") or {}, record.get("metadata") or {}
    gpus = _request(spec, settings.resource)
    if gpus < 1:
        return None
    labels, status = metadata.get("labels") or {}, record.get("status") or {}
    namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    group = next((labels[one] for one in settings.job_labels if labels.get(one)), name)
    owner = labels.get(settings.owner_label, "") if settings.owner_label else namespace
    size = str((metadata.get("annotations") or {}).get(SIZE) or "")
    return GpuPod(
        str(metadata.get("uid") or ""),
        namespace,
        name,
        short_name(f"{namespace}/{group}"),
        str(owner)[:NAME_MAX],
        int(size) if size.isdecimal() else 0,
        round(gpus),
        math.ceil(100 * cpu_request(record) - 1e-6) / 100,  # as exact as states are
        (spec.get("nodeSelector") or {}).get(settings.gpu_label),
        str(spec.get("nodeName") or ""),
        str(status.get("phase") or ""),
        _constraint(spec, metadata, settings),
        time_of(metadata.get("creationTimestamp")),
        time_of(status.get("startTime")),
        max(_end_times(status), default=0.0),
    )


def _constraint(spec: Object, metadata: Object, settings: GpuClusterSettings) -> str:
    """The first property that states of the endpoint do not have."""
    if metadata.get("deletionTimestamp"):
        return "is being deleted"
    scheduler = spec.get("schedulerName") or "default-scheduler"
    if scheduler != settings.scheduler:
        return f"is of the scheduler {scheduler}"
    if set(spec.get("nodeSelector") or ()) - {settings.gpu_label}:
        return "has nodeSelector"
    names = "affinity", "schedulingGates", "topologySpreadConstraints", "resourceClaims"
    return next((f"has {name}" for name in names if spec.get(name)), "")


def _request(spec: Object, resource: str) -> float:
    """What the containers request together, or an init container alone if that is more."""
    total = sum(_amounts(spec.get("containers"), resource))
    return max([total, *_amounts(spec.get("initContainers"), resource)])


def _amounts(containers: Sequence[Object] | None, resource: str) -> Iterator[float]:
    for one in containers or ():
        resources = one.get("resources") or {}
        for kind in ("requests", "limits"):  # a request that is not set is the limit
            if (found := (resources.get(kind) or {}).get(resource)) is not None:
                yield parse_quantity(found, f"container {one.get('name')}: {resource}")
                break


def cpu_request(record: Object) -> float:
    """Cores that a pod requests."""
    return _request(record.get("spec") or {}, "cpu")


def _end_times(status: Object) -> Iterator[float]:
    for one in status.get("containerStatuses") or ():
        yield time_of(((one.get("state") or {}).get("terminated") or {}).get("finishedAt"))


def time_of(text: Any) -> float:
    """Seconds since 1970 of a time such as 2026-11-19T01:20:00Z; 0 if there is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0


@dataclass(frozen=True)
class GpuNode:
    """A node with GPUs."""

    name: str
    label: str  # of the type of its GPUs, or nothing
    gpus: int
    cpus: float
    usable: bool  # takes new jobs


def parse_node(record: Object, settings: GpuClusterSettings) -> GpuNode | None:
    """A node of the API; None if it has no GPU."""
    spec, status = record.get("spec") or {}, record.get("status") or {}
    metadata, has = record.get("metadata") or {}, status.get("allocatable") or {}
    name = str(metadata.get("name") or "")
    gpus = int(parse_quantity(has.get(settings.resource) or 0, f"node {name}"))
    if gpus < 1:
        return None
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
    tainted = any(
        one.get("effect") in ("NoSchedule", "NoExecute")
        and one.get("key") not in settings.tolerated
        for one in spec.get("taints") or ()
    )
    return GpuNode(
        name,
        str((metadata.get("labels") or {}).get(settings.gpu_label) or ""),
        gpus,
        parse_quantity(has.get("cpu") or 0, f"node {name}: cpu"),
        ready and not tainted and not spec.get("unschedulable"),
    )


@dataclass(frozen=True)
class GpuCluster:
    """Pods and nodes with GPUs, and cores on these nodes that other pods use."""

    pods: tuple[GpuPod, ...]
    nodes: tuple[GpuNode, ...]
    other_cpus: Mapping[str, float]  # by node


def parse_cluster(
    pods: Sequence[Object], nodes: Sequence[Object], settings: GpuClusterSettings
) -> GpuCluster:
    found_nodes = [one for one in (parse_node(record, settings) for record in nodes) if one]
    other_cpus = {one.name: 0.0 for one in found_nodes}
    found = list[GpuPod]()
    for record in pods:
        pod = parse_pod(record, settings)
        if pod is not None:
            found.append(pod)
            continue
        node = (record.get("spec") or {}).get("nodeName")
        phase = (record.get("status") or {}).get("phase")
        if node in other_cpus and phase not in (SUCCEEDED, FAILED):
            other_cpus[node] += cpu_request(record)
    return GpuCluster(tuple(found), tuple(found_nodes), other_cpus)
