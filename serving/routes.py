"""The routes of the service: FastAPI, without Ray.

Bodies are read as bytes and passed on as they came, so the routes validate nothing themselves:
`openapi.py` tells what they take, and whoever reads the bytes says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from loadmaster.serving import console
from loadmaster.serving.bodies import JSON, swallow
from loadmaster.serving.docs_page import docs_page
from loadmaster.serving.gateway import Gateway
from loadmaster.serving.messages import RequestError, to_json
from loadmaster.serving.openapi import document
from loadmaster.serving.refusal import Refused
from loadmaster.serving.served import VERBS, Conflict

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MOST_DECISIONS = 200

# Routes that need no token, and why. All others do: a test walks through them.
PUBLIC = {
    "/healthz": "probes have no token",
    "/readyz": "probes have no token",
    "/docs": "how to ask is no secret",
    "/openapi.json": "how to ask is no secret",
    "/console": "the page; what it shows, it asks for with the token that is typed in",
}


def build_app(
    gateway: Gateway,
    rejected: Callable[[int], None],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """`rejected` hears of every answer that is a refusal; `lifespan` is the application's own."""
    app = FastAPI(
        title="Loadmaster decisions",
        version=version("loadmaster"),
        docs_url=None,  # FastAPI's page would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # it would lead to wherever the Host header says
        lifespan=lifespan,
    )
    get = partial(app.api_route, methods=["GET", "HEAD"])

    @cache
    def described() -> dict[str, Any]:
        systems = gateway.systems.items()
        return document({name: served.endpoint for name, served in systems})

    @cache
    def docs_content() -> bytes:
        return docs_page(described())

    async def answer(request: Request, work: Awaitable[Any]) -> Response:
        try:
            found = await work
            content = found if isinstance(found, bytes) else to_json(found)
            return Response(content, media_type=JSON, headers=HEADERS)
        except Refused as refusal:
            await swallow(request)
            return refuse(refusal.status, refusal.line, refusal.field, dict(refusal.headers))
        except RequestError as fault:
            return refuse(422, fault.line, fault.field)
        except Conflict as fault:
            return refuse(409, str(fault))

    def refuse(
        status: int, line: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        rejected(status)
        told = to_json({"error": line, "field": field})
        return Response(told, status, {**HEADERS, **(headers or {})}, JSON)

    @app.exception_handler(HTTPException)
    async def unknown_route(request: Request, fault: HTTPException) -> Response:
        lines = {
            404: f"no such route: {request.scope['path'][:200]}; see /docs",
            405: f"{request.method[:20]} is not answered here; see /docs",
        }
        headers = dict(fault.headers or {})
        return refuse(fault.status_code, lines.get(fault.status_code, fault.detail), None, headers)

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> Response:
        """Starlette raises it again, so it is logged; who asked learns nothing of our insides."""
        return refuse(500, "the service failed; its log says why")

    @get("/healthz")
    async def healthz() -> Response:
        """The process is alive."""
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    @get("/readyz")
    async def readyz() -> Response:
        """Every system can be asked."""
        if not gateway.is_ready:
            return refuse(503, "not every system is ready yet", None, {"Retry-After": "1"})
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    @get("/openapi.json")
    async def openapi() -> Response:
        return Response(to_json(described()), media_type=JSON, headers=HEADERS)

    @get("/docs")
    async def docs() -> Response:
        return Response(docs_content(), media_type="text/html", headers=console.HEADERS)

    @get("/console")
    async def show_console() -> Response:
        return Response(console.page(), media_type="text/html", headers=console.HEADERS)

    @get("/v1/systems")
    async def systems(request: Request) -> Response:
        return await answer(request, gateway.systems_told(request))

    @app.post("/v1/{system}/decide")
    async def decide(request: Request, system: str) -> Response:
        return await answer(request, gateway.decide(request, system))

    @app.post("/v1/{system}/feedback")
    async def feedback(request: Request, system: str) -> Response:
        return await answer(request, gateway.feedback(request, system))

    @get("/v1/{system}/status")
    async def status(request: Request, system: str) -> Response:
        return await answer(request, gateway.look(request, system, lambda served: served.status()))

    @get("/v1/{system}/history")
    async def history(request: Request, system: str) -> Response:
        return await answer(request, gateway.look(request, system, lambda served: served.history()))

    @get("/v1/{system}/decisions")
    async def decisions(request: Request, system: str) -> Response:
        def tell(served: Any) -> Any:
            return served.decisions(_number(request, "limit", 50, MOST_DECISIONS))

        return await answer(request, gateway.look(request, system, tell))

    @get("/v1/{system}/example")
    async def example(request: Request, system: str) -> Response:
        def tell(served: Any) -> Any:
            return served.example(request.query_params.get("name", "small"))

        return await answer(request, gateway.look(request, system, tell))

    def verb_route(verb: str) -> None:
        @app.post(f"/v1/{{system}}/{verb}", name=verb)
        async def order(request: Request, system: str) -> Response:
            return await answer(request, gateway.order(request, system, verb))

    for verb in VERBS:
        verb_route(verb)
    return app


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise RequestError(f"{name}: {text[:40]!r}; expected a number from 1 to {most}", name)
    return int(text)
