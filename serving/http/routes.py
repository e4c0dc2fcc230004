"""Routes of the service: FastAPI, without Ray.

Bodies are read as bytes and passed on unchanged, so the routes validate nothing themselves.
`openapi.py` declares their schemas.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.serving import console
from loadmaster.serving.decisions.request import (
    RequestError,
    check_format,
    iso,
    json_to_msgpack,
    parse_options,
    to_json,
)
from loadmaster.serving.decisions.tenant_names import (
    DEFAULT_TENANT,
    TENANT_EXPECTED,
    TenantAccess,
    TenantForbiddenError,
    is_tenant,
)
from loadmaster.serving.http import openapi
from loadmaster.serving.http.auth import AccessControl, Scope
from loadmaster.serving.http.body import (
    JSON,
    MSGPACK,
    RETRY_SOON,
    SMALL_BYTES,
    BodyMemory,
    HttpError,
    accepts_msgpack,
    content_type,
    drain,
    read_body,
)
from loadmaster.serving.http.server import CONNECTION
from loadmaster.serving.policies.manager import AdminAction
from loadmaster.serving.policies.versions import Conflict
from loadmaster.serving.replicas.autoscaling import LoadMeter
from loadmaster.serving.replicas.routed_system import RoutedSystem
from loadmaster.serving.settings import LimitSettings

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MAX_DECISIONS = 200

# Routes that need no token, and why. A test checks that all others do.
PUBLIC = {
    "/healthz": "probes have no token",
    "/readyz": "probes have no token",
    "/docs": "the interface is not secret",
    "/openapi.json": "the interface is not secret",
    "/console": "the page itself; it fetches its data with the token that is typed in",
}

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[bytes | Json]]
View = Callable[[RoutedSystem, Request, TenantAccess], Awaitable[Json]]


class Gateway:
    """Handlers. They check every request in this order: token, scope, rate, system, size, content.

    They return encoded JSON or data to encode.
    """

    def __init__(
        self,
        systems: Mapping[str, RoutedSystem],
        access: AccessControl,
        limits: LimitSettings,
        meter: LoadMeter,
    ) -> None:
        """`meter`: counts the requests for decisions that are under way."""
        self.systems, self.access, self._limits, self._meter = systems, access, limits, meter
        self._bodies = BodyMemory(max(limits.total_bytes, limits.largest_bytes))
        self._started, self._started_at = time.monotonic(), time.time()

    async def decide(self, request: Request) -> bytes:
        """Return the encoded response; a repeated request id gets the same bytes."""
        access = self.access.admit(request, Scope.READ).access
        system = self._system(request)
        self._check_pending()  # before a body is read that would be refused afterwards
        limits, kinds = self._limits, (JSON, *MSGPACK)
        raw = await read_body(request, limits.largest_bytes, limits.body_s, self._bodies, kinds)
        try:
            check_format(raw, as_msgpack=content_type(request) != JSON)
            self._check_pending()
            self._meter.add(1)
            try:
                options = parse_options(raw, system.endpoint.tenant_field)
                access.require(options.tenant)
                response = await system.respond(raw, options)
                if (connection := request.scope.get(CONNECTION)) is not None:
                    connection.note_owner(system.owner(options.tenant))
                return response
            finally:
                self._meter.add(-1)
        finally:
            self._bodies.release(len(raw))

    def _check_pending(self) -> None:
        if self._meter.under_way >= self._limits.waiting:
            raise HttpError(503, "too many requests at once", headers=RETRY_SOON)

    async def feedback(self, request: Request) -> Json:
        system, raw, access = await self._small_request(request, Scope.READ)
        try:
            return await system.feedback(raw, access)
        except InputError as fault:
            raise HttpError(422, f"outcome: {fault}", "outcome") from None

    async def steering(self, request: Request) -> Json:
        system, raw, access = await self._small_request(request, Scope.READ)
        return await system.steering(raw, access)

    async def _small_request(
        self, request: Request, scope: Scope
    ) -> tuple[RoutedSystem, bytes, TenantAccess]:
        access = self.access.admit(request, scope).access
        system = self._system(request)
        limit = min(SMALL_BYTES, self._limits.largest_bytes)
        raw = await read_body(request, limit, self._limits.body_s, self._bodies)
        self._bodies.release(len(raw))  # small, and handled at once
        return system, raw, access

    def read(self, view: View) -> Handler:
        """Build the handler of a GET route of a system."""

        async def handler(request: Request) -> Json:
            access = self.access.admit(request, Scope.READ).access
            return await view(self._system(request), request, access)

        return handler

    def admin(self, action: AdminAction) -> Handler:
        """Build the handler of an admin action."""

        async def handler(request: Request) -> Json:
            system, raw, access = await self._small_request(request, Scope.ADMIN)
            try:
                return await system.admin_action(action, raw, access)
            except InputError as fault:
                raise HttpError(422, f"bundle: {fault}", "bundle") from None

        return handler

    async def list_systems(self, request: Request) -> Json:
        principal = self.access.admit(request, Scope.READ)
        access = principal.access
        tenant = _tenant(request, access, access.first)
        return {
            "service": {
                "version": version("loadmaster"),
                "started_at": iso(self._started_at),
                "uptime_s": round(time.monotonic() - self._started, 1),
                "tokens": self.access.uses_tokens,
                "scope": principal.scope.name.lower(),
                "tenants": None if access.tenants is None else list(access.tenants),
            },
            "systems": [await system.brief(tenant) for system in self.systems.values()],
        }

    async def healthz(self, _: Request) -> Json:
        """The process is alive."""
        return {"status": "ok"}

    async def readyz(self, _: Request) -> Json:
        """Every policy has answered within its deadline once, and its worker still answers."""
        faults = [
            f"{name} {fault}" for name, one in self.systems.items() if (fault := one.unready_reason)
        ]
        if faults:
            raise HttpError(503, f"not ready: {', '.join(faults)}", headers=RETRY_SOON)
        return {"status": "ok"}

    def _system(self, request: Request) -> RoutedSystem:
        name: str = request.path_params["system"]
        if name not in self.systems:
            raise HttpError(404, str(unknown_name("system", name[:80], self.systems)))
        return self.systems[name]


def build_app(
    gateway: Gateway,
    count_error: Callable[[int], None],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """Build the ASGI application. `count_error` is called with the status of every error."""
    app = FastAPI(
        docs_url=None,  # FastAPI's page would load scripts from another site
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # it would redirect to what the Host header names
        telemetry={"tracing": False, "metrics": False, "logs": False},  # states are confidential
        lifespan=lifespan,
    )

    def error(fault: HttpError) -> Response:
        count_error(fault.status)
        content = to_json({"error": fault.line, "field": fault.field})
        return Response(content, fault.status, {**HEADERS, **fault.headers}, JSON)

    def respond(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                found = await handler(request)
            except HttpError as fault:
                await drain(request)
                return error(fault)
            except RequestError as fault:
                return error(HttpError(422, fault.line, fault.field))
            except TenantForbiddenError as fault:
                return error(HttpError(403, str(fault), "tenant"))
            except Conflict as fault:
                return error(HttpError(409, str(fault)))
            if isinstance(found, bytes) and accepts_msgpack(request):  # a decision
                return Response(json_to_msgpack(found), media_type=MSGPACK[0], headers=HEADERS)
            content = found if isinstance(found, bytes) else to_json(found)
            return Response(content, media_type=JSON, headers=HEADERS)

        return endpoint

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, fault: HTTPException) -> Response:
        lines = {
            404: f"no such route: {request.scope['path'][:200]}; see /docs",
            405: f"{request.method[:20]} is not allowed on this route; see /docs",
        }
        line = lines.get(fault.status_code, fault.detail)
        return error(HttpError(fault.status_code, line, headers=fault.headers))

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:
        """Starlette raises the exception again, so it is logged; the client learns no details."""
        return error(HttpError(500, "internal error; see the log of the service"))

    @cache
    def document() -> Json:
        return openapi.document({name: one.endpoint for name, one in gateway.systems.items()})

    @cache
    def docs_page() -> bytes:
        return openapi.docs_page(document())

    async def openapi_json(_: Request) -> Json:
        return document()

    async def docs(_: Request) -> Response:
        return Response(docs_page(), media_type="text/html", headers=openapi.HEADERS)

    async def console_page(_: Request) -> Response:
        return Response(console.PAGE, media_type="text/html", headers=console.HEADERS)

    async def example(system: RoutedSystem, request: Request, _: TenantAccess) -> Json:
        return system.example(request.query_params.get("name", "small"))

    # Starlette tries routes in order: the most frequent comes first.
    posts: dict[str, Handler] = {
        "/v1/{system}/decide": gateway.decide,
        "/v1/{system}/feedback": gateway.feedback,
        "/v1/{system}/steering": gateway.steering,
        **{f"/v1/{{system}}/{verb}": gateway.admin(verb) for verb in AdminAction},
    }
    gets: dict[str, Handler] = {
        "/healthz": gateway.healthz,
        "/readyz": gateway.readyz,
        "/openapi.json": openapi_json,
        "/v1/systems": gateway.list_systems,
        "/v1/{system}/status": gateway.read(
            lambda system, request, access: system.status(_tenant(request, access), access)
        ),
        "/v1/{system}/history": gateway.read(
            lambda system, request, access: system.history(_tenant(request, access))
        ),
        "/v1/{system}/decisions": gateway.read(
            lambda system, request, access: system.decisions(
                _limit(request), _tenant(request, access)
            )
        ),
        "/v1/{system}/example": gateway.read(example),
    }
    for path, handler in posts.items():
        app.add_route(path, respond(handler), ["POST"])
    for path, handler in gets.items():
        app.add_route(path, respond(handler), ["GET", "HEAD"])
    app.add_route("/docs", docs, ["GET", "HEAD"])
    app.add_route("/console", console_page, ["GET", "HEAD"])
    return app


def _tenant(request: Request, access: TenantAccess, default: str = DEFAULT_TENANT) -> str:
    """The tenant that a GET request names, if the client may use it."""
    name = request.query_params.get("tenant", default)
    if not is_tenant(name):
        raise RequestError(f"tenant: {name[:40]!r}; {TENANT_EXPECTED}", "tenant")
    access.require(name)
    return name


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    is_number = text.isascii() and text.isdigit() and len(text) < 9
    if not is_number or not 1 <= int(text) <= MAX_DECISIONS:
        expected = f"expected a number from 1 to {MAX_DECISIONS}"
        raise RequestError(f"limit: {text[:40]!r}; {expected}", "limit")
    return int(text)
