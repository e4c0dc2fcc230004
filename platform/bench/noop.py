"""An endpoint that does nothing, on the same Serve and by the same listener as the service.

What it takes is what HTTP, FastAPI and this machine take: the rest is the service's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from ray import serve

from loadmaster.serving.app import ASKED_AT_ONCE
from loadmaster.serving.listener import listening

NOOP = "noop"
PATH = "/noop"


def noop_app(host: str, port: int) -> FastAPI:
    """Reads what it is sent, and answers nothing."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with listening(app, host, port):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post(PATH)
    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    return app


@serve.deployment(
    name=NOOP,
    max_ongoing_requests=ASKED_AT_ONCE,
    ray_actor_options={"num_cpus": 0},
    logging_config={"enable_access_log": False},
)
@serve.ingress()
class Noop:
    """One replica, as the gateway is."""

    def __init__(self, host: str, port: int) -> None:
        self._app = noop_app(host, port)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app


def start_noop(host: str, port: int) -> str:
    """Its address. Serve must be there; it ends with it."""
    application = Noop.bind(host, port)  # type: ignore[attr-defined]
    serve.run(application, name=NOOP, route_prefix=PATH)
    return f"http://{host}:{port}{PATH}"
