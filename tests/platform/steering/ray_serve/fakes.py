"""A context as Serve passes it, a decision service, nodes with metrics, and a dashboard."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

Json = dict[str, Any]
Respond = Callable[[str, str, bytes], tuple[int, bytes]]  # (method, path, body)


def context(
    replicas: int = 2,
    ongoing: float = 0.0,
    queued: float = 0.0,
    target: int | None = None,
    bounds: tuple[int, int] = (1, 10),
    metrics: Json | None = None,
    **config: float,
) -> Any:
    """The fields of `AutoscalingContext` that policies of Ray 2.60 get."""
    given = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0, **config}
    wanted = given.pop("target_ongoing_requests", 2.0)
    return SimpleNamespace(
        deployment_name="Model",
        app_name="shop",
        current_num_replicas=replicas,
        target_num_replicas=replicas if target is None else target,
        running_replicas=[f"r{number}" for number in range(replicas)],
        total_num_requests=ongoing,
        total_queued_requests=queued,
        aggregated_metrics=metrics or {},
        capacity_adjusted_min_replicas=bounds[0],
        capacity_adjusted_max_replicas=bounds[1],
        policy_state={},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: wanted, **given),
    )


@dataclass
class Clock:
    """Seconds, set by hand."""

    now_s: float = 1e6

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Received:
    method: str
    path: str
    body: Any
    authorization: str | None = None


@contextmanager
def http_server(respond: Respond) -> Iterator[tuple[str, list[Received]]]:
    """Serve on a free port; yields the URL and what is received."""
    received: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parsed = json.loads(body) if body else None
            token = self.headers.get("Authorization")
            received.append(Received(self.command, self.path, parsed, token))
            status, content = respond(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = handle_request  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()


def decision(replicas: float, shadow: float | None = None) -> Json:
    """An answer of the decision service."""
    size = {"act": True, "cpu_m": 1000.0, "memory_mib": 1024.0}
    found: Json = {
        "id": "d1",
        "decision": {**size, "replicas": replicas},
        "source": "policy",
        "reason": {"summary": "by the load"},
        "policy": {"name": "aware", "version": "1"},
        "latency_ms": 1.0,
    }
    if shadow is not None:
        found["shadow"] = {"decision": {**size, "replicas": shadow}}
    return found


@dataclass
class Nodes:
    """Counters of a deployment, in the text that Ray's nodes export."""

    application: str = "shop"
    deployment: str = "Model"
    arrivals: float = 0.0
    done: dict[str, float] = field(default_factory=dict)  # by replica
    latency_s: float = 0.2

    def text(self) -> str:
        labels = f'application="{self.application}",deployment="{self.deployment}"'
        lines = [
            "# TYPE ray_serve_num_router_requests_total counter",
            f"ray_serve_num_router_requests_total{{{labels}}} {self.arrivals}",
            'ray_serve_num_router_requests_total{application="other",deployment="Model"} 1e6',
            f'ray_component_cpu_percentage{{Component="ray::ServeReplica:{self.application}:'
            f'{self.deployment}",pid=""}} 50.0',
            f'ray_component_rss_mb{{Component="ray::ServeReplica:{self.application}:'
            f'{self.deployment}"}} 104.8576',
        ]
        name = "ray_serve_deployment_processing_latency_ms"
        for replica, done in self.done.items():
            own = f'{labels},replica="{replica}"'
            lines += [
                f"{name}_count{{{own}}} {done}",
                f"{name}_sum{{{own}}} {1000.0 * self.latency_s * done}",
            ]
            for bound_ms in (100.0, 200.0, 500.0, "+Inf"):
                inside = bound_ms == "+Inf" or float(bound_ms) >= 1000.0 * self.latency_s
                lines.append(f'{name}_bucket{{{own},le="{bound_ms}"}} {done if inside else 0.0}')
        return "\n".join(lines) + "\n"


class Dashboard:
    """Serve's REST API of one application with one deployment."""

    def __init__(self, replicas: int = 2, external: bool = True) -> None:
        self.replicas, self.external = replicas, external
        self.status, self.targets = 200, ["127.0.0.1:1"]

    def respond(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self.status >= 500:
            return self.status, b"down"
        if path == "/api/prometheus/sd":
            return 200, json.dumps([{"labels": {}, "targets": self.targets}]).encode()
        if method == "GET":
            return 200, json.dumps({"applications": {"shop": self._application()}}).encode()
        if self.status != 200:
            return self.status, json.dumps({"error": "not now"}).encode()
        if not self.external:
            return 412, json.dumps({"error": "external scaler is disabled"}).encode()
        self.replicas = json.loads(body)["target_num_replicas"]
        return 200, json.dumps({"message": "received"}).encode()

    def _application(self) -> Json:
        replicas = [
            {"replica_id": f"r{number}", "state": "RUNNING"} for number in range(self.replicas)
        ]
        deployment = {
            "status": "HEALTHY",
            "target_num_replicas": self.replicas,
            "deployment_config": {"max_ongoing_requests": 2},
            "replicas": replicas,
        }
        return {
            "name": "shop",
            "status": "RUNNING",
            "external_scaler_enabled": self.external,
            "deployments": {"Model": deployment},
        }
