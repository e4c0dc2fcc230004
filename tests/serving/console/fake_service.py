"""The service's API over made-up systems, so that the console can be driven without Ray."""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from loadmaster.serving.console import HEADERS, page
from tests.serving.console.made_up import MadeUp, iso, make_das, make_decima

ADMIN = ("pause", "resume", "promote", "rollback")


@cache
def stories() -> tuple[MadeUp, ...]:
    """Made up once: an hour of decisions takes a second or two."""
    now = datetime.now(UTC)
    return make_decima(now), make_das(now)


class FakeService:
    """Answers as the gateway would. `tokens` gives the scope of each token; none: all is open."""

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self.started = datetime.now(UTC)
        self.tokens = dict(tokens or {})
        self.systems = {made.system: made for made in copy.deepcopy(stories())}
        self.refuses: tuple[int, str] | None = None  # status and words for every question
        self.posted: list[tuple[str, str, Any]] = []  # system, verb, body

    def refusal(self, request: Request) -> JSONResponse | None:
        if self.refuses is not None:
            status, words = self.refuses
            headers = {"Retry-After": "3"} if status == 429 else None
            return JSONResponse({"error": words, "field": None}, status, headers)
        if not self.tokens:
            return None
        scope = self.scope(request)
        if scope is None:
            return JSONResponse({"error": "no valid token was sent", "field": None}, 401)
        if request.method == "POST" and scope != "admin":
            words = "the token's scope is read; this needs admin"
            return JSONResponse({"error": words, "field": None}, 403)
        return None

    def scope(self, request: Request) -> str | None:
        return self.tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))

    def act(self, made: MadeUp, verb: str, body: Any) -> str | None:
        """Why not, if it cannot be."""
        self.posted.append((made.system, verb, body))
        policies = made.policies
        match verb:
            case "pause":
                made.paused = body.get("reason", "")
            case "resume":
                made.paused = None
            case "promote":
                if policies["shadow"] is None:
                    return "nothing to promote: no bundle is in shadow"
                policies |= {
                    "serving": {**policies["shadow"], "since": iso(made.now)},
                    "previous": policies["serving"],
                    "shadow": None,
                }
            case "rollback":
                if policies["previous"] is None:
                    return "nothing to roll back to: there is no previous bundle"
                policies |= {"serving": policies["previous"], "previous": policies["serving"]}
        return None

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def guarded(
            request: Request, answer: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            if not request.url.path.startswith("/v1"):
                return await answer(request)
            for made in self.systems.values():
                made.run_to(datetime.now(UTC))
            return self.refusal(request) or await answer(request)

        @app.get("/console")
        def console() -> Response:
            return Response(page(), headers=dict(HEADERS))

        @app.get("/v1/systems")
        def systems(request: Request) -> Any:
            service = {
                "version": "0.1.0",
                "started_at": iso(self.started - timedelta(hours=3, minutes=12)),
                "uptime_s": 11520 + (datetime.now(UTC) - self.started).total_seconds(),
                "tokens": bool(self.tokens),
                "scope": self.scope(request) if self.tokens else "admin",
            }
            return {"service": service, "systems": [m.listed() for m in self.systems.values()]}

        @app.get("/v1/{system}/status")
        def status(system: str) -> Any:
            return self.systems[system].status()

        @app.get("/v1/{system}/decisions")
        def decisions(system: str, limit: int = 50) -> Any:
            return {"decisions": list(self.systems[system].decisions)[:limit]}

        @app.get("/v1/{system}/history")
        def history(system: str) -> Any:
            return {"interval_s": 10, "intervals": list(self.systems[system].intervals)}

        @app.post("/v1/{system}/{verb}")
        async def act(system: str, verb: str, request: Request) -> Response:
            fault = self.act(self.systems[system], verb, await request.json())
            if fault is not None:
                return JSONResponse({"error": fault, "field": None}, 409)
            return JSONResponse(self.systems[system].status())

        return app


class Running:
    """A service on a port of its own; it can go away and come back there."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.base = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        settings = uvicorn.Config(
            self.service.app(), port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the fake service did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
