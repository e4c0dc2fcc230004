"""The routes of the service: FastAPI, without Ray.

Bodies are read as bytes and passed on as they came, so the routes validate nothing themselves:
`openapi.py` tells what they take, and whoever reads the bytes says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from loadmaster.serving import console
from loadmaster.serving.decisions.request import RequestError, to_json
from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.http import openapi as documented
from loadmaster.serving.http.body import JSON, HttpError, swallow
from loadmaster.serving.http.gateway import Gateway
from loadmaster.serving.http.openapi import document
from loadmaster.serving.policies.manager import VERBS, Conflict

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

Handler = Callable[[Request], Awaitable[Response]]


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
        # What there is to count is counted here; states are nobody else's business.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=lifespan,
    )

    @cache
    def described() -> dict[str, Any]:
        systems = gateway.systems.items()
        return document({name: served.endpoint for name, served in systems})

    @cache
    def docs_content() -> bytes:
        return documented.docs_page(described())

    async def answer(request: Request, work: Awaitable[Any]) -> Response:
        try:
            found = await work
            content = found if isinstance(found, bytes) else to_json(found)
            return Response(content, media_type=JSON, headers=HEADERS)
        except HttpError as refusal:
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

    async def decide(request: Request) -> Response:
        return await answer(request, gateway.decide(request, _system(request)))

    async def healthz(request: Request) -> Response:
        """The process is alive."""
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    async def readyz(request: Request) -> Response:
        """Every system can be asked."""
        if not gateway.is_ready:
            return refuse(503, "not every system is ready yet", None, {"Retry-After": "1"})
        return Response(b'{"status":"ok"}', media_type=JSON, headers=HEADERS)

    async def openapi(request: Request) -> Response:
        return Response(to_json(described()), media_type=JSON, headers=HEADERS)

    async def docs(request: Request) -> Response:
        return Response(docs_content(), media_type="text/html", headers=documented.HEADERS)

    async def show_console(request: Request) -> Response:
        return Response(console.page(), media_type="text/html", headers=console.HEADERS)

    async def systems(request: Request) -> Response:
        return await answer(request, gateway.systems_told(request))

    async def feedback(request: Request) -> Response:
        return await answer(request, gateway.feedback(request, _system(request)))

    def look(tell: Callable[[Request, DecisionService], Any]) -> Handler:
        async def told(request: Request) -> Response:
            def about(served: DecisionService) -> Any:
                return tell(request, served)

            return await answer(request, gateway.look(request, _system(request), about))

        return told

    def order(verb: str) -> Handler:
        async def given(request: Request) -> Response:
            return await answer(request, gateway.order(request, _system(request), verb))

        return given

    def decisions(request: Request, served: DecisionService) -> Any:
        return served.decisions(_number(request, "limit", 50, MOST_DECISIONS))

    def example(request: Request, served: DecisionService) -> Any:
        return served.example(request.query_params.get("name", "small"))

    # Routes are tried in turn: the busiest comes first.
    posts: dict[str, Handler] = {"/v1/{system}/decide": decide, "/v1/{system}/feedback": feedback}
    posts |= {f"/v1/{{system}}/{verb}": order(verb) for verb in VERBS}
    gets: dict[str, Handler] = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/openapi.json": openapi,
        "/docs": docs,
        "/console": show_console,
        "/v1/systems": systems,
        "/v1/{system}/status": look(lambda _, served: served.status()),
        "/v1/{system}/history": look(lambda _, served: served.history()),
        "/v1/{system}/decisions": look(decisions),
        "/v1/{system}/example": look(example),
    }
    for path, handler in posts.items():
        app.add_route(path, handler, ["POST"])
    for path, handler in gets.items():
        app.add_route(path, handler, ["GET", "HEAD"])
    return app


def _system(request: Request) -> str:
    named: str = request.path_params["system"]
    return named


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise RequestError(f"{name}: {text[:40]!r}; expected a number from 1 to {most}", name)
    return int(text)
