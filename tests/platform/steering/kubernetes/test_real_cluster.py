"""/scale, the template, status, events and rights on a real kube-apiserver with etcd; opt-in.

LOADMASTER_KUBE_BIN is a folder with `kube-apiserver` and `etcd`, of Kubernetes 1.20 or later. The
steerer has the rights of docker/kubernetes/rbac.yaml and no others. No controller and no kubelet
runs: pods are created by the test.
"""

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import (
    Mode,
    Recommendation,
    SilentError,
    Steerer,
    StepResult,
)
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import (
    MERGE,
    ApiError,
    KubernetesClient,
    path_of,
)
from loadmaster.platform.steering.kubernetes.engine import MpaEngine, applications
from loadmaster.platform.steering.kubernetes.resource import API, PAUSED, PLURAL
from loadmaster.platform.steering.kubernetes.updater import has_resize
from loadmaster.serving.systems.aware.schema import EXAMPLE
from tests.platform.steering.kubernetes.api_server import (
    DEPLOYMENT,
    MPA,
    PODS,
    deployment,
    mpa_object,
    pod,
    pod_name,
)

VARIABLE = "LOADMASTER_KUBE_BIN"
ACCOUNT = "system:serviceaccount:loadmaster:loadmaster-steer"
TOKENS = f"admin,admin,1,system:masters\nsteer,{ACCOUNT},2\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine("kubernetes"),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(stack: ExitStack, folder: Path, name: str, *options: str) -> None:
    program = Path(os.environ[VARIABLE]) / name
    log = stack.enter_context((folder / f"{name}.log").open("w"))
    process = subprocess.Popen([program, *options], stdout=log, stderr=log)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def wait_for(check: Callable[[], Any], seconds: float = 60.0) -> Any:
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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    client, peer, port = free_port(), free_port(), free_port()
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(TOKENS)
    etcd = f"http://127.0.0.1:{client}"
    with ExitStack() as stack:
        start(
            stack, folder, "etcd", f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        start(
            stack, folder, "kube-apiserver", f"--etcd-servers={etcd}",
            f"--cert-dir={folder / 'certs'}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={port}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.99.0.0/24",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        found = f"https://127.0.0.1:{port}"
        # The last of the default roles, which let accounts read /api/v1, come after the start.
        role = path_of("rbac.authorization.k8s.io/v1", None, "clusterrolebindings")
        wait_for(lambda: connect(found, "admin").get(f"{role}/system:discovery"))
        yield found


def connect(url: str, token: str) -> KubernetesClient:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return KubernetesClient(Access(url, token, tls=tls))


KINDS = {
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Namespace": ("v1", "namespaces"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
}


@pytest.fixture(scope="module")
def admin(url: str, root: Path) -> KubernetesClient:
    """The cluster with the manifests, a Deployment and its pods."""
    admin = connect(url, "admin")
    for name in ("crd", "rbac"):
        file = root / "docker" / "kubernetes" / f"{name}.yaml"
        for data in yaml.safe_load_all(file.read_text()):
            api, plural = KINDS[data["kind"]]
            admin.create(path_of(api, data["metadata"].get("namespace"), plural), data)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    wait_for(lambda: admin.get(path_of(API, "shop", PLURAL))["kind"])
    admin.create(DEPLOYMENT.rpartition("/")[0], deployment())
    for number in range(3):
        data = pod(pod_name(number))
        del data["spec"]["nodeName"]
        del data["spec"]["containers"][0]["resizePolicy"]
        conditions = data.pop("status")["conditions"]
        admin.create(PODS, data)
        body = {"status": {"phase": "Running", "conditions": conditions}}
        admin.patch(f"{PODS}/{pod_name(number)}/status", body, MERGE)
    admin.create(MPA.rpartition("/")[0], mpa_object())
    return admin


class FixedReader:
    """Metrics of an application that keeps its SLO."""

    def read(self, application: Any, now_s: float) -> tuple[dict[str, Any], list[str]]:
        plan = {**application.plan, "replicas": int(application.plan["replicas"])}
        return {**EXAMPLE, "plan": plan, "steps": {**EXAMPLE["steps"], "p99_s": [0.1, 0.1]}}, []


class Wanted:
    """A recommender of one plan."""

    name = "wanted"

    def __init__(self, replicas: float, cpu_m: float, memory_mib: float) -> None:
        self.plan = {"replicas": replicas, "cpu_m": cpu_m, "memory_mib": memory_mib}

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        return Recommendation(self.plan, "as the test wants", "test")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        pass


def step(url: str, replicas: float, cpu_m: float, memory_mib: float, apply: bool) -> StepResult:
    reader: Any = FixedReader()
    (engine,) = applications(connect(url, "steer"), reader, ["shop/cart"], None, apply)
    mode: Mode = "act" if apply else "watch"
    return Steerer(Wanted(replicas, cpu_m, memory_mib), mode).step(engine, time.time())


def test_dry_run_writes_the_status_alone(url: str, admin: KubernetesClient) -> None:
    before = admin.get(DEPLOYMENT)["spec"]
    result = step(url, 5, 800, 1024, apply=False)
    assert (result.result, result.degraded) == ("dry-run", False), result
    status = admin.get(MPA)["status"]
    assert status["recommendation"] == {"replicas": 5, "cpu": "800m", "memory": "1Gi"} or (
        status["recommendation"] == {"replicas": 5, "cpu": "800m", "memory": "1024Mi"}
    )
    assert status["lastSafe"]["replicas"] == 3, result
    assert status["memory"]["measured"] is True
    assert admin.get(DEPLOYMENT)["spec"] == before


def test_scale_and_sizes(url: str, admin: KubernetesClient) -> None:
    result = step(url, 4, 800, 1024, apply=True)
    assert admin.get(DEPLOYMENT)["spec"]["replicas"] == 4, result
    (container,) = admin.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "cart:1"
    if has_resize(admin):
        pods = admin.list(PODS)
        assert {one["spec"]["containers"][0]["resources"]["limits"]["cpu"] for one in pods} == {
            "800m"
        }
    else:  # the roll-out of the first generation is not observed: no controller runs
        assert (result.result, container["resources"]["limits"]["cpu"]) == ("pending", "500m"), (
            result
        )
        generation = admin.get(DEPLOYMENT)["metadata"]["generation"]
        status = {"observedGeneration": generation, "updatedReplicas": 4, "replicas": 4}
        admin.patch(f"{DEPLOYMENT}/status", {"status": status})
        result = step(url, 4, 800, 1024, apply=True)
        assert result.result == "acted", result
        (container,) = admin.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": "800m", "memory": "1Gi"}
    events = admin.list(path_of("v1", "shop", "events"))
    assert {one["reason"] for one in events} >= {"Acted"}


def test_replicas_fall(url: str, admin: KubernetesClient) -> None:
    admin.patch(f"{DEPLOYMENT}/scale", {"spec": {"replicas": 6}})
    size = (500, 512) if not has_resize(admin) else (800, 1024)
    result = step(url, 3, *size, apply=True)
    assert admin.get(DEPLOYMENT)["spec"]["replicas"] == 5, result  # of the dry run: stabilisation
    admin.patch(MPA, {"spec": {"stabilisationSeconds": 0}})
    result = step(url, 3, *size, apply=True)
    assert admin.get(DEPLOYMENT)["spec"]["replicas"] == 3, result


def test_target_of_an_hpa_is_refused(url: str, admin: KubernetesClient) -> None:
    path = path_of("autoscaling/v1", "shop", "horizontalpodautoscalers")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 9}
    admin.create(path, {"metadata": {"name": "cart"}, "spec": spec})
    result = step(url, 9, 800, 1024, apply=True)
    assert (result.result, result.degraded) == ("refused", True), result
    degraded = {one["type"]: one for one in admin.get(MPA)["status"]["conditions"]}["Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "Refused")


def test_pause(url: str, admin: KubernetesClient) -> None:
    admin.patch(MPA, {"metadata": {"annotations": {PAUSED: "true"}}})
    assert step(url, 9, 800, 1024, apply=True).result == "held"


def test_schema_refuses_wrong_objects(url: str, admin: KubernetesClient) -> None:
    # 1.20 compares a whole number with the whole part of a minimum: an SLO of 0 passes there.
    for spec in ({"sloSeconds": 0.0001}, {"updateMode": "Sometimes"}, {"minReplicas": 0}):
        wrong = mpa_object(**spec)
        wrong["metadata"]["name"] = "wrong"
        with pytest.raises(ApiError) as refused:
            admin.create(MPA.rpartition("/")[0], wrong)
        assert refused.value.status == 422


def test_rights_end_at_the_roles(url: str, admin: KubernetesClient) -> None:
    steerer = connect(url, "steer")
    for change in (
        lambda: steerer.list("/api/v1/namespaces/shop/secrets"),
        lambda: steerer.patch(MPA, {"spec": {"maxReplicas": 999}}),
        lambda: steerer.create(PODS, pod("another")),
    ):
        with pytest.raises(ApiError) as refused:
            change()
        assert refused.value.status == 403
    unknown: Any = FixedReader()
    with pytest.raises(InputError):
        MpaEngine(steerer, unknown, "shop/unknown", True).read()
