"""The gRPC server that KEDA requests, and its table of replicas.

KEDA's HorizontalPodAutoscaler sets ceil(value / target) replicas. The target is 1, so the value is
the number of replicas. A value that has expired, or that was never published, is an error: the
autoscaler then keeps the replicas, or KEDA takes those of the ScaledObject's `fallback`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.keda.messages import (
    SERVICE,
    MetricsRequest,
    ScaledObjectRef,
    is_active_response,
    metric_spec_response,
    metrics_response,
    parse_metrics_request,
    parse_scaled_object,
)

METRIC = "loadmaster-replicas"
APPLICATION = "application"  # key of a trigger's metadata: NAMESPACE/NAME of the MPA object
THREADS = 4


class Published(NamedTuple):
    """Replicas of an application, until when."""

    replicas: int
    until_s: float


class ReplicaTable:
    """Replicas by application, each for `ttl_s`. Safe for several threads."""

    def __init__(self, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s, self._clock = ttl_s, clock
        self._lock = threading.Lock()
        self._replicas: dict[str, Published] = {}

    def publish(self, application: str, replicas: int) -> None:
        with self._lock:
            self._replicas[application] = Published(replicas, self._clock() + self._ttl_s)

    def replicas(self, application: str) -> int | None:
        """The replicas, or nothing if they have expired or were not published."""
        with self._lock:
            found = self._replicas.get(application)
        return found.replicas if found is not None and found.until_s > self._clock() else None

    def clear(self) -> None:
        with self._lock:
            self._replicas.clear()


def application_of(scaled_object: ScaledObjectRef) -> str:
    """The application of a trigger; by default the MPA object with the name of the ScaledObject."""
    name = scaled_object.metadata.get(APPLICATION, "") or scaled_object.name
    return name if "/" in name else f"{scaled_object.namespace}/{name}"


@contextmanager
def scaler_server(table: ReplicaTable, host: str, port: int) -> Iterator[int]:
    """Serve `externalscaler.ExternalScaler` while the block runs; yields the port."""
    try:
        import grpc
    except ImportError:
        raise InputError(
            "the package grpcio is not installed; expected it as `pip install loadmaster[serve]` "
            "installs it"
        ) from None

    def is_active(request: ScaledObjectRef, context: Any) -> bool:
        return True  # whether an application runs at all is not decided here

    def metric_spec(request: ScaledObjectRef, context: Any) -> bytes:
        return metric_spec_response(METRIC, 1)

    def metrics(request: MetricsRequest, context: Any) -> bytes:
        application = application_of(request.scaled_object)
        replicas = table.replicas(application)
        if replicas is None:
            text = f"no replicas are published for {application!r}, or they have expired"
            context.abort(grpc.StatusCode.UNAVAILABLE, text)
        assert replicas is not None
        return metrics_response(request.metric or METRIC, replicas)

    def unary(call: Any, parse: Any, write: Any = bytes) -> Any:
        return grpc.unary_unary_rpc_method_handler(call, parse, write)

    methods = {
        "IsActive": unary(is_active, parse_scaled_object, is_active_response),
        "GetMetricSpec": unary(metric_spec, parse_scaled_object),
        "GetMetrics": unary(metrics, parse_metrics_request),
    }
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="external-scaler")
    # Without the option a second server takes the same port, and gets a part of the requests.
    server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        pool.shutdown()
        raise InputError(
            f"cannot listen on {host}:{port}; expected a free port of this machine in the settings "
            "host and port"
        )
    server.start()
    try:
        yield int(bound)
    finally:
        server.stop(0).wait()
        pool.shutdown()
