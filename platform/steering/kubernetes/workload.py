"""A workload and its pods as the API server has them: replicas, sizes, resizes under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.platform.steering.kubernetes.client import KubernetesClient, Object, path_of
from loadmaster.platform.steering.kubernetes.quantities import Size, size_of
from loadmaster.platform.steering.kubernetes.resource import WORKLOADS, MpaSpec

APPS = "apps/v1"
DEFERRED, INFEASIBLE, FAILED = "Deferred", "Infeasible", "Error"  # reasons of resizes that wait
_OPERATORS = {"In": "in", "NotIn": "notin"}


@dataclass(frozen=True)
class Pod:
    """A pod that is not being deleted."""

    name: str
    labels: Mapping[str, str]
    resources: Mapping[str, Any]  # of the container, as specified
    size: Size  # as specified
    actual: Size  # that the kubelet has given it
    ready: bool
    placed: bool  # on a node
    pending: str = ""  # reason of a resize that waits
    message: str = ""
    restarts: frozenset[str] = frozenset()  # resources whose change restarts the container


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet or ReplicaSet."""

    namespace: str
    kind: str
    name: str
    data: Object
    container: str
    resources: Mapping[str, Any]  # of the container in the template
    pods: tuple[Pod, ...]

    @property
    def replicas(self) -> int:
        return int((self.data.get("spec") or {}).get("replicas", 1))

    @property
    def template(self) -> Size:
        return size_of(self.resources, f"{self.namespace}/{self.name}")

    @property
    def size(self) -> Size:
        """The size in the specification of most pods; without pods that of the template."""
        counts = Counter(pod.size for pod in self.pods)
        return max(counts, key=lambda size: (counts[size], size)) if counts else self.template

    def plan(self) -> dict[str, float]:
        size = self.size
        return {
            "replicas": float(self.replicas),
            "cpu_m": size.cpu_m,
            "memory_mib": size.memory_mib,
        }

    def path(self, part: str = "") -> str:
        return path_of(APPS, self.namespace, WORKLOADS[self.kind], self.name, part)

    def is_rolling_out(self) -> bool:
        """Whether a change of the template has not reached all pods."""
        status = self.data.get("status") or {}
        metadata = self.data.get("metadata") or {}
        observed = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
        updated = status.get("updatedReplicas", self.replicas) >= self.replicas
        return not observed or not updated or bool(status.get("unavailableReplicas"))


def read_workload(client: KubernetesClient, spec: MpaSpec, application: str) -> Workload:
    """Read the target and its pods; a target that does not exist is wrong input."""
    namespace, target = application.partition("/")[0], spec.target_ref
    data = client.find(path_of(APPS, namespace, WORKLOADS[target.kind], target.name))
    if data is None:
        raise InputError(
            f"{application}: {target.kind} {target.name!r} does not exist in namespace "
            f"{namespace!r}; expected the workload to scale"
        )
    inside = data.get("spec") or {}
    containers = {
        one["name"]: one for one in ((inside.get("template") or {}).get("spec") or {})["containers"]
    }
    if spec.container is None and len(containers) > 1:
        raise InputError(
            f"{application}: {target.kind} {target.name!r} has containers "
            f"{', '.join(containers)}; expected `container` to name the one to size"
        )
    name = spec.container or next(iter(containers))
    if name not in containers:
        raise InputError(f"{application}: {unknown_name('container', name, containers)}")
    resources = containers[name].get("resources") or {}
    size_of(resources, f"{application}: container {name!r}")
    listed = client.list(
        path_of("v1", namespace, "pods"), labelSelector=selector_text(inside.get("selector") or {})
    )
    pods = [_pod(one, name, resources) for one in listed if _is_there(one)]
    return Workload(
        namespace, target.kind, target.name, data, name, resources,
        tuple(sorted(pods, key=lambda pod: pod.name)),
    )  # fmt: skip


def selector_text(selector: Mapping[str, Any]) -> str:
    """A label selector as a query."""
    parts = [f"{label}={value}" for label, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, operator = one["key"], one["operator"]
        if operator in _OPERATORS:
            parts.append(f"{key} {_OPERATORS[operator]} ({','.join(one['values'])})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return ",".join(parts)


def _is_there(data: Object) -> bool:
    deleted = (data.get("metadata") or {}).get("deletionTimestamp")
    return not deleted and (data.get("status") or {}).get("phase") in (None, "Pending", "Running")


def _pod(data: Object, container: str, default: Mapping[str, Any]) -> Pod:
    metadata, spec, status = (data.get(part) or {} for part in ("metadata", "spec", "status"))
    name = str(metadata["name"])
    found: Object = next(
        (one for one in spec.get("containers") or () if one["name"] == container), {}
    )
    resources = found.get("resources") or default
    size = size_of(resources, f"pod {name}")
    given: Object = next(
        (one for one in status.get("containerStatuses") or () if one.get("name") == container), {}
    )
    running = given.get("resources") or {}
    limits = running.get("limits") or {}
    # Before 1.33 the status has no resources: a pod is what it is specified to be.
    actual = size_of(running, f"pod {name}") if {"cpu", "memory"} <= set(limits) else size
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    waiting = conditions.get("PodResizePending") or {}
    failing = conditions.get("PodResizeInProgress") or {}
    if failing.get("reason") == FAILED:
        waiting = failing
    is_waiting = waiting.get("status") == "True"
    return Pod(
        name=name,
        labels=metadata.get("labels") or {},
        resources=resources,
        size=size,
        actual=actual,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        placed=bool(spec.get("nodeName")),
        pending=str(waiting.get("reason") or DEFERRED) if is_waiting else "",
        message=str(waiting.get("message") or "") if is_waiting else "",
        restarts=frozenset(
            one["resourceName"]
            for one in found.get("resizePolicy") or ()
            if one.get("restartPolicy") == "RestartContainer"
        ),
    )
