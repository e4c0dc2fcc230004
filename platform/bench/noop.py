"""No-op endpoints on the same Serve and listener as the service, as a base for comparison.

One replies itself: the cost of HTTP and FastAPI on this machine. The other calls a no-op deployment
through its handle, the usual structure of an application on Serve: the cost the service would have
if gateway and workers did not communicate through a socket of their own.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from ray import serve
from ray.serve.handle import DeploymentHandle

from loadmaster.platform.bench.bench_server import BY_HANDLE, NOOP
from loadmaster.serving.app import DEPLOYMENT_OPTIONS
from loadmaster.serving.http.server import listen

NAME = "noop"
ALONE_PATH, BY_HANDLE_PATH = "/noop", "/noop/by-handle"
OPTIONS: dict[str, Any] = {**DEPLOYMENT_OPTIONS, "ray_actor_options": {"num_cpus": 0}}


def noop_app(host: str, port: int, nothing: DeploymentHandle) -> FastAPI:
    """Routes that read the body and reply {}."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with listen(app, host, port):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post(ALONE_PATH)
    async def alone(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    @app.post(BY_HANDLE_PATH)
    async def by_handle(request: Request) -> Response:
        answer = await nothing.remote(await request.body())
        return Response(answer, media_type="application/json")

    return app


@serve.deployment(name="nothing", **OPTIONS)
class Nothing:
    """A worker that decides nothing."""

    async def __call__(self, body: bytes) -> bytes:
        return b"{}"


@serve.deployment(name=NAME, **OPTIONS)
@serve.ingress()
class Noop:
    """Ingress with one replica, as the gateway."""

    def __init__(self, host: str, port: int, nothing: DeploymentHandle) -> None:
        self._app = noop_app(host, port, nothing)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app


def start_noops(host: str, port: int) -> dict[str, str]:
    """Start both on a running Serve, which also stops them; return their addresses by name."""
    nothing = Nothing.bind()  # type: ignore[attr-defined]
    serve.run(Noop.bind(host, port, nothing), name=NAME, route_prefix=ALONE_PATH)  # type: ignore[attr-defined]
    base = f"http://{host}:{port}"
    return {NOOP: base + ALONE_PATH, BY_HANDLE: base + BY_HANDLE_PATH}
