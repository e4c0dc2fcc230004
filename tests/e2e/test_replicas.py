"""Several gateways and workers on Ray with several nodes: safety, kills, upgrade, scaling."""

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from ray.cluster_utils import Cluster
from ray.experimental import internal_kv

from loadmaster.platform.ray.head import free_ports
from loadmaster.platform.ray.serve_session import ENVIRONMENT
from loadmaster.serving.client import Client, Decision
from tests.e2e.test_cluster_service import python_path, status_of, wait_for
from tests.platform.steering.ray_serve.fakes import decision, http_server
from tests.serving import toy

pytestmark = [pytest.mark.slow, pytest.mark.long]

START_S = 120.0
TENANTS = [f"t{number}" for number in range(8)]
POLICY = "loadmaster.platform.steering.ray_serve.policy:ServicePolicy"
HELD = ("flap: web from 1 to 2",)
STATE = {"load": 42, "replicas": 3}
SCALING = {
    "min_replicas": 1,
    "max_replicas": 3,
    "initial_replicas": 1,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 2.0,
    "look_back_period_s": 2.0,
    "metrics_interval_s": 0.5,
}


class Service:
    """The toy system on three nodes of one machine, deployed as by `serve deploy`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._dashboard = cluster, f"http://{cluster.webui_url}"
        self._proxy, port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.bundles = [
            str(toy.make_bundle(folder / f"bundle-{extra}", extra=extra)) for extra in (0, 1)
        ]
        system = {"endpoint": toy.REFERENCE, "bundle": self.bundles[0], "deadline_ms": 5000}
        system |= {"guard": {"flaps": 2}, "workers": 2, "cpus": 0.5}
        self.arguments: dict[str, Any] = {
            "systems": {"toy": system},
            "port": port,
            "folder": str(folder / "kept"),
            "replicas": 3,
            "cpus": 0.5,
        }

    def deploy(self) -> None:
        application = {
            "name": "loadmaster",
            "route_prefix": "/",
            "import_path": "loadmaster.serving.app:build",
            "args": self.arguments,
        }
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self._proxy},
            "applications": [application],
        }
        request = urllib.request.Request(
            f"{self._dashboard}/api/serve/applications/",
            json.dumps(config).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200

    def replicas(self, deployment: str = "gateway") -> list[dict[str, Any]]:
        """Running ones."""
        url = f"{self._dashboard}/api/serve/applications/"
        with urllib.request.urlopen(url, timeout=30) as response:
            found = json.load(response)["applications"].get("loadmaster", {})
        deployments = found.get("deployments", {})
        replicas = deployments.get(deployment, {}).get("replicas", [])
        return [one for one in replicas if one["state"] == "RUNNING"]

    def wait_for_replicas(self, expected: Callable[[list[dict[str, Any]]], bool]) -> None:
        wait_for(lambda: expected(self.replicas()), START_S, self.replicas)

    def client(self, tenant: str | None = None) -> Client:
        return Client(self.url, deadline_s=60.0, retries=1000, tenant=tenant)

    @property
    def proxy(self) -> str:
        return f"http://127.0.0.1:{self._proxy}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "PYTHONPATH": python_path()}.items():
            patch.setenv(name, value)
        for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "LOADMASTER_TOKENS"):
            patch.delenv(name, raising=False)
        small = {"object_store_memory": 80 << 20}
        dashboard, gcs = free_ports(2)
        head = {**small, "num_cpus": 2, "include_dashboard": True, "dashboard_port": dashboard}
        # The store of the Ray of other tests, which the start and the end of a cluster replace.
        client = internal_kv.internal_kv_get_gcs_client()
        cluster = Cluster(initialize_head=True, head_node_args={**head, "gcs_server_port": gcs})
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2, **small)
            made = Service(cluster, tmp_path_factory.mktemp("replicas"))
            made.deploy()
            made.wait_for_replicas(lambda found: len(found) == 3)
            wait_for(lambda: status_of(f"{made.url}/readyz") == 200, START_S, made.replicas)
            yield made
        finally:
            cluster.shutdown()
            if client is not None:
                internal_kv._initialize_internal_kv(client)


class Seen(NamedTuple):
    """A decision, and when its request was sent."""

    tenant: str
    began: float
    decision: Decision


class Load:
    """Requests of several tenants at once, each tenant's one after another."""

    def __init__(self, service: Service, pause_s: float = 0.01) -> None:
        self._service, self._pause_s, self._stopped = service, pause_s, threading.Event()
        self.seen: list[Seen] = []

    def run(self, tenant: str) -> None:
        with self._service.client(tenant) as client:
            while not self._stopped.wait(self._pause_s):
                began = time.monotonic()
                self.seen.append(Seen(tenant, began, client.decide("toy", STATE)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """A request that fails raises at the end."""
        with ThreadPoolExecutor(len(TENANTS)) as threads:
            futures = [threads.submit(self.run, tenant) for tenant in TENANTS]
            try:
                while len({one.tenant for one in self.seen}) < len(TENANTS):
                    time.sleep(0.01)
                    assert not any(future.done() for future in futures)
                yield
            finally:
                self._stopped.set()
        for future in futures:
            future.result()

    def since(self, moment: float) -> list[Decision]:
        return [one.decision for one in self.seen if one.began > moment]

    def of(self, tenant: str) -> list[Decision]:
        return [one.decision for one in self.seen if one.tenant == tenant]


def test_replicas_are_on_several_nodes_and_all_workers_decide(service: Service) -> None:
    assert len({one["node_id"] for one in service.replicas()}) > 1
    wait_for(lambda: len(service.replicas("toy")) == 2, START_S, service.replicas)
    with Load(service).running():
        time.sleep(1.0)
    for url in (service.url, service.proxy):
        with Client(url, deadline_s=30.0, tenant="t0") as client:
            assert client.decide("toy", STATE).source == "policy"
    before = cpu_times(service)
    with Load(service, pause_s=0.0).running():
        wait_for(
            lambda: all(cpu_times(service)[pid] > used + 0.05 for pid, used in before.items()),
            START_S,
            service.replicas,
        )


def cpu_times(service: Service) -> dict[int, float]:
    """CPU time of each worker, by process."""
    pids = [one["pid"] for one in service.replicas("toy")]
    return {pid: psutil.Process(pid).cpu_times().user for pid in pids}


def test_actions_reach_all_gateways_before_their_next_decision(service: Service) -> None:
    load = Load(service)
    with load.running(), service.client() as admin:
        versions = [admin.status("toy").policies.serving]
        steps: list[tuple[Callable[[], object], Callable[[Decision], bool]]] = [
            (lambda: admin.pause("toy"), lambda one: one.cause == "paused"),
            (lambda: admin.resume("toy"), lambda one: one.cause is None),
            (
                lambda: admin.promote("toy", service.bundles[1], to="serving"),
                lambda one: one.policy.version != versions[0].version,  # type: ignore[union-attr]
            ),
            (
                lambda: admin.rollback("toy"),
                lambda one: one.policy.version == versions[0].version,  # type: ignore[union-attr]
            ),
        ]
        for act, applied in steps:
            act()
            confirmed = time.monotonic()
            time.sleep(0.5)
            after = load.since(confirmed)
            assert len(after) >= len(TENANTS)
            assert not [one for one in after if not applied(one)]


def test_guard_windows_hold_over_the_death_of_gateways(service: Service) -> None:
    def moved(client: Client, turn: int) -> Decision:
        return client.decide("toy", {"load": 10 if turn % 2 else 30, "replicas": 2})

    clients = [service.client(f"g{number}") for number in range(6)]
    for client in clients:
        for turn in range(6):
            last = moved(client, turn)
        assert last.guard == HELD
    time.sleep(0.2)  # longer than changes are collected before they are written
    before = {one["pid"] for one in service.replicas()}
    for pid in sorted(before)[:2]:
        psutil.Process(pid).kill()
    for client in clients:
        assert moved(client, 1).guard == HELD
        client.close()
    service.wait_for_replicas(lambda found: len({one["pid"] for one in found} - before) == 2)


def test_requests_survive_the_loss_of_a_node(service: Service) -> None:
    load = Load(service)
    lost = next(iter(service.cluster.worker_nodes))
    with load.running():
        service.cluster.remove_node(lost, allow_graceful=False)
        removed = time.monotonic()
        time.sleep(3.0)
        service.cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
        wait_for(
            lambda: {one.tenant for one in load.seen if one.began > removed} == set(TENANTS),
            START_S,
            service.replicas,
        )
    service.wait_for_replicas(lambda found: len(found) == 3)
    assert lost.node_id not in {one["node_id"] for one in service.replicas()}
    for tenant in TENANTS:
        assert [one for one in load.seen if one.tenant == tenant and one.began > removed], tenant


def versions(load: Load, tenant: str) -> list[str]:
    """Of the policies that decided for a tenant, in order, without repetitions."""
    by_policy = [one for one in load.of(tenant) if one.source == "policy"]
    return [version for version, _ in itertools.groupby(one.policy.version for one in by_policy)]


def test_an_upgrade_has_no_gap_and_gateways_scale_with_the_load(service: Service) -> None:
    """The upgrade serves another bundle, and lets Serve choose the number of gateways."""
    scaling = {**SCALING, "target_ongoing_requests": 1.0}
    before = {one["pid"] for one in service.replicas()}
    service.arguments["autoscaling"] = scaling
    service.arguments["systems"]["toy"]["bundle"] = service.bundles[1]
    load = Load(service)
    with load.running():
        service.deploy()
        service.wait_for_replicas(
            lambda found: bool(found) and not before & {one["pid"] for one in found}
        )
        wait_for(lambda: all(len(versions(load, one)) > 1 for one in TENANTS), START_S, str)
    for tenant in TENANTS:
        assert len(versions(load, tenant)) == 2, "never back"
    with Load(service, pause_s=0.0).running():
        service.wait_for_replicas(lambda found: len(found) > 1)
    service.wait_for_replicas(lambda found: len(found) == 1)


def test_gateways_scale_by_the_decisions_of_another_service(service: Service) -> None:
    """That service wants three gateways under load; by Serve's rule one has room for all of it."""

    def decide(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if not path.endswith("/decide"):
            return 200, json.dumps({"accepted": True}).encode()
        requests = json.loads(body)["state"]["reports"]["requests"]
        return 200, json.dumps(decision(3 if (requests[-1] or 0.0) > 0 else 1)).encode()

    with http_server(decide) as (url, received):
        settings = {
            "mode": "act", "url": url, "load_metric": "load", "request_s": 0.01, "slo_s": 0.5,
            "step_s": 2.0, "slots": 1.0, "deadline_s": 30.0, "stale_s": 5.0,
        }  # fmt: skip
        policy = {"policy_function": POLICY, "policy_kwargs": settings}
        scaling = {**SCALING, "target_ongoing_requests": 1000.0, "policy": policy}
        service.arguments["autoscaling"] = scaling
        service.deploy()
        wait_for(
            lambda: any(one.path.endswith("/decide") for one in received), START_S, lambda: received
        )
        with Load(service, pause_s=0.0).running():
            service.wait_for_replicas(lambda found: len(found) == 3)
        service.wait_for_replicas(lambda found: len(found) == 1)
    asked = [one.body["state"] for one in received if one.path.endswith("/decide")]
    assert any(state["reports"]["requests"][-1] for state in asked), "the gateways' load is in it"
    assert {1, 3} <= {state["plan"]["replicas"] for state in asked}
