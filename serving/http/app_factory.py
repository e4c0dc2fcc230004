"""Build the gateway: from settings and workers to an ASGI application."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from loadmaster.serving.decisions.request import iso
from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.http.auth import AccessControl, TokenStore
from loadmaster.serving.http.routes import Gateway, build_app
from loadmaster.serving.http.server import listen
from loadmaster.serving.jobs.client import Jobs
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.metrics import record
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.manager import PolicyManager
from loadmaster.serving.policies.retraining_job import Retraining
from loadmaster.serving.policies.store import StateWriter, Store, resolve_bundle
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.rpc import Worker
from loadmaster.serving.worker.worker import PolicyRunner

log = logging.getLogger(__name__)

TICK_S = 2.0  # between two rounds of what is not part of a request


class Service:
    """The gateway's application and the systems behind it."""

    def __init__(self, gateway: Gateway, address: tuple[str, int] | None) -> None:
        """`address`: host and port to listen on; None if Serve's proxy listens."""
        self.systems, self._address = gateway.systems, address
        # Errors are counted without a system: a refused request may name none.
        self.app = build_app(
            gateway,
            lambda status: record("loadmaster_rejected_total", 1, str(status)),
            self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the systems and the listener; at the end, stop them and save their state."""
        works = (*(system.start() for system in self.systems.values()), self._tick())
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        try:
            async with listen(self.app, *self._address) if self._address else nullcontext():
                yield
        finally:
            for task in tasks:
                task.cancel()
            for system in self.systems.values():
                await system.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for system in self.systems.values():
                try:
                    await system.tick()
                except Exception:  # the next round may succeed
                    log.exception("maintenance of %s", system.endpoint.system)


def assemble(settings: ServeSettings, workers: Mapping[str, Worker]) -> Service:
    """Build the service; raises InputError for wrong settings."""
    tokens = TokenStore(settings.tokens)
    settings.require_tokens(bool(tokens.principals))
    systems = {name: _system(name, settings, workers[name]) for name in settings.systems}
    gateway = Gateway(systems, AccessControl(tokens, settings.limits), settings.limits)
    address = (settings.host, settings.port) if settings.listen else None
    return Service(gateway, address)


def _system(name: str, settings: ServeSettings, worker: Worker) -> DecisionService:
    one = settings.systems[name]
    endpoint = find_endpoint(name, one.endpoint)
    runner = PolicyRunner(endpoint, one.rule or endpoint.rules[0])
    endpoint.warm_up(runner.rule)
    store = Store(settings.folder, name)
    configured = store.accept(resolve_bundle(one.bundle or endpoint.pretrained), iso(time.time()))
    saved = store.load().get("renewal")
    retraining = Retraining(
        name,
        Jobs(),
        settings.folder / "retraining",
        one.retraining,
        saved.get("retraining") if isinstance(saved, dict) else None,
    )
    retrainer = AutoRetrainer(one.auto_retrain, retraining, time.time)
    writer, decisions = StateWriter(store), DecisionLog(settings.folder / "log" / name, one.log)
    recorder = DecisionRecorder(
        name, one.monitor, decisions, retrainer, writer, one.start, time.time()
    )
    manager = PolicyManager(endpoint, worker, writer, recorder, configured, retrainer, time.time)
    return DecisionService(one, runner, worker, recorder, manager)
