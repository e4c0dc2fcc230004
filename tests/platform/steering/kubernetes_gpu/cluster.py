"""A cluster with GPUs in memory: an API server, and a scheduler that requests the extender.

The scheduler tries a pod that it could not place again only where the pod was changed, or another
one has ended, as kube-scheduler does.
"""

import json
import urllib.error
import urllib.request
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from tests.platform.steering.kubernetes.api_server import ApiServer, Json

GPU, LABEL = "nvidia.com/gpu", "nvidia.com/gpu.product"
EPOCH_S = 1_795_000_000.0  # when clusters of tests begin
PODS = "/api/v1/namespaces/team/pods"


def time_text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gpu_node(name: str, gpus: int = 4, product: str = "Tesla-V100-SXM2-16GB", **spec: Any) -> Json:
    ready = {"type": "Ready", "status": "True"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: product, "kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "31850m", "memory": "120Gi", "pods": "110", GPU: str(gpus)},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, ready],
        },
    }  # fmt: skip


def gpu_pod(
    name: str,
    gpus: int = 1,
    job: str = "",
    cpu: str = "2",
    node: str = "",
    phase: str = "",
    created_s: float = EPOCH_S,
    started_s: float = 0.0,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Json:
    resources: Json = {"requests": {"cpu": cpu}}
    if gpus:
        resources["limits"] = {GPU: str(gpus)}
    status: Json = {"phase": phase or ("Running" if node else "Pending")}
    if started_s:
        status["startTime"] = time_text(started_s)
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": f"uid-{name}",
            "labels": {"loadmaster.dev/job": job} if job else {},
            "annotations": annotations or {}, "creationTimestamp": time_text(created_s),
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "train", "image": "train:1", "resources": resources}],
            **({"nodeName": node} if node else {}), **spec,
        },
        "status": status,
    }  # fmt: skip


class GpuApi(ApiServer):
    """Pods and nodes by path; lists of all namespaces."""

    def __init__(self, *objects: Json) -> None:
        super().__init__()
        self.add(*objects)

    def add(self, *objects: Json) -> None:
        for one in objects:
            name = one["metadata"]["name"]
            self.put(f"/api/v1/nodes/{name}" if one["kind"] == "Node" else f"{PODS}/{name}", one)

    def items(self, kind: str) -> list[Json]:
        return [one for one in self.objects.values() if one.get("kind") == kind]

    def pod(self, name: str) -> Json:
        return self.objects[f"{PODS}/{name}"]

    def finish(self, name: str, at_s: float, phase: str = "Succeeded") -> None:
        ended = {"exitCode": 0, "finishedAt": time_text(at_s)}
        status = {
            "name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": ended},
        }  # fmt: skip
        one = self.pod(name)
        one["status"] = {**one["status"], "phase": phase, "containerStatuses": [status]}

    def read(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], Json]:
        kind = {"/api/v1/pods": "Pod", "/api/v1/nodes": "Node"}.get(path)
        if kind is None:
            return super().read(path, query)
        return 200, {}, {"metadata": {}, "items": self.items(kind)}

    def where(self) -> dict[str, str]:
        """Node of each pod that runs."""
        return {
            one["metadata"]["name"]: one["spec"]["nodeName"]
            for one in self.items("Pod")
            if one["spec"].get("nodeName") and one["status"]["phase"] == "Running"
        }


def request(url: str, document: Json) -> Any:
    body = json.dumps(document).encode()
    sent = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=30) as found:
        return json.load(found)


def gpus_of(pod: Json) -> int:
    limits = pod["spec"]["containers"][0]["resources"].get("limits") or {}
    return int(limits.get(GPU, 0))


class Scheduler:
    """Places pods by free GPUs and by an extender, whose silence it ignores (`ignorable`)."""

    def __init__(self, api: GpuApi, url: str, cached_nodes: bool = True) -> None:
        self.api, self.url, self._cached_nodes = api, url, cached_nodes
        self._tried: dict[str, str] = {}  # version of a pod that could not be placed
        self._running: set[str] = set()
        self.silences: list[str] = []  # faults of requests to the extender
        self.events: dict[str, str] = {}  # message of FailedScheduling, by pod
        self.order: list[str] = []  # pods as they were bound

    def run(self, now_s: float) -> None:
        running = set(self.api.where())
        if self._running - running:
            self._tried.clear()  # a pod has ended
        self._running = running
        for pod in self.api.items("Pod"):
            name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
            if pod["spec"].get("nodeName") or self._tried.get(name) == version:
                continue
            node = self._choose(pod)
            if node is None:
                self._tried[name] = version
                continue
            pod["spec"]["nodeName"] = node
            pod["status"] = {"phase": "Running", "startTime": time_text(now_s)}
            self._running.add(name)
            self.order.append(name)

    def free(self) -> dict[str, int]:
        used: dict[str, int] = defaultdict(int)
        for pod in self.api.items("Pod"):
            if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
                used[pod["spec"]["nodeName"]] += gpus_of(pod)
        return {
            one["metadata"]["name"]: int(one["status"]["allocatable"][GPU])
            - used[one["metadata"]["name"]]
            for one in self.api.items("Node")
            if not one["spec"].get("unschedulable")
        }

    def _choose(self, pod: Json) -> str | None:
        free = self.free()
        names = sorted(
            (name for name, gpus in free.items() if gpus >= gpus_of(pod)),
            key=lambda name: (-free[name], name),
        )
        if not names:
            return None
        scores = dict.fromkeys(names, 0)
        try:
            names = self._filtered(pod, names)
            answer = request(f"{self.url}/prioritize", self._arguments(pod, names))
            scores = {one["Host"]: one["Score"] for one in answer}
        except (urllib.error.URLError, ConnectionError) as fault:
            self.silences.append(str(fault))  # `ignorable: true`: places by itself
        return max(names, key=lambda name: scores[name], default=None)

    def _filtered(self, pod: Json, names: list[str]) -> list[str]:
        found = request(f"{self.url}/filter", self._arguments(pod, names))
        assert found["Error"] == ""
        if failed := set(found["FailedNodes"].values()):
            self.events[pod["metadata"]["name"]] = "; ".join(failed)
        if self._cached_nodes:
            passed: list[str] = found["NodeNames"]
            return passed
        return [one["metadata"]["name"] for one in found["Nodes"]["items"]]

    def _arguments(self, pod: Json, names: list[str]) -> Json:
        if self._cached_nodes:
            return {"Pod": pod, "Nodes": None, "NodeNames": names}
        items = [one for one in self.api.items("Node") if one["metadata"]["name"] in names]
        return {"Pod": pod, "Nodes": {"items": items}, "NodeNames": None}
