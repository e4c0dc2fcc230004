"""A Kubernetes control plane on 127.0.0.1: etcd, kube-apiserver, kube-scheduler, controllers.

It needs no root. Nodes are made up, and a thread in this process does what their kubelets would
report. kube-scheduler requests the extender at `extender_port`, whether or not one listens there.
"""

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.access import find_access
from loadmaster.platform.steering.kubernetes.client import (
    MERGE,
    ApiError,
    KubernetesClient,
    Object,
    Request,
    path_of,
)

PROGRAMS = "etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl"
ACCOUNTS = {  # by user; of the manifests in docker/kubernetes, by token instead of as a pod
    "admin": "admin",
    "steer": "system:serviceaccount:loadmaster:loadmaster-steer",
    "gpu": "system:serviceaccount:loadmaster:loadmaster-steer-gpu",
}
ADMINISTRATORS = "system:masters"
CONTROLLERS = "deployment,replicaset,horizontalpodautoscaling,job,garbagecollector"
RUN_S = "tests.loadmaster.dev/run-s"  # annotation: a pod ends by itself after so many seconds
KUBELET_S = 0.2  # between rounds of the kubelets
WAIT_S = 60.0  # on a busy machine
ROOT = Path(__file__).resolve().parents[4]


class Client(KubernetesClient):
    """A client that also deletes."""

    def delete(self, path: str) -> None:
        """Delete an object at once, if it is there."""
        try:
            self._call(Request("DELETE", f"{path}?gracePeriodSeconds=0"))
        except ApiError as fault:
            if fault.status != 404:
                raise


def wait_for(check: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """Wait until a check returns something; a silent API server counts as nothing."""
    end = time.monotonic() + seconds
    while True:
        try:
            if found := check():
                return found
        except (ApiError, SilentError):
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process; kube-apiserver would wait for a minute until its watches have ended."""
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ControlPlane:
    """The processes of a control plane, and clients of it."""

    def __init__(
        self, programs: Path, folder: Path, stack: ExitStack, extender_port: int = 0
    ) -> None:
        self._programs, self._folder, self._stack = programs, folder, stack
        self._etcd = f"http://127.0.0.1:{free_port()}"
        self._port, self.extender_port = free_port(), extender_port or free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        rows = [
            f"{user},{account},{user},{ADMINISTRATORS if user == 'admin' else ''}"
            for user, account in ACCOUNTS.items()
        ]
        (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        key = ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)
        peer = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        self.start_api_server()
        # The last of the default roles, which let accounts read /api/v1, come after the start.
        role = path_of("rbac.authorization.k8s.io/v1", None, "clusterrolebindings")
        wait_for(lambda: self.client("admin").get(f"{role}/system:discovery"))
        self.version = int(re.sub(r"\D", "", self.client("admin").get("/version")["minor"]))
        self._start_scheduler()
        self._start(
            "kube-controller-manager", f"--controllers={CONTROLLERS}", *self._options(),
            f"--kubeconfig={self.kubeconfig('admin')}", "--leader-elect=false",
            "--horizontal-pod-autoscaler-sync-period=1s",
        )  # fmt: skip

    def _start(self, name: str, *options: str) -> None:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("a"))
        process = subprocess.Popen([self._programs / name, *options], stdout=log, stderr=log)
        self.processes[name] = process
        self._stack.callback(_end, process)

    def start_api_server(self) -> None:
        """Start kube-apiserver, and wait until it answers."""
        folder = self._folder
        key = folder / "sa.key"
        self._start(
            "kube-apiserver", f"--etcd-servers={self._etcd}", f"--cert-dir={folder / 'certs'}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.99.0.0/24",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        wait_for((folder / "certs" / "apiserver.crt").is_file)
        wait_for(lambda: self.client("admin").get("/version"))

    def stop_api_server(self) -> None:
        """End kube-apiserver by SIGKILL, as where it crashes."""
        process = self.processes["kube-apiserver"]
        process.kill()
        process.wait()

    def _options(self) -> list[str]:
        """Of kube-scheduler and kube-controller-manager."""
        insecure = ["--port=0"] if self.version < 23 else []
        return [
            "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
            f"--cert-dir={self._folder / 'certs'}", "--authentication-skip-lookup=true", *insecure,
        ]  # fmt: skip

    def _start_scheduler(self) -> None:
        """Start kube-scheduler with the extender of docker/kubernetes/gpu-scheduler.yaml."""
        example = ROOT / "docker" / "kubernetes" / "gpu-scheduler.yaml"
        configuration = yaml.safe_load(example.read_text())
        found = "v1" if self.version >= 25 else "v1beta2" if self.version >= 22 else "v1beta1"
        configuration["apiVersion"] = f"kubescheduler.config.k8s.io/{found}"
        configuration["clientConnection"] = {"kubeconfig": str(self.kubeconfig("admin"))}
        configuration["leaderElection"] = {"leaderElect": False}
        if self.version < 23:  # by default it also listens on a fixed port of all addresses
            address = f"127.0.0.1:{free_port()}"
            configuration |= {"healthzBindAddress": address, "metricsBindAddress": address}
        (extender,) = configuration["extenders"]
        extender["urlPrefix"] = f"http://127.0.0.1:{self.extender_port}"
        extender["httpTimeout"] = "5s"  # of a machine that is busy
        file = self._folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(configuration))
        self._start("kube-scheduler", f"--config={file}", *self._options())

    def kubeconfig(self, user: str) -> Path:
        """A kubeconfig with the CA of the API server, and the token of a user."""
        authority = str(self._folder / "certs" / "apiserver.crt")
        cluster = {"server": self.url, "certificate-authority": authority}
        file = self._folder / f"{user}.kubeconfig"
        data = {
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(data))
        return file

    @property
    def certificate(self) -> tuple[Path, Path]:
        """The API server's certificate, for 127.0.0.1 and localhost, and its key."""
        folder = self._folder / "certs"
        return folder / "apiserver.crt", folder / "apiserver.key"

    def client(self, user: str) -> Client:
        return Client(find_access(self.kubeconfig(user)))

    def kubectl(self, *words: str) -> str:
        """Run kubectl as the administrator; its output."""
        command = [str(self._programs / "kubectl"), "--kubeconfig", str(self.kubeconfig("admin"))]
        done = subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_node(self, data: Mapping[str, Any]) -> None:
        """Create a node, and report its status as its kubelet would."""
        admin, allocatable = self.client("admin"), data["status"]["allocatable"]
        status = {**data["status"], "capacity": allocatable}
        admin.create("/api/v1/nodes", {**data, "status": status})
        path = path_of("v1", None, "nodes", data["metadata"]["name"], "status")
        admin.patch(path, {"status": status}, MERGE)


class Kubelets(threading.Thread):
    """The kubelets of all nodes: bound pods run, are ready, and end."""

    def __init__(self, client: Client) -> None:
        super().__init__(name="kubelets")
        self._client, self._stopped = client, threading.Event()
        self._started_s: dict[str, float] = {}  # by uid

    def run(self) -> None:
        while not self._stopped.wait(KUBELET_S):
            with contextlib.suppress(SilentError):  # as a kubelet waits for the API server
                for pod in self._client.list("/api/v1/pods"):
                    if pod["spec"].get("nodeName"):
                        self._update(pod)

    def _update(self, pod: Object) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        path = path_of("v1", metadata["namespace"], "pods", metadata["name"])
        run_s = float((metadata.get("annotations") or {}).get(RUN_S) or "inf")
        with contextlib.suppress(ApiError):  # changed or gone since it was listed
            if metadata.get("deletionTimestamp"):
                self._client.delete(path)
            elif phase == "Pending":
                self._started_s[metadata["uid"]] = time.monotonic()
                body = {
                    "phase": "Running", "startTime": _now(), "conditions": _conditions(True),
                    "containerStatuses": _statuses(pod, True, {"running": {"startedAt": _now()}}),
                }  # fmt: skip
                self._client.patch(f"{path}/status", {"status": body}, MERGE)
            elif phase == "Running":
                started_s = self._started_s.setdefault(metadata["uid"], time.monotonic())
                if time.monotonic() - started_s >= run_s:
                    self._end(path, pod)

    def _end(self, path: str, pod: Object) -> None:
        ended = {"terminated": {"exitCode": 0, "finishedAt": _now(), "reason": "Completed"}}
        body = {
            "phase": "Succeeded", "conditions": _conditions(False),
            "containerStatuses": _statuses(pod, False, ended),
        }  # fmt: skip
        self._client.patch(f"{path}/status", {"status": body}, MERGE)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(ready: bool) -> list[dict[str, str]]:
    kinds = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return [
        {"type": kind, "status": str(value), "lastTransitionTime": _now()}
        for kind, value in kinds.items()
    ]


def _statuses(pod: Object, ready: bool, state: Object) -> list[dict[str, Any]]:
    return [
        {
            "name": one["name"], "image": one["image"], "imageID": "", "ready": ready,
            "restartCount": 0, "state": state,
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip


@contextmanager
def control_plane_on(
    programs: Path, folder: Path, extender_port: int = 0
) -> Iterator[ControlPlane]:
    """Start a control plane with its kubelets; ends exactly the processes that it has started."""
    with ExitStack() as stack:
        plane = ControlPlane(programs, folder, stack, extender_port)
        kubelets = Kubelets(plane.client("admin"))
        kubelets.start()
        stack.callback(kubelets.stop)
        yield plane
