"""The HTTP API of the service over simulated systems, without Ray."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from loadmaster.serving.console import HEADERS, PAGE
from tests.serving.console.fake_system import FakeSystem, iso, make_das, make_decima


class HttpServer:
    """An app on a free port; it can be stopped and started again there."""

    def __init__(self, app: Any) -> None:
        self.app = app
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.base = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self.app, port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=15)
        assert not self._thread.is_alive()


def error(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text, "field": None}, status, headers)


class FakeService(HttpServer):
    """`tokens` maps tokens to scopes; empty: open to all."""

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        now = datetime.now(UTC)
        self.tokens = dict(tokens or {})
        self.systems = {"decima": make_decima(now), "das": make_das(now)}
        self.failure: tuple[int, str] | None = None  # status and text for every request
        self.posted: list[tuple[str, str, Any]] = []  # system, action, body
        super().__init__(self.create_app())

    def scope(self, request: Request) -> str | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.tokens.get(token) if self.tokens else "admin"

    def check(self, request: Request) -> JSONResponse | None:
        if self.failure is not None:
            return error(*self.failure, {"Retry-After": "3"} if self.failure[0] == 429 else None)
        scope = self.scope(request)
        if scope is None:
            return error(401, "no valid token was sent")
        if request.method == "POST" and scope != "admin":
            return error(403, "the scope of the token is read; expected admin")
        return None

    def act(self, system: FakeSystem, action: str, body: Any) -> Response:
        self.posted.append((system.fields["system"], action, body))
        policies = system.fields["policies"]
        if action in ("pause", "resume"):
            system.pause_reason = body.get("reason", "") if action == "pause" else None
            return JSONResponse(system.status())
        source = "shadow" if action == "promote" else "previous"
        if policies[source] is None:
            return error(409, f"no {source} policy")
        serving, previous = policies[source], policies["serving"]
        policies |= {source: None, "serving": serving, "previous": previous}
        return JSONResponse(system.status())

    def create_app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def checked(
            request: Request, respond: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            if not request.url.path.startswith("/v1"):
                return await respond(request)
            for system in self.systems.values():
                system.run_to(datetime.now(UTC))
            return self.check(request) or await respond(request)

        @app.get("/console")
        def console() -> Response:
            return Response(PAGE, headers=dict(HEADERS))

        @app.get("/v1/systems")
        def systems(request: Request) -> Any:
            service = {"version": "0.1.0", "started_at": iso(datetime.now(UTC)), "uptime_s": 11520}
            service |= {"tokens": bool(self.tokens), "scope": self.scope(request)}
            return {"service": service, "systems": [s.listing() for s in self.systems.values()]}

        @app.get("/v1/{name}/{resource}")
        def read(name: str, resource: str) -> Any:
            system = self.systems[name]
            return {
                "status": system.status(),
                "decisions": {"decisions": list(system.decisions)[:50]},
                "history": {"interval_s": 10, "intervals": system.intervals},
            }[resource]

        @app.post("/v1/{system}/{action}")
        async def act(system: str, action: str, request: Request) -> Response:
            return self.act(self.systems[system], action, await request.json())

        return app
