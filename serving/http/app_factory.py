"""Build the gateway: from settings and workers to an ASGI application."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.decisions.tenant import TenantParts
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.decisions.tenant_store import TenantStore
from loadmaster.serving.http.auth import AccessControl, TokenStore
from loadmaster.serving.http.handover import Handover
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.http.routes import Gateway, build_app
from loadmaster.serving.http.server import listen
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.metrics import TenantLabels, record
from loadmaster.serving.policies.control_view import ControlView
from loadmaster.serving.replicas.autoscaling import LoadMeter
from loadmaster.serving.replicas.control import BEAT_S, Control
from loadmaster.serving.replicas.control_client import ControlClient, RemoteDatabase, Where
from loadmaster.serving.replicas.control_files import in_use, lock_folder
from loadmaster.serving.replicas.replica import Replica
from loadmaster.serving.replicas.routed_system import RoutedSystem
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.pool import Worker, WorkerPool
from loadmaster.serving.worker.worker import PolicyRunner

log = logging.getLogger(__name__)


class Service:
    """A gateway: its application and the systems behind it."""

    def __init__(
        self,
        settings: ServeSettings,
        workers: Mapping[str, Worker],
        control: ControlClient,
        host: str | None = None,
        where: Where | None = None,
        sockets: Path | None = None,
    ) -> None:
        """`host`, `where`: see Replica; `sockets`: see Handover. Raises InputError for wrong
        settings."""
        tokens = TokenStore(settings.tokens)
        settings.require_tokens(bool(tokens.principals))
        self._local = {
            name: _system(name, settings, workers[name], control) for name in settings.systems
        }
        self.systems = {name: RoutedSystem(one) for name, one in self._local.items()}
        known = KnownCallers()
        access = AccessControl(tokens, settings.limits, settings.trusted_proxies, known)
        pools = {name: one for name, one in workers.items() if isinstance(one, WorkerPool)}
        self._replica = Replica(control, self.systems, pools, known, host, where)
        self._address = (settings.host, settings.port) if settings.listen else None
        self._handover = None if sockets is None else Handover(sockets, self._replica.name)
        self.meter = LoadMeter()
        # Errors are counted without a system: a refused request may name none.
        self.app = build_app(
            Gateway(self.systems, access, settings.limits, self.meter),
            lambda status: record("loadmaster_rejected_total", 1, str(status)),
            self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the systems, own tenants, then listen; at the end, in the reverse order."""
        systems = self._local.values()
        await self._replica.start()
        works = (
            *(system.start() for system in systems),
            *(system.watch_worker() for system in systems),
            self._replica.own_when_ready(),
            self._tick(),
        )
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        try:
            await self._replica.wait_member()
            async with self._listening():
                yield
                await self._replica.report()
                await self._replica.leave()  # requests that still come are for other gateways
        finally:
            for task in tasks:
                task.cancel()
            for system in systems:
                await system.close()
            await self._replica.close()

    def _listening(self) -> AbstractAsyncContextManager[None]:
        if self._address is None:
            return nullcontext()
        return listen(self.app, *self._address, self._handover)

    def place(self, tenant: str) -> str | None:
        """Where the tenant is decided for; see Replica."""
        return self._replica.place(tenant)

    async def tick(self) -> None:
        """One round of what is not part of a request."""
        for system in self._local.values():
            try:
                await system.tick()
            except Exception:  # the next round may succeed
                log.exception("maintenance of %s", system.endpoint.system)
        await self._replica.report()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.tick()


def _system(
    name: str, settings: ServeSettings, worker: Worker, control: ControlClient
) -> DecisionService:
    one = settings.systems[name]
    endpoint = find_endpoint(name, one.endpoint)
    runner = PolicyRunner(endpoint, one.rule or endpoint.rules[0])
    endpoint.warm_up(runner.rule)
    requests: set[asyncio.Task[Any]] = set()  # the event loop keeps weak references only

    def request_retraining(why: str, tenant: str) -> None:
        body = [name, service.retraining_request(why, tenant)]
        task = asyncio.get_running_loop().create_task(control.call("retrain", body))
        requests.add(task)
        task.add_done_callback(requests.discard)

    view = ControlView(request_retraining)
    parts = TenantParts(
        name,
        one.guard,
        one.monitor,
        one.start,
        DecisionLog(settings.folder / "log" / name, one.log),
        view,
        TenantStore(RemoteDatabase(control, name)),
        TenantLabels(),
        lambda tenant: endpoint.complete(one.profiles.get(tenant, one.profile)),
    )
    tenants = TenantRegistry(settings.tenants, parts, time.time)
    service = DecisionService(one, runner, worker, tenants, view)
    return service


class LocalService(Service):
    """A service in one process, with its control and its workers: for tests and other programs."""

    def __init__(self, settings: ServeSettings, workers: Mapping[str, Any]) -> None:
        if (lock := lock_folder(settings.folder)) is None:
            raise in_use(settings.folder)
        self._control = Control(settings, lock, workers)

        async def connect(handlers: Any) -> Any:
            return self._control.connect_here(handlers)

        super().__init__(settings, workers, ControlClient(connect))

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        await self._control.start()
        try:
            async with super().lifespan(app):
                yield
        finally:
            await self._control.close()

    async def stop(self) -> None:
        """Stop deciding without a last write, as if the process were killed."""
        await self._replica.close()
        await self._control.stop()

    async def tick(self) -> None:
        await super().tick()
        await self._control.tick()


def assemble(settings: ServeSettings, workers: Mapping[str, Any]) -> Service:
    """Build a service in one process; raises InputError for wrong settings."""
    return LocalService(settings, workers)
