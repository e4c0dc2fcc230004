"""KEDA as it requests the external scaler by gRPC, with its autoscaler over a simulated cluster."""

import builtins
import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, Steerer, StepResult
from loadmaster.platform.steering.keda.engine import AUTOSCALERS, SPEC, KedaEngine
from loadmaster.platform.steering.keda.messages import SERVICE
from loadmaster.platform.steering.keda.scaler import METRIC, ReplicaTable, scaler_server
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import KubernetesClient
from loadmaster.platform.steering.kubernetes.queries import MetricReader
from loadmaster.platform.steering.prometheus import Prometheus
from loadmaster.platform.steering.recommenders import find_recommender
from tests.platform.steering.keda.test_messages import MESSAGES
from tests.platform.steering.kubernetes.api_server import (
    DEADLINE_S,
    DEPLOYMENT,
    MPA,
    WINDOW_S,
    Json,
    serving,
)
from tests.platform.steering.kubernetes.simulation import (
    SimulatedCluster,
    SimulatedPrometheus,
    new_runner,
)

TOLERANCE = 0.1  # of a HorizontalPodAutoscaler
TTL_S = 180.0


def autoscaler(**labels: str) -> Json:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"}
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-cart", "namespace": "shop", "labels": labels},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 20},
    }


class Keda:
    """The calls of KEDA's operator, and the replicas that its autoscaler makes of them."""

    def __init__(self, stack: ExitStack, port: int, metadata: dict[str, str] | None = None) -> None:
        self._channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self._reference = MESSAGES["ScaledObjectRef"](
            name="cart", namespace="shop", scalerMetadata=metadata or {}
        )

    def call(self, method: str, request: Any, response: str) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[response].FromString,
        )
        return call(request, timeout=30, wait_for_ready=True)

    def value(self) -> float:
        (spec,) = self.call("GetMetricSpec", self._reference, "GetMetricSpecResponse").metricSpecs
        assert (spec.metricName, spec.targetSize) == (METRIC, 1)
        request = MESSAGES["GetMetricsRequest"](
            scaledObjectRef=self._reference, metricName=spec.metricName
        )
        (found,) = self.call("GetMetrics", request, "GetMetricsResponse").metricValues
        return float(found.metricValueFloat / spec.targetSizeFloat)

    def is_active(self) -> bool:
        return bool(self.call("IsActive", self._reference, "IsActiveResponse").result)

    def wanted(self, replicas: int) -> int:
        """metricType AverageValue; without a value the replicas stay."""
        try:
            value = self.value()
        except grpc.RpcError:
            return replicas
        within = abs(value / replicas - 1) <= TOLERANCE
        return replicas if within else math.ceil(value)


class Steered:
    """A simulated cluster, its engine, and KEDA."""

    def __init__(self, stack: ExitStack, rule: str = "hpa", mode: Mode = "act") -> None:
        self.cluster = SimulatedCluster(
            new_runner(1, application="imageResize+S3Write", workload="bursty-like",
                       load_scale=4.0, steps=30)
        )  # fmt: skip
        path = f"/apis/autoscaling/v1/namespaces/shop/{AUTOSCALERS}/keda-hpa-cart"
        labels = {"scaledobject.keda.sh/name": "cart"}
        self.autoscaler = self.cluster.put(path, autoscaler(**labels))
        self.prometheus = SimulatedPrometheus(self.cluster)
        api_url = stack.enter_context(serving(self.cluster.handle))
        prometheus_url = stack.enter_context(serving(self.prometheus.handle))
        client = KubernetesClient(Access(api_url, "secret"), deadline_s=DEADLINE_S)
        reader = MetricReader(Prometheus(prometheus_url, deadline_s=DEADLINE_S), WINDOW_S)
        self.table = ReplicaTable(TTL_S, lambda: self.cluster.now_s)
        self.keda = Keda(stack, stack.enter_context(scaler_server(self.table, "127.0.0.1", 0)))
        self.engine = KedaEngine(
            client, reader, "shop/cart", mode == "act", self.table, lambda: self.cluster.now_s
        )
        self.steerer = Steerer(find_recommender([rule], SPEC.endpoint), mode)

    @property
    def replicas(self) -> int:
        return int(self.cluster.objects[DEPLOYMENT]["spec"]["replicas"])

    def step(self) -> StepResult:
        result = self.steerer.step(self.engine, self.cluster.now_s)
        wanted = self.keda.wanted(self.replicas)
        if wanted != self.replicas:
            after = {"spec": {"replicas": wanted}}
            self.cluster.changed(DEPLOYMENT, "scale", after)
        self.cluster.advance()
        return result


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.slow
def test_episode_in_which_keda_sets_the_replicas(stack: ExitStack) -> None:
    steered = Steered(stack)
    results, sizes, replicas = [], set(), set()
    while not steered.cluster.runner.over:
        results.append(steered.step())
        state = steered.cluster.runner.episode.state
        sizes.add(tuple(state.plan[:2].tolist()))
        replicas.add(steered.replicas)
    assert not any(one.degraded for one in results)
    assert sum(one.result == "acted" for one in results) >= 3
    assert len(replicas) >= 3
    assert len(sizes) == 1
    assert steered.cluster.changes() == []  # nothing but statuses and events
    assert steered.cluster.objects[MPA]["status"]["mode"] == "Apply"


def test_plans_of_a_rule_for_sizes_keep_the_present_ones(stack: ExitStack) -> None:
    steered = Steered(stack, "mpa")
    for _ in range(5):
        result = steered.step()
        for name in ("cpu_m", "memory_mib"):
            assert result.wanted[name] == result.plan[name] == result.recommended[name]


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_published_without_act(stack: ExitStack, mode: Mode) -> None:
    steered = Steered(stack, mode=mode)
    assert {steered.step().result for _ in range(4)} == {"dry-run"}
    with pytest.raises(grpc.RpcError) as refused:
        steered.keda.value()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert steered.keda.is_active()


def test_replicas_expire_where_the_steerer_is_silent(stack: ExitStack) -> None:
    steered = Steered(stack)
    steered.step()
    assert steered.keda.value() >= 1
    steered.prometheus.silent = True
    before = steered.replicas
    results = [steered.step() for _ in range(10)]
    assert {one.silent for one in results} == {"metrics"}
    assert steered.table.replicas("shop/cart") is None
    assert steered.replicas >= before  # of the last safe plan, which was published once


def test_metadata_names_the_application(stack: ExitStack) -> None:
    table = ReplicaTable(TTL_S)
    port = stack.enter_context(scaler_server(table, "127.0.0.1", 0))
    table.publish("web/front", 7)
    table.publish("shop/side", 3)
    assert Keda(stack, port, {"application": "web/front"}).value() == 7
    assert Keda(stack, port, {"application": "side"}).value() == 3
    table.clear()
    with pytest.raises(grpc.RpcError):
        Keda(stack, port, {"application": "web/front"}).value()


def test_other_autoscaler_or_none_is_refused(stack: ExitStack) -> None:
    steered = Steered(stack)
    steered.autoscaler["metadata"]["labels"] = {}
    result = steered.step()
    assert (result.result, result.degraded) == ("refused", True)
    steered.autoscaler["spec"]["scaleTargetRef"]["name"] = "other"
    result = steered.step()
    assert any("no ScaledObject" in one for one in result.messages)
    assert steered.table.replicas("shop/cart") is None


def test_taken_port_and_missing_package_are_one_line(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = stack.enter_context(scaler_server(ReplicaTable(TTL_S), "127.0.0.1", 0))
    with (
        pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"),
        scaler_server(ReplicaTable(TTL_S), "127.0.0.1", port),
    ):
        pass
    imported = builtins.__import__

    def without(name: str, *more: Any, **given: Any) -> Any:
        if name == "grpc":
            raise ImportError(name)
        return imported(name, *more, **given)

    monkeypatch.setattr(builtins, "__import__", without)
    with (
        pytest.raises(InputError, match="grpcio is not installed"),
        scaler_server(ReplicaTable(TTL_S), "127.0.0.1", 0),
    ):
        pass
