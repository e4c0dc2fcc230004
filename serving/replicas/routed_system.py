"""A system as the routes see it: every call is carried out by the gateway that owns its tenant."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol, cast

from loadmaster.serving.decisions.request import RequestOptions
from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.decisions.steering import read_report
from loadmaster.serving.decisions.tenant_names import ALL_TENANTS, DEFAULT_TENANT, TenantAccess
from loadmaster.serving.policies.control_view import ControlState
from loadmaster.serving.policies.manager import AdminAction, pause_reason, read_action
from loadmaster.serving.replicas.link import LinkLostError, MovedError

log = logging.getLogger(__name__)

HERE = ""  # place of a tenant that this gateway owns
Place = str  # HERE, or the name of another gateway
POLL_S = 0.002
FINISH_S = 1.0  # how long requests under way may delay another state

Json = dict[str, Any]


class Places(Protocol):
    """The part of Replica that is used here."""

    @property
    def name(self) -> str: ...
    def place(self, tenant: str) -> Place | None: ...
    async def wait_place(self, until: float) -> None: ...
    def wait_until(self) -> float: ...
    def fire(self) -> None: ...
    async def call_gateway(self, gateway: str, name: str, body: Any) -> Any: ...
    async def call_control(self, name: str, body: Any) -> Any: ...


class RoutedSystem:
    """One system. Requests wait while their tenant moves, or while another state is applied."""

    TENANT_ADMIN: ClassVar = ("pause", "estimate", "profile", "memory")
    OPERATIONS: ClassVar = (
        "respond",
        "feedback",
        "steering",
        "brief",
        "status",
        "decisions",
        "history",
        *TENANT_ADMIN,
    )

    def __init__(self, local: DecisionService) -> None:
        self._local = local
        self.endpoint, self.example = local.endpoint, local.example
        self._replica: Places | None = None
        self._active: Counter[str] = Counter()  # requests under way, by tenant
        self._applying = False  # another state

    def use(self, replica: Places) -> None:
        self._replica = replica

    @property
    def ready(self) -> bool:
        return self._local.ready

    @property
    def unready_reason(self) -> str | None:
        return self._local.unready_reason

    def owner(self, tenant: str) -> Place:
        """The gateway that owns the tenant; HERE also if that is not known now."""
        place = None if self._replica is None else self._replica.place(tenant)
        return HERE if place is None else place

    # Calls by HTTP.

    async def respond(self, raw: bytes, options: RequestOptions) -> bytes:
        """Return the encoded response to a request for a decision."""
        return cast(bytes, await self._routed(options.tenant, "respond", [raw, options]))

    async def feedback(self, raw: bytes, access: TenantAccess) -> Json:
        tenant = self._local.parse_feedback(raw).tenant
        access.require(tenant)
        return await self._routed(tenant, "feedback", [raw])

    async def steering(self, raw: bytes, access: TenantAccess) -> Json:
        tenant = read_report(raw).tenant
        access.require(tenant)
        return await self._routed(tenant, "steering", [raw])

    async def brief(self, tenant: str = DEFAULT_TENANT) -> Json:
        return await self._routed(tenant, "brief", [tenant])

    async def decisions(self, limit: int, tenant: str = DEFAULT_TENANT) -> Json:
        return await self._routed(tenant, "decisions", [limit, tenant])

    async def history(self, tenant: str = DEFAULT_TENANT) -> Json:
        return await self._routed(tenant, "history", [tenant])

    async def status(
        self, tenant: str = DEFAULT_TENANT, access: TenantAccess = ALL_TENANTS
    ) -> Json:
        return await self._routed(tenant, "status", [tenant, access.tenants])

    async def admin_action(self, action: AdminAction, raw: bytes, access: TenantAccess) -> Json:
        """Return the status after an action; raises Conflict if it is not possible now."""
        request = read_action(action, raw)
        tenant: str | None = getattr(request, "tenant", None)
        if tenant is not None:
            access.require(tenant)
            if action in (AdminAction.PAUSE, AdminAction.RESUME):
                await self._routed(tenant, "pause", [tenant, pause_reason(action, request)])
            else:
                body = request.model_dump(mode="json")
                await self._routed(tenant, action.value, [tenant, body])
            return await self.status(tenant, access)
        access.require_all()
        call = [self.endpoint.system, {"action": action.value, "raw": raw}]
        assert self._replica is not None
        await self._replica.call_control("admin", call)
        return await self.status(DEFAULT_TENANT, access)

    async def _routed(self, tenant: str, name: str, arguments: list[Any]) -> Json:
        """Carry out an operation where its tenant is owned."""
        replica = self._replica
        assert replica is not None
        until: float | None = None
        while True:
            place = None if self._applying else replica.place(tenant)
            try:
                if place == HERE:
                    found: Json = await self._run(tenant, name, arguments)
                    return found
                if place is not None:
                    body = [self.endpoint.system, *arguments]
                    reply: Json = await replica.call_gateway(place, name, body)
                    return reply
            except (LinkLostError, MovedError) as fault:  # the owner has changed, or will
                log.info("%s is repeated: %s", name, fault)
            until = until or replica.wait_until()
            await replica.wait_place(until)

    async def handle(self, name: str, arguments: list[Any]) -> Any:
        """Carry out an operation for another gateway; raises MovedError unless it is owned here."""
        tenant = RequestOptions(*arguments[1]).tenant if name == "respond" else None
        if name == "feedback":
            tenant = self._local.parse_feedback(arguments[0]).tenant
        elif name == "steering":
            tenant = read_report(arguments[0]).tenant
        if tenant is None:
            tenant = arguments[1] if name == "decisions" else arguments[0]
        replica = self._replica
        assert replica is not None
        until = time.monotonic() + 2 * FINISH_S
        while self._applying and time.monotonic() < until:
            await asyncio.sleep(POLL_S)
        if self._applying or replica.place(tenant) != HERE:
            raise MovedError("the tenant is not owned here")
        return await self._run(tenant, name, arguments)

    async def _run(self, tenant: str, name: str, arguments: list[Any]) -> Any:
        self._active[tenant] += 1
        try:
            if name == "respond":
                raw, options = arguments
                return await self._local.respond(raw, RequestOptions(*options))
            if name == "status":
                return await self._status(*arguments)
            at = self._local.tenant_admin if name in self.TENANT_ADMIN else self._local
            operation: Callable[..., Awaitable[Any]] = getattr(at, name)
            return await operation(*arguments)
        finally:
            if self._active[tenant] == 1:
                del self._active[tenant]
            else:
                self._active[tenant] -= 1

    async def _status(self, tenant: str, tenants: list[str] | None) -> dict[str, Any]:
        assert self._replica is not None
        await self._local.flush()
        body = [self.endpoint.system, self._replica.name]
        others = await self._replica.call_control("summary", body)
        return await self._local.status(tenant, TenantAccess(tenants), others)

    # Calls of the control process.

    async def apply_control(self, state: ControlState) -> None:
        """Apply another state: requests that have begun are finished before, others wait."""
        if not self._local.changes_roles(state):
            self._local.apply_control(state)
            return
        self._applying = True
        until = time.monotonic() + FINISH_S
        try:
            while self._active and time.monotonic() < until:
                await asyncio.sleep(POLL_S)
            self._local.apply_control(state)
        finally:
            self._applying = False
            if self._replica is not None:
                self._replica.fire()

    async def release(self, moves: Callable[[str], bool]) -> None:
        """Finish the requests of tenants that will move away, and write their state."""
        while any(moves(tenant) for tenant in self._active):
            await asyncio.sleep(POLL_S)
        await self._local.release(moves)

    def report(self) -> dict[str, Any]:
        return self._local.report()
