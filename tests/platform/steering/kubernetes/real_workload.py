"""An MPA object and its Deployment on a real control plane, and metrics of its pods."""

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadmaster.platform.steering.core import (
    Mode,
    Recommendation,
    SilentError,
    Steerer,
    StepResult,
)
from loadmaster.platform.steering.kubernetes.engine import MpaEngine
from loadmaster.platform.steering.kubernetes.quantities import size_of
from loadmaster.platform.steering.kubernetes.resource import API, PLURAL, parse_spec
from loadmaster.serving.systems.aware.schema import EXAMPLE
from tests.platform.steering.kubernetes.api_server import (
    DEPLOYMENT,
    MPA,
    PODS,
    Json,
    Received,
    deployment,
    mpa_object,
    parameters,
    query_label,
    serving,
)
from tests.platform.steering.kubernetes.control_plane import (
    WAIT_S,
    Client,
    ControlPlane,
    path_of,
    wait_for,
)

NODE = {
    "apiVersion": "v1", "kind": "Node",
    "metadata": {"name": "c1", "labels": {"kubernetes.io/hostname": "c1"}},
    "status": {
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}  # fmt: skip
HPA = path_of("autoscaling/v1", "shop", "horizontalpodautoscalers")
EVENTS = path_of("v1", "shop", "events")


def prepare(plane: ControlPlane) -> None:
    """A node, and the manifests as docs/kubernetes.md has them."""
    plane.kubectl("apply", "-f", "docker/kubernetes/crd.yaml", "-f", "docker/kubernetes/rbac.yaml")
    plane.kubectl("create", "namespace", "shop")
    plane.add_node(NODE)
    wait_for(lambda: plane.client("admin").get(path_of(API, "shop", PLURAL))["kind"])


class FixedReader:
    """Metrics of an application that keeps its SLO."""

    def read(self, application: Any, now_s: float) -> tuple[dict[str, Any], list[str]]:
        plan = {**application.plan, "replicas": int(application.plan["replicas"])}
        return {**EXAMPLE, "plan": plan, "steps": {**EXAMPLE["steps"], "p99_s": [0.1, 0.1]}}, []


class SilentReader:
    """Prometheus, where it does not answer."""

    def read(self, application: Any, now_s: float) -> Any:
        raise SilentError("metrics", "no answer")


class Wanted:
    """A recommender of one plan."""

    name = "wanted"

    def __init__(self, replicas: float, cpu_m: float, memory_mib: float) -> None:
        self.plan = {"replicas": replicas, "cpu_m": cpu_m, "memory_mib": memory_mib}

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        return Recommendation(self.plan, "as the test wants", "test")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        pass


class PodMetrics:
    """Prometheus, as it would have scraped the pods that there are: a load in thousandths of a
    core that they share, and constant requests."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.load_cpu_m = 600.0

    def handle(self, one: Received, token: str) -> tuple[int, dict[str, str], Json]:
        given = parameters(one)
        label = query_label(given["query"], parse_spec(self._client.get(MPA), "shop/cart"))
        start_s, end_s, step_s = (float(given[name]) for name in ("start", "end", "step"))
        value = self._value(label)
        times = [start_s + step_s * k for k in range(round((end_s - start_s) / step_s) + 1)]
        result = [{"metric": {}, "values": [[at, str(value)] for at in times]}]
        return 200, {}, {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def _value(self, label: str) -> float:
        pods = self._client.list(PODS, labelSelector="app=cart")
        sizes = [size_of(one["spec"]["containers"][0]["resources"], "pod") for one in pods]
        cpu_m, memory = sum(one.cpu_m for one in sizes), sum(one.memory_mib for one in sizes)
        values = {
            "reports.pods": len(pods),
            "reports.ready": sum(map(is_ready, pods)),
            "reports.used_cpu_m": min(self.load_cpu_m, cpu_m),
            "reports.limit_cpu_m": cpu_m,
            "reports.used_memory_mib": 0.5 * memory,
            "reports.peak_memory_mib": 0.5 * memory / max(len(pods), 1),
            "reports.limit_memory_mib": memory,
            "reports.requests": 1500,
            "steps.requests": 6000,
            "steps.p99_s": 0.1,
        }
        return float(values.get(label, 0.0))


def is_ready(pod: Any) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or ()}
    return conditions.get("Ready") == "True"


class Shop:
    """The application shop/cart: a Deployment of three pods, and its MPA object."""

    def __init__(self, plane: ControlPlane, stack: ExitStack, folder: Path, **spec: Any) -> None:
        self.plane, self._stack, self._folder = plane, stack, folder
        self.admin = plane.client("admin")
        self.metrics = PodMetrics(self.admin)
        self.prometheus = stack.enter_context(serving(self.metrics.handle))
        stack.callback(self.close)
        self.admin.create(DEPLOYMENT.rpartition("/")[0], deployment())
        self.admin.create(MPA.rpartition("/")[0], mpa_object(**spec))
        self.wait_ready(3)

    def deployment(self) -> Any:
        return self.admin.get(DEPLOYMENT)

    @property
    def replicas(self) -> int:
        return int(self.deployment()["spec"]["replicas"])

    def status(self) -> Any:
        return self.admin.get(MPA)["status"]

    def pods(self) -> list[Any]:
        """Pods that are not being deleted."""
        found = self.admin.list(PODS)
        return [one for one in found if not one["metadata"].get("deletionTimestamp")]

    def limits(self) -> list[tuple[str, str]]:
        """CPU and memory of each pod."""
        limits = [one["spec"]["containers"][0]["resources"]["limits"] for one in self.pods()]
        return [(one["cpu"], one["memory"]) for one in limits]

    def wait_ready(self, count: int) -> None:
        wait_for(lambda: [is_ready(one) for one in self.pods()] == [True] * count)
        wait_for(lambda: self.deployment()["status"].get("readyReplicas") == count)

    def step(
        self, plan: tuple[float, float, float], mode: Mode = "act", reader: Any = None
    ) -> StepResult:
        """A step towards replicas, CPU and memory, with the rights of rbac.yaml alone."""
        client = self.plane.client("steer")
        try:
            engine = MpaEngine(client, reader or FixedReader(), "shop/cart", mode == "act")
            return Steerer(Wanted(*plan), mode).step(engine, time.time())
        finally:
            client.close()

    def command(self, *options: str) -> subprocess.Popen[str]:
        """`loadmaster steer kubernetes shop/cart`."""
        command = [
            sys.executable, "-c", "from loadmaster.platform.cli.main import main; main()", "steer",
            "kubernetes", "shop/cart", "--prometheus", self.prometheus, "--every", "0.5",
            "--kubeconfig", str(self.plane.kubeconfig("steer")), *options,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait, WAIT_S)
        self._stack.callback(process.kill)
        return process

    def close(self) -> None:
        """Delete everything in the namespace, and wait until the pods are gone."""
        self.admin.delete(MPA)
        self.admin.delete(f"{HPA}/cart")
        self.admin.delete(DEPLOYMENT)
        for one in self.admin.list(EVENTS):
            self.admin.delete(f"{EVENTS}/{one['metadata']['name']}")
        wait_for(lambda: not self.admin.list(PODS))
