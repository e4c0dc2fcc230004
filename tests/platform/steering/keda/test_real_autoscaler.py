"""Replicas that KEDA's autoscaler sets: a real HorizontalPodAutoscaler on a real control plane.

KEDA's part is simulated: it registers an API of external metrics, whose values it requests from the
scaler by gRPC, and creates the autoscaler of the ScaledObject in docs/keda.md. Opt-in.
"""

import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from loadmaster.platform.steering.core import Mode, Steerer, StepResult
from loadmaster.platform.steering.keda.engine import KedaEngine
from loadmaster.platform.steering.keda.scaler import METRIC, ReplicaTable, scaler_server
from tests.platform.steering.keda.test_engine import Keda
from tests.platform.steering.kubernetes.api_server import Json, Received, serving, status
from tests.platform.steering.kubernetes.control_plane import path_of, wait_for
from tests.platform.steering.kubernetes.real_workload import FixedReader, Shop, Wanted

pytestmark = [pytest.mark.slow, pytest.mark.engine("kubernetes")]

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
AUTOSCALERS = path_of("autoscaling/v2beta2", "shop", "horizontalpodautoscalers")
NAME = "keda-hpa-cart"
SERVICES = path_of("v1", "shop", "services")
API_SERVICES = path_of("apiregistration.k8s.io/v1", None, "apiservices")


def _resources() -> Json:
    one = {"name": METRIC, "singularName": "", "namespaced": True, "verbs": ["get"]}
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{**one, "kind": "ExternalMetricValueList"}],
    }  # fmt: skip


def _value(keda: Keda) -> tuple[int, Json]:
    try:
        value = keda.value()
    except grpc.RpcError as fault:
        return 500, status(500, "InternalError", str(fault))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": f"{value:g}"}
    kind = "ExternalMetricValueList"
    return 200, {"kind": kind, "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": [one]}


class Scaled:
    """The application shop/cart with an autoscaler of KEDA, and the steerer's scaler."""

    def __init__(self, shop: Shop, stack: ExitStack) -> None:
        self.shop = shop
        self.table = ReplicaTable(ttl_s=60)
        server = ExitStack()
        self.end_server = server.close
        keda = Keda(stack, server.enter_context(scaler_server(self.table, "127.0.0.1", 0)))
        stack.callback(server.close)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*shop.plane.certificate)

        def handle(one: Received, token: str) -> tuple[int, dict[str, str], Json]:
            is_list = one.path.partition("?")[0].endswith(VERSION)
            code, found = (200, _resources()) if is_list else _value(keda)
            return code, {"Content-Type": "application/json"}, found

        url = stack.enter_context(serving(handle, tls))
        self._create(int(url.rpartition(":")[2]))
        stack.callback(self._delete)

    def _create(self, port: int) -> None:
        admin = self.shop.admin
        service = {"type": "ExternalName", "externalName": "localhost"}
        admin.create(SERVICES, {"metadata": {"name": "keda"}, "spec": service})
        spec = {
            "group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": "shop", "name": "keda", "port": port},
        }  # fmt: skip
        admin.create(API_SERVICES, {"metadata": {"name": f"{VERSION}.{GROUP}"}, "spec": spec})
        wait_for(lambda: admin.find(f"/apis/{GROUP}/{VERSION}"))
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"}
        target = {"type": "AverageValue", "averageValue": "1"}
        autoscaler = {
            "scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 20,
            "metrics": [
                {"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        }  # fmt: skip
        labels = {"scaledobject.keda.sh/name": "cart"}
        metadata = {"name": NAME, "labels": labels}
        admin.create(AUTOSCALERS, {"metadata": metadata, "spec": autoscaler})

    def _delete(self) -> None:
        admin = self.shop.admin
        admin.delete(f"{AUTOSCALERS}/{NAME}")
        admin.delete(f"{API_SERVICES}/{VERSION}.{GROUP}")
        admin.delete(f"{SERVICES}/keda")

    def step(self, replicas: int, mode: Mode = "act") -> StepResult:
        reader: Any = FixedReader()
        client = self.shop.plane.client("steer")
        try:
            engine = KedaEngine(client, reader, "shop/cart", mode == "act", self.table)
            return Steerer(Wanted(replicas, 500, 512), mode).step(engine, time.time())
        finally:
            client.close()

    def condition(self, kind: str) -> str:
        """Status of a condition of the autoscaler."""
        found = self.shop.admin.get(f"{AUTOSCALERS}/{NAME}")["status"].get("conditions") or ()
        return next((str(one["status"]) for one in found if one["type"] == kind), "")


@pytest.fixture
def scaled(shop: Shop) -> Iterator[Scaled]:
    with ExitStack() as stack:
        yield Scaled(shop, stack)


def test_autoscaler_sets_the_replicas_that_are_published(scaled: Scaled) -> None:
    shop = scaled.shop
    assert scaled.step(5).result == "acted"
    shop.wait_ready(5)
    assert scaled.condition("ScalingActive") == "True"
    assert scaled.step(5).result == "unchanged"
    assert scaled.step(3).result == "acted"
    shop.wait_ready(3)


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_published_without_act(scaled: Scaled, mode: Mode) -> None:
    assert scaled.step(5, mode).result == "dry-run"
    wait_for(lambda: scaled.condition("ScalingActive") == "False")
    assert scaled.shop.replicas == 3


def test_replicas_stay_where_the_scaler_is_silent(scaled: Scaled) -> None:
    shop = scaled.shop
    scaled.step(5)
    shop.wait_ready(5)
    scaled.end_server()
    wait_for(lambda: scaled.condition("ScalingActive") == "False")
    time.sleep(2)
    assert shop.replicas == 5
    shop.wait_ready(5)
