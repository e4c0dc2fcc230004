"""The state of a cluster's GPU pods as DAS's endpoint takes it: pods of a job are one gang."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES
from loadmaster.platform.steering.kubernetes_gpu.records import (
    GpuCluster,
    GpuNode,
    GpuPod,
    short_name,
)
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from loadmaster.serving.systems.das.records import LONGEST_S, MOST_INSTANCES, MOST_JOBS

MOST_GPUS, MOST_CPUS = 1_000, 100_000  # of an instance, in states of the endpoint


@dataclass
class ClusterState:
    """The endpoint's document, and the pods of its jobs."""

    document: dict[str, Any] | None = None  # None: no job waits or runs
    waiting: dict[str, tuple[GpuPod, ...]] = field(default_factory=dict)  # unbound pods by job
    incomplete: tuple[GpuPod, ...] = ()  # of jobs that have fewer pods than they start with
    running: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)  # node, instances
    nodes: dict[str, str] = field(default_factory=dict)  # by name in the document
    notes: tuple[str, ...] = ()


def gpu_kind(label: str, settings: GpuClusterSettings) -> str:
    """The type of GPUs with a value of the nodes' label, such as V100 of Tesla-V100-SXM2-16GB."""
    if label in settings.gpu_names:
        return settings.gpu_names[label]
    known = {*GPU_TYPES, *settings.gpu_types}
    words = (one for one in re.split(r"[^A-Za-z0-9]+", label) if one)
    return next((one for one in words if one in known), label or settings.default_gpu)


def cluster_state(
    cluster: GpuCluster,
    settings: GpuClusterSettings,
    placed: Mapping[str, str],
    dropped: Set[str],
    now_s: float,
) -> ClusterState:
    """Convert a cluster. Pods by uid: `placed` will be bound to a node soon, and count as if they
    were; `dropped` are left to the scheduler."""
    builder = _Builder(cluster, settings, placed, dropped, now_s)
    jobs: dict[str, list[GpuPod]] = defaultdict(list)
    for pod in sorted(cluster.pods, key=lambda one: (one.created_s, one.name)):
        if not pod.ended:
            jobs[pod.job].append(pod)
    for job, pods in jobs.items():
        builder.add(job, pods)
    return builder.state()


class _Builder:
    def __init__(
        self,
        cluster: GpuCluster,
        settings: GpuClusterSettings,
        placed: Mapping[str, str],
        dropped: Set[str],
        now_s: float,
    ) -> None:
        self._settings, self._placed, self._dropped, self._now_s = settings, placed, dropped, now_s
        self._nodes = {one.name: one for one in cluster.nodes}
        self._cluster = cluster
        self._kinds = {one.name: gpu_kind(one.label, settings) for one in cluster.nodes}
        self._found = ClusterState()
        self._incomplete = list[GpuPod]()
        self._records = list[dict[str, Any]]()
        self._notes = list[str]()
        self._gpus_used: dict[str, int] = defaultdict(int)
        self._cpus_used: dict[str, float] = defaultdict(float)

    def add(self, job: str, pods: Sequence[GpuPod]) -> None:
        """Add the pods of a job that are bound as one that runs, the others as one that waits."""
        where = {pod.uid: pod.node or self._placed.get(pod.uid, "") for pod in pods}
        bound = [pod for pod in pods if where[pod.uid] in self._nodes]
        for gpus in sorted({pod.gpus for pod in bound}):
            part = [pod for pod in bound if pod.gpus == gpus]
            name = job if gpus == bound[0].gpus else short_name(f"{job}:{gpus}")
            self._add_running(name, part, [where[pod.uid] for pod in part])
        unbound = [pod for pod in pods if not where[pod.uid]]
        if not unbound:
            return
        fault = self._left_alone(unbound)
        if fault:
            if not all(pod.constrained for pod in unbound):
                self._notes.append(f"job {job} {fault}: left alone")
        elif len(pods) < max(pod.size for pod in pods):
            self._incomplete += unbound
        else:
            self._add_waiting(short_name(f"{job}+") if bound else job, unbound)

    def _left_alone(self, pods: Sequence[GpuPod]) -> str:
        """The reason for which waiting pods of a job are left to the scheduler, or nothing."""
        if any(pod.uid in self._dropped for pod in pods):
            return "was not bound where it should start"
        if constraint := next((pod.constrained for pod in pods if pod.constrained), ""):
            return constraint
        if len({pod.gpus for pod in pods}) > 1:
            return "has pods with different numbers of GPUs"
        if pods[0].gpus > MOST_GPUS or max(pod.cpus for pod in pods) > MOST_CPUS:
            return "requests more than any node has"
        if len(pods) > MOST_INSTANCES:
            return f"has more than {MOST_INSTANCES} pods"
        if len(self._records) >= MOST_JOBS:
            return f"comes after {MOST_JOBS} others"
        labels = {pod.gpu_label for pod in pods}
        if labels == {None}:
            return ""
        label = labels.pop()
        kind = gpu_kind(label or "", self._settings)
        alike = {one.label for one in self._cluster.nodes if self._kinds[one.name] == kind}
        if labels or alike != {label}:
            return f"selects nodes with {label}, which is no type of GPUs by itself"
        return ""

    def _add_running(self, job: str, pods: Sequence[GpuPod], nodes: Sequence[str]) -> None:
        counts: dict[str, int] = defaultdict(int)
        cpus = max(pod.cpus for pod in pods)
        for pod, node in zip(pods, nodes, strict=True):
            counts[node] += 1
            self._gpus_used[node] += pod.gpus
            self._cpus_used[node] += cpus
        started_s = min((pod.started_s for pod in pods if pod.started_s), default=self._now_s)
        self._found.running[job] = tuple(sorted(counts.items()))
        self._records.append(
            {
                **self._record(job, pods),
                "placements": [
                    {"machine": short_name(node), "instances": count}
                    for node, count in sorted(counts.items())
                ],
                "running_s": max(self._now_s - started_s, 0.0),
            }
        )

    def _add_waiting(self, job: str, pods: Sequence[GpuPod]) -> None:
        self._found.waiting[job] = tuple(sorted(pods, key=lambda one: one.name))
        record = self._record(job, pods)
        if pods[0].gpu_label is not None:
            record["gpu_type"] = gpu_kind(pods[0].gpu_label, self._settings)
        self._records.append(record)

    def _record(self, job: str, pods: Sequence[GpuPod]) -> dict[str, Any]:
        created_s = min(pod.created_s for pod in pods)
        return {
            "id": job, "user": pods[0].owner, "instances": len(pods),
            "gpus": float(pods[0].gpus), "cpus": max(pod.cpus for pod in pods),
            "age_s": min(max(self._now_s - created_s, 0.0), LONGEST_S), "ran_s": 0.0,
        }  # fmt: skip

    def state(self) -> ClusterState:
        found = self._found
        machines = list[dict[str, Any]]()
        for node in sorted(self._nodes.values(), key=lambda one: one.name):
            used = self._gpus_used[node.name]
            # A node that is cordoned or not ready has no room beside the jobs that it runs.
            count = max(node.gpus, used) if node.usable else used
            if count:
                machines.append(self._machine(node, count))
                found.nodes[short_name(node.name)] = node.name
        found.incomplete, found.notes = tuple(self._incomplete), tuple(self._notes)
        if machines and self._records:
            found.document = {"machines": machines, "jobs": self._records}
        return found

    def _machine(self, node: GpuNode, gpus: int) -> dict[str, Any]:
        kind, own = self._kinds[node.name], self._settings
        cpus = node.cpus - self._cluster.other_cpus.get(node.name, 0.0)
        machine: dict[str, Any] = {
            "name": short_name(node.name), "gpus": gpus, "gpu": kind,
            "cpus": max(cpus, self._cpus_used[node.name], 0.01),
        }  # fmt: skip
        if kind in own.gpu_types:
            machine["speed"] = own.gpu_types[kind].speed
            machine["price_per_hour"] = own.gpu_types[kind].price_per_hour
        elif kind not in GPU_TYPES:
            raise InputError(
                f"node {node.name} has GPUs of type {kind or 'none'!r}; expected one of "
                f"{', '.join(GPU_TYPES)}, a name for it in the setting gpu_names, or speed and "
                "price_per_hour in gpu_types"
            )
        return machine
