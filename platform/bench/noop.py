"""Endpoints that do nothing, on the same Serve and by the same listener as the service.

One answers by itself: what it takes is what HTTP, FastAPI and this machine take. The other asks a
deployment that does nothing, as Serve has it: an ingress, and a deployment behind its handle. That
is what the service would rest on if gateway and workers had no wire of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from ray import serve
from ray.serve.handle import DeploymentHandle

from loadmaster.platform.bench.serve import BY_HANDLE, NOOP
from loadmaster.serving.app import DEPLOYMENT_OPTIONS
from loadmaster.serving.http.server import listen

NAME = "noop"
ALONE_PATH, BY_HANDLE_PATH = "/noop", "/noop/by-handle"


def noop_app(host: str, port: int, nothing: DeploymentHandle) -> FastAPI:
    """Reads what it is sent, and answers nothing."""

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


@serve.deployment(name="nothing", **DEPLOYMENT_OPTIONS)
class Nothing:
    """What a worker would be if there were nothing to decide."""

    async def __call__(self, body: bytes) -> bytes:
        return b"{}"


@serve.deployment(name=NAME, **DEPLOYMENT_OPTIONS)
@serve.ingress()
class Noop:
    """One replica, as the gateway is."""

    def __init__(self, host: str, port: int, nothing: DeploymentHandle) -> None:
        self._app = noop_app(host, port, nothing)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app


def start_noops(host: str, port: int) -> dict[str, str]:
    """Their addresses by name. Serve must be there; they end with it."""
    nothing = Nothing.bind()  # type: ignore[attr-defined]
    serve.run(Noop.bind(host, port, nothing), name=NAME, route_prefix=ALONE_PATH)  # type: ignore[attr-defined]
    where = f"http://{host}:{port}"
    return {NOOP: where + ALONE_PATH, BY_HANDLE: where + BY_HANDLE_PATH}
