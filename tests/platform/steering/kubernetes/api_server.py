"""HTTP servers in the shape of the Kubernetes API and of Prometheus, for tests.

Objects are kept as JSON. Patches are applied as the API server applies them, and each object that
results, as each event, is validated against the published schemas.
"""

import copy
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import kubernetes_validate
import yaml

from loadmaster.platform.steering.kubernetes.queries import (
    REPORTS,
    STEPS,
    Application,
    expand,
    placeholders,
)
from loadmaster.platform.steering.kubernetes.resource import API, GROUP, KIND, PLURAL, MpaSpec

VERSION = "1.35"  # of the schemas
MPA = f"/apis/{API}/namespaces/shop/{PLURAL}/cart"
DEPLOYMENT = "/apis/apps/v1/namespaces/shop/deployments/cart"
PODS = "/api/v1/namespaces/shop/pods"
LABELS = {"app": "cart"}
DEADLINE_S = 60.0  # of clients: longer than this server is ever without a core
WINDOW_S = 30.0  # of rates
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"

Json = dict[str, Any]


@dataclass
class Fault:
    """An answer instead of the real one, for so many requests."""

    method: str
    path: str  # regular expression
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None  # run first: another writer


@dataclass
class Received:
    method: str
    path: str
    body: Any
    content_type: str


def status(code: int, reason: str = "", message: str = "") -> Json:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message or f"refused with {code}",
    }  # fmt: skip


class ApiServer:
    """Objects by path; subclasses compute some of them."""

    def __init__(self, resize: bool = True) -> None:
        self.objects: dict[str, Json] = {}
        self.faults: list[Fault] = []
        self.received: list[Received] = []
        self.token: str | None = None  # that is accepted
        names = ["pods", "pods/resize"] if resize else ["pods"]
        self.objects["/api/v1"] = {"resources": [{"name": name} for name in names]}
        self._version = 1

    def put(self, path: str, data: Json) -> Json:
        self._version += 1
        data.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self.objects[path] = data
        return data

    def changes(self) -> list[Received]:
        """Requests that changed something other than statuses and events."""
        return [
            one
            for one in self.received
            if one.method != "GET" and not one.path.endswith(("/status", "/events"))
        ]

    def handle(self, one: Received, token: str) -> tuple[int, dict[str, str], Json]:
        self.received.append(one)
        if self.token is not None and token != f"Bearer {self.token}":
            return 401, {}, status(401, "Unauthorized")
        path, _, query = one.path.partition("?")
        for fault in self.faults:
            if fault.times and one.method == fault.method and re.search(fault.path, one.path):
                fault.times -= 1
                fault.before()
                return fault.status, fault.headers, status(fault.status)
        if one.method == "GET":
            return self.read(path, parse_qs(query))
        if one.method == "POST":
            validate(one.body)
            return 201, {}, one.body
        return self.patch(path, one)

    def read(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], Json]:
        if path.endswith("/scale"):
            owner = self.objects.get(path.removesuffix("/scale"))
            return (200, {}, scale_of(owner)) if owner else (404, {}, status(404, "NotFound"))
        if path in self.objects:
            return 200, {}, self.objects[path]
        inside = [p for p in self.objects if p.rpartition("/")[0] == path]
        if not inside:
            return 404, {}, status(404, "NotFound")
        start = int(query.get("continue", ["0"])[0])
        end = start + int(query.get("limit", ["500"])[0])
        metadata = {"continue": str(end)} if end < len(inside) else {}
        items = [self.objects[p] for p in inside[start:end]]
        return 200, {}, {"metadata": metadata, "items": items}

    def patch(self, path: str, one: Received) -> tuple[int, dict[str, str], Json]:
        owner, _, part = path.rpartition("/")
        if part not in ("scale", "status", "resize"):
            owner, part = path, ""
        if owner not in self.objects:
            return 404, {}, status(404, "NotFound")
        expected = MERGE if part in ("scale", "status") else STRATEGIC
        assert one.content_type == expected
        before = self.objects[owner]
        wanted = one.body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, before["metadata"]["resourceVersion"]):
            return 409, {}, status(409, "Conflict", "the object has been modified")
        after = copy.deepcopy(before)
        if part == "scale":
            scale = merged(scale_of(after), one.body, strategic=False)
            validate(scale)
            after["spec"]["replicas"] = scale["spec"]["replicas"]
        else:
            after = merged(after, one.body, strategic=one.content_type == STRATEGIC)
        try:
            validate(after)
        except jsonschema.ValidationError as fault:  # of our own schema
            return 422, {}, status(422, "Invalid", fault.message)
        if one.path.endswith("?dryRun=All"):
            return 200, {}, after
        self.changed(owner, part, after)
        return 200, {}, self.put(owner, after)

    def changed(self, path: str, part: str, after: Json) -> None:
        """Hook of simulations."""


def merged(base: Json, patch: Json, strategic: bool) -> Json:
    """A merge patch; a strategic one merges containers by name."""
    found = dict(base)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            found[name] = merged(found.get(name) or {}, value, strategic)
        elif strategic and name == "containers":
            by_name = {one["name"]: one for one in value}
            found[name] = [
                merged(one, by_name.get(one["name"], {}), True) for one in found.get(name, ())
            ]
        else:
            found[name] = value
    return found


def validate(data: Json) -> None:
    """Validate an object against its schema: ours, or that of Kubernetes."""
    if data["kind"] == KIND:
        jsonschema.validate(data, mpa_schema())
        return
    kubernetes_validate.validate(data, VERSION, strict=True)


def mpa_schema() -> Json:
    file = Path(__file__).resolve().parents[4] / "docker" / "kubernetes" / "crd.yaml"
    crd = yaml.safe_load(file.read_text())
    assert crd["spec"]["group"] == GROUP
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def scale_of(owner: Json) -> Json:
    metadata = owner["metadata"]
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "spec": {"replicas": owner["spec"]["replicas"]},
        "status": {"replicas": owner["spec"]["replicas"]},
    }


def resources(cpu: str, memory: str) -> Json:
    return {
        "limits": {"cpu": cpu, "memory": memory},
        "requests": {"cpu": cpu, "memory": memory},
    }


def mpa_object(**spec: Any) -> Json:
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": "cart", "namespace": "shop", "uid": "1-2-3", "generation": 1},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"},
            "sloSeconds": 0.3,
            "minReplicas": 1,
            "maxReplicas": 20,
            "minAllowed": {"cpu": "128m", "memory": "256Mi"},
            "maxAllowed": {"cpu": "2048m", "memory": "3072Mi"},
            **spec,
        },
    }


def deployment(replicas: int = 3, cpu: str = "500m", memory: str = "512Mi") -> Json:
    container = {"name": "app", "image": "cart:1", "resources": resources(cpu, memory)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "cart", "namespace": "shop", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}},
        },
        "status": {"observedGeneration": 1, "updatedReplicas": replicas, "replicas": replicas},
    }


def pod(
    name: str,
    cpu: str = "500m",
    memory: str = "512Mi",
    ready: bool = True,
    pending: str = "",
    actual: tuple[str, str] | None = None,
    restart_on: tuple[str, ...] = (),
    node: bool = True,
) -> Json:
    container: Json = {"name": "app", "image": "cart:1", "resources": resources(cpu, memory)}
    container["resizePolicy"] = [
        {
            "resourceName": kind,
            "restartPolicy": "RestartContainer" if kind in restart_on else "NotRequired",
        }
        for kind in ("cpu", "memory")
    ]
    given = {"name": "app", "image": "cart:1", "imageID": "", "ready": ready, "restartCount": 0}
    conditions = [{"type": "Ready", "status": str(ready)}]
    if pending:
        waiting = {"type": "PodResizePending", "status": "True", "reason": pending}
        conditions.append({**waiting, "message": "Node didn't have enough capacity"})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": LABELS},
        "spec": {"containers": [container], **({"nodeName": "node-1"} if node else {})},
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [{**given, "resources": resources(*(actual or (cpu, memory)))}],
        },
    }


def small_cluster(pods: int = 3, resize: bool = True, **spec: Any) -> ApiServer:
    """An application with ready pods in the size of the template."""
    server = ApiServer(resize)
    server.put(MPA, mpa_object(**spec))
    server.put(DEPLOYMENT, deployment(pods))
    for number in range(pods):
        server.put(f"{PODS}/{pod_name(number)}", pod(pod_name(number)))
    return server


def pod_name(number: int) -> str:
    return f"cart-7d9f8b6c5d-{number:05d}"


Handle = Callable[[Received, str], tuple[int, dict[str, str], Any]]


@contextmanager
def serving(handle: Handle, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve JSON at a free port of this machine; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            kind = self.headers.get("Content-Type") or ""
            one = Received(self.command, self.path, body, kind)
            code, headers, found = handle(one, self.headers.get("Authorization") or "")
            data = json.dumps(found).encode()
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def parameters(one: Received) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(one.path).query).items()}


def query_label(promql: str, spec: MpaSpec) -> str:
    """The name of a query of shop/cart, such as reports.pods."""
    names = placeholders(Application("shop/cart", spec, "app", {}, False), WINDOW_S)
    known = {f"reports.{name}": query for name, query in REPORTS.items()}
    known |= {f"steps.{name}": query for name, query in STEPS.items()}
    return next(n for n, query in known.items() if expand(query.promql, names) == promql)
