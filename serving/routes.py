"""The routes of the service: FastAPI, without Ray.

Bodies are read as bytes and passed on as they came, so the routes validate nothing themselves:
`openapi.py` tells what they take, and whoever reads the bytes says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from loadmaster.envs.errors import InputError
from loadmaster.serving import console
from loadmaster.serving.docs_page import docs_page
from loadmaster.serving.gateway import JSON, Gateway, Refused
from loadmaster.serving.messages import RequestError, to_json
from loadmaster.serving.openapi import document
from loadmaster.serving.served import VERBS, Conflict

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MOST_DECISIONS = 200


def build_app(gateway: Gateway, rejected: Callable[[int], None]) -> FastAPI:
    """`rejected` hears of every answer that is a refusal."""
    app = FastAPI(
        title="Loadmaster decisions",
        version=version("loadmaster"),
        docs_url=None,  # FastAPI's page would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
    )

    @cache
    def described() -> dict[str, Any]:
        systems = gateway.systems.items()
        return document({name: served.endpoint for name, served in systems})

    async def answer(work: Awaitable[Any]) -> Response:
        try:
            return Response(to_json(await work), media_type=JSON, headers=HEADERS)
        except Refused as refusal:
            return refuse(refusal.status, refusal.line, refusal.field, dict(refusal.headers))
        except RequestError as fault:
            return refuse(422, fault.line, fault.field)
        except InputError as fault:
            return refuse(422, str(fault))
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
            404: f"no such route: {request.url.path[:200]}; see /docs",
            405: f"{request.method[:20]} is not answered here; see /docs",
        }
        headers = dict(fault.headers or {})
        return refuse(fault.status_code, lines.get(fault.status_code, fault.detail), None, headers)

    @app.get("/healthz")
    async def healthz() -> Response:
        """The process is alive."""
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Every system can be asked."""
        if not gateway.is_ready:
            return refuse(503, "not every system is ready yet", None, {"Retry-After": "1"})
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(to_json(described()), media_type=JSON, headers=HEADERS)

    @app.get("/docs")
    async def docs() -> Response:
        return Response(docs_page(described()), media_type="text/html", headers=console.HEADERS)

    @app.get("/console")
    async def show_console() -> Response:
        return Response(console.page(), media_type="text/html", headers=console.HEADERS)

    @app.get("/v1/systems")
    async def systems(request: Request) -> Response:
        return await answer(gateway.systems_told(request))

    @app.post("/v1/{system}/decide")
    async def decide(request: Request, system: str) -> Response:
        return await answer(gateway.decide(request, system))

    @app.post("/v1/{system}/feedback")
    async def feedback(request: Request, system: str) -> Response:
        return await answer(gateway.feedback(request, system))

    @app.get("/v1/{system}/status")
    async def status(request: Request, system: str) -> Response:
        return await answer(gateway.look(request, system, lambda served: served.status()))

    @app.get("/v1/{system}/history")
    async def history(request: Request, system: str) -> Response:
        return await answer(gateway.look(request, system, lambda served: served.history()))

    @app.get("/v1/{system}/decisions")
    async def decisions(request: Request, system: str) -> Response:
        def tell(served: Any) -> Any:
            return served.decisions(_number(request, "limit", 50, MOST_DECISIONS))

        return await answer(gateway.look(request, system, tell))

    @app.get("/v1/{system}/example")
    async def example(request: Request, system: str) -> Response:
        def tell(served: Any) -> Any:
            return served.example(request.query_params.get("name", "small"))

        return await answer(gateway.look(request, system, tell))

    def verb_route(verb: str) -> None:
        @app.post(f"/v1/{{system}}/{verb}", name=verb)
        async def order(request: Request, system: str) -> Response:
            return await answer(gateway.order(request, system, verb))

    for verb in VERBS:
        verb_route(verb)
    return app


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise RequestError(f"{name}: {text[:40]!r}; expected a number from 1 to {most}", name)
    return int(text)
