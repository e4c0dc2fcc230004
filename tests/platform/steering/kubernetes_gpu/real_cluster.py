"""Pods and steerers on a real control plane, for tests of the extender behind kube-scheduler."""

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.platform.steering.core import Mode, Recommendation, StepResult
from loadmaster.platform.steering.jobs import JobSteerer, Limits
from loadmaster.platform.steering.kubernetes.client import path_of
from loadmaster.platform.steering.kubernetes_gpu.engine import SPEC, GpuClusterEngine
from loadmaster.platform.steering.kubernetes_gpu.extender import DecisionTable, extender_server
from loadmaster.platform.steering.kubernetes_gpu.records import SIZE
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from loadmaster.platform.steering.recommenders import find_recommender
from tests.platform.steering.kubernetes.control_plane import (
    RUN_S,
    WAIT_S,
    ControlPlane,
    wait_for,
)
from tests.platform.steering.kubernetes_gpu.cluster import PODS, gpu_node, gpu_pod

RULE = "las-fastest"
EVENTS = path_of("v1", "team", "events")
ORDER_ROLE = "loadmaster-steer-gpu-order"
BIND_ORDER = (  # the command in docker/kubernetes/gpu-rbac.yaml
    "create", "clusterrolebinding", ORDER_ROLE, f"--clusterrole={ORDER_ROLE}",
    "--serviceaccount=loadmaster:loadmaster-steer-gpu",
)  # fmt: skip
NODES = ("n1", "n2")  # of four GPUs each
HOLD = """
class Hold:
    def recommend(self, state):
        waiting = [one for one in state["jobs"] if "placements" not in one]
        return {"start": [], "stop": [], "wait": len(waiting)}, "as the test wants"
"""


def prepare(plane: ControlPlane) -> None:
    """Nodes with GPUs, and the steerer's rights, as docs/kubernetes_gpu.md has them."""
    plane.kubectl("apply", "-f", "docker/kubernetes/gpu-rbac.yaml")
    plane.kubectl(*BIND_ORDER)
    plane.kubectl("create", "namespace", "team")
    for name in NODES:
        plane.add_node(gpu_node(name))


class RecordedRule:
    """A rule whose decisions have ids, and the outcomes that are reported of them."""

    name = RULE

    def __init__(self) -> None:
        self._rule = find_recommender([RULE], SPEC.endpoint)
        self.outcomes: dict[str, Any] = {}

    def recommend(self, application: str, state: Any) -> Recommendation:
        return replace(self._rule.recommend(application, state), id="id")

    def feedback(self, application: str, id: str | None, outcome: Any) -> None:
        assert outcome["job"] not in self.outcomes
        self.outcomes[outcome["job"]] = outcome


class Cluster:
    """Pods in the control plane, and steerers whose extender kube-scheduler requests."""

    def __init__(self, plane: ControlPlane, stack: ExitStack, folder: Path) -> None:
        self.plane, self._stack, self._folder = plane, stack, folder
        self.admin = plane.client("admin")

    def create(
        self, *names: str, gpus: int = 1, run_s: float = 0.0, job: str = "", size: int = 0
    ) -> None:
        annotations = {RUN_S: str(run_s)} if run_s else {}
        annotations |= {SIZE: str(size)} if size else {}
        for name in names:
            data = gpu_pod(name, gpus, job, annotations=annotations)
            del data["status"], data["metadata"]["uid"], data["metadata"]["creationTimestamp"]
            self.admin.create(PODS, data)

    def pods(self) -> dict[str, Any]:
        return {one["metadata"]["name"]: one for one in self.admin.list(PODS)}

    def node(self, name: str) -> str:
        return str(self.admin.get(f"{PODS}/{name}")["spec"].get("nodeName") or "")

    def bound(self) -> set[str]:
        return {name for name, one in self.pods().items() if one["spec"].get("nodeName")}

    def has_ended(self) -> bool:
        """Whether all pods have run to their end."""
        return {one["status"]["phase"] for one in self.pods().values()} == {"Succeeded"}

    def bindings(self) -> Counter[str]:
        """How often each pod was bound, by kube-scheduler's events."""
        return Counter(one["involvedObject"]["name"] for one in self._events("Scheduled"))

    def failures(self, name: str) -> str:
        """Why a pod waits, by its condition PodScheduled and kube-scheduler's events about it.

        An event of a pod that has not changed since the last one is counted, without its message.
        """
        pod, events = self.pods()[name], self._events("FailedScheduling")
        about = [one for one in events if one["involvedObject"]["name"] == name]
        about += pod["status"].get("conditions") or ()
        return "; ".join(one.get("message") or "" for one in about)

    def _events(self, reason: str) -> list[dict[str, Any]]:
        """Events about pods that are there; those of others may come late, from a test before."""
        pods = {one["metadata"]["uid"] for one in self.pods().values()}
        found = [one for one in self.admin.list(EVENTS) if one.get("reason") == reason]
        return [one for one in found if one["involvedObject"].get("uid") in pods]

    def clear(self) -> None:
        for name in self.pods():
            self.admin.delete(f"{PODS}/{name}")
        for one in self.admin.list(EVENTS):
            self.admin.delete(f"{EVENTS}/{one['metadata']['name']}")

    def steer(self, recommender: Any, mode: Mode = "act", **settings: Any) -> "Steered":
        given = GpuClusterSettings.model_validate({"order": True, "ttl_s": 15, **settings})
        return Steered(self.plane, self._stack, recommender, mode, given)

    def command(self, *options: str) -> subprocess.Popen[str]:
        """`loadmaster steer kubernetes-gpu --mode act` with the setting `order`."""
        (self._folder / "hold.py").write_text(HOLD)
        command = [
            sys.executable, "-c", "from loadmaster.platform.cli.main import main; main()", "steer",
            "kubernetes-gpu", "--mode", "act", "--every", "0.5", "--set", "order=true",
            "--set", f"port={self.plane.extender_port}",
            "--set", f"kubeconfig={self.plane.kubeconfig('gpu')}", *options,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait, WAIT_S)
        self._stack.callback(process.kill)
        wait_for(self._is_live)  # from then on new pods are held until they are decided about
        return process

    def _is_live(self) -> bool:
        """Whether the extender of a command holds pods."""
        url = f"http://127.0.0.1:{self.plane.extender_port}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=5) as found:
                return bool(json.load(found)["live"])
        except OSError:
            return False


class Steered:
    """A steerer in this process."""

    def __init__(
        self,
        plane: ControlPlane,
        stack: ExitStack,
        recommender: Any,
        mode: Mode,
        settings: GpuClusterSettings,
    ) -> None:
        self.table = DecisionTable(settings.ttl_s, settings.order, settings.new_s)
        server = ExitStack()
        self.end_server = server.close
        server.enter_context(extender_server(self.table, "127.0.0.1", plane.extender_port))
        stack.callback(server.close)
        client = plane.client("gpu")
        stack.callback(client.close)
        self.engine = GpuClusterEngine(client, settings, self.table)
        self.steerer = JobSteerer(recommender, mode, Limits(back_off_s=1))

    def step(self) -> StepResult:
        return self.steerer.step(self.engine, time.time())

    def step_until(self, check: Callable[[StepResult], Any], seconds: float = WAIT_S) -> Any:
        def stepped() -> Any:
            result = self.step()
            assert not result.degraded, result
            return check(result)

        return wait_for(stepped, seconds)

    def is_live(self, result: StepResult | None = None) -> bool:
        return bool(self.table.counts()["live"])
