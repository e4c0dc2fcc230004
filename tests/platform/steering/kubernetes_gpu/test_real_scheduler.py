"""The extender behind a real kube-scheduler, with kube-apiserver and etcd; opt-in.

LOADMASTER_KUBE_BIN is a folder with `kube-apiserver`, `kube-scheduler` and `etcd`, of Kubernetes
1.20 or later. The steerer has the rights of docker/kubernetes/gpu-rbac.yaml. Nodes are made up: no
kubelet runs.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.platform.steering.jobs import JobSteerer
from loadmaster.platform.steering.kubernetes.client import MERGE, KubernetesClient, path_of
from loadmaster.platform.steering.kubernetes_gpu.engine import GpuClusterEngine
from loadmaster.platform.steering.kubernetes_gpu.extender import DecisionTable, extender_server
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from tests.platform.steering.kubernetes.test_real_cluster import (
    ACCOUNT,
    KINDS,
    VARIABLE,
    connect,
    free_port,
    start,
    url,
    wait_for,
)
from tests.platform.steering.kubernetes_gpu.cluster import PODS, gpu_node, gpu_pod
from tests.platform.steering.test_jobs import Decider

__all__ = ["url"]  # the fixture
PROGRAMS = "kube-apiserver", "kube-scheduler", "etcd"
FOLDER = Path(os.environ.get(VARIABLE, "/nonexistent"))
MISSING = [name for name in PROGRAMS if not (FOLDER / name).is_file()]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine("kubernetes"),
    pytest.mark.skipif(bool(MISSING), reason=f"{VARIABLE} has no {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def admin(url: str, root: Path) -> KubernetesClient:
    """Two nodes of four GPUs, and the steerer's rights."""
    admin = connect(url, "admin")
    file = root / "docker" / "kubernetes" / "gpu-rbac.yaml"
    for data in yaml.safe_load_all(file.read_text()):
        if data["kind"] == "ClusterRoleBinding":
            continue
        api, plural = KINDS[data["kind"]]
        admin.create(path_of(api, data["metadata"].get("namespace"), plural), data)
    for role in ("loadmaster-steer-gpu", "loadmaster-steer-gpu-order"):
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "User", "name": ACCOUNT, "apiGroup": group}
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        admin.create(path_of(f"{group}/v1", None, "clusterrolebindings"), binding)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    for name in ("n1", "n2"):
        data = gpu_node(name)
        allocatable = data["status"]["allocatable"]
        data["status"] = {**data["status"], "capacity": allocatable}
        admin.create("/api/v1/nodes", data)
        admin.patch(f"/api/v1/nodes/{name}/status", {"status": data["status"]}, MERGE)
    return admin


class Cluster:
    """A steerer whose extender kube-scheduler requests."""

    def __init__(self, url: str, admin: KubernetesClient, stack: ExitStack, folder: Path) -> None:
        self.admin, self.decider = admin, Decider(start=[], stop=[], wait=0)
        settings = GpuClusterSettings(order=True, ttl_s=10)
        self.table = DecisionTable(settings.ttl_s, order=True, new_s=settings.new_s)
        server = ExitStack()
        self.end_server = server.close
        port = server.enter_context(extender_server(self.table, "127.0.0.1", 0))
        stack.callback(server.close)
        client = connect(url, "steer")
        stack.callback(client.close)
        self.engine = GpuClusterEngine(client, settings, self.table)
        self.steerer = JobSteerer(self.decider, "act")
        version = int(re.sub(r"\D", "", admin.get("/version")["minor"]))
        self._start_scheduler(stack, folder, url, version, port)

    def _start_scheduler(
        self, stack: ExitStack, folder: Path, url: str, version: int, port: int
    ) -> None:
        cluster = {"server": url, "insecure-skip-tls-verify": True}
        access = folder / "kubeconfig"
        access.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "admin"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        root = Path(__file__).resolve().parents[4]
        example = root / "docker" / "kubernetes" / "gpu-scheduler.yaml"
        configuration = yaml.safe_load(example.read_text())
        found = "v1" if version >= 25 else "v1beta2" if version >= 22 else "v1beta1"
        configuration["apiVersion"] = f"kubescheduler.config.k8s.io/{found}"
        configuration["clientConnection"] = {"kubeconfig": str(access)}
        configuration["leaderElection"] = {"leaderElect": False}
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}"
        configuration["extenders"][0]["httpTimeout"] = "5s"  # of a machine that is busy
        file = folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(configuration))
        insecure = ["--port=0"] if version < 23 else []
        start(
            stack, folder, "kube-scheduler", f"--config={file}", "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}", f"--cert-dir={folder / 'certs'}",
            "--authentication-skip-lookup=true", *insecure,
        )  # fmt: skip

    def create(self, *names: str) -> None:
        for name in names:
            data = gpu_pod(name, automountServiceAccountToken=False)
            del data["status"], data["metadata"]["uid"], data["metadata"]["creationTimestamp"]
            self.admin.create(PODS, data)

    def node(self, name: str) -> str:
        return str(self.admin.get(f"{PODS}/{name}")["spec"].get("nodeName") or "")

    def step_until(self, check: Callable[[], Any]) -> None:
        def stepped() -> Any:
            result = self.steerer.step(self.engine, time.time())
            assert not result.degraded, result
            return check()

        wait_for(stepped)


@pytest.fixture
def cluster(url: str, admin: KubernetesClient, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(url, admin, stack, tmp_path)


def place(name: str, node: str) -> dict[str, Any]:
    return {"job": f"team/{name}", "placements": [{"machine": node, "instances": 1}]}


def test_pods_start_in_the_order_and_on_the_nodes_of_decisions(cluster: Cluster) -> None:
    cluster.step_until(lambda: cluster.table.counts()["live"])
    cluster.create("a", "b")
    cluster.step_until(lambda: len(cluster.table.held()) == 2)
    assert (cluster.node("a"), cluster.node("b")) == ("", "")
    cluster.decider.decision = {"start": [place("b", "n2")], "stop": [], "wait": 1}
    cluster.step_until(lambda: cluster.node("b"))
    assert (cluster.node("a"), cluster.node("b")) == ("", "n2")
    events = cluster.admin.list(path_of("v1", "team", "events"))
    assert any("loadmaster: " in (one.get("message") or "") for one in events)
    cluster.engine.release()
    wait_for(lambda: cluster.node("a"))


def test_dead_extender_is_ignored(cluster: Cluster) -> None:
    cluster.step_until(lambda: cluster.table.counts()["live"])
    cluster.end_server()
    cluster.create("c")
    assert wait_for(lambda: cluster.node("c"))


def test_stuck_steerer_lets_new_pods_pass(cluster: Cluster) -> None:
    cluster.step_until(lambda: cluster.table.counts()["live"])
    wait_for(lambda: not cluster.table.counts()["live"])
    cluster.create("d")
    assert wait_for(lambda: cluster.node("d"))
