"""Puts the gateway together: from settings and workers to an application that answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from loadmaster.serving.decisions.batcher import CALLS, RequestBatcher, Worker
from loadmaster.serving.decisions.decide import CircuitBreaker, DecisionPipeline
from loadmaster.serving.decisions.guard import Guard
from loadmaster.serving.decisions.policy_runner import PolicyRunner
from loadmaster.serving.decisions.service import DecisionService
from loadmaster.serving.http.auth import TokenStore
from loadmaster.serving.http.gateway import Gateway
from loadmaster.serving.http.routes import build_app
from loadmaster.serving.http.server import listen
from loadmaster.serving.jobs.client import Jobs
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.metrics import Metrics, rejected
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.manager import PolicyManager
from loadmaster.serving.policies.retraining_job import Retraining
from loadmaster.serving.policies.store import StateWriter, Store, resolve_bundle
from loadmaster.serving.settings import EndpointSettings, ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.timestamps import iso

log = logging.getLogger(__name__)

ROUND_S = 2.0  # how often what is no request is looked after
TRY_AGAIN_S = 0.5  # while a worker starts


class Service:
    """All that a gateway's process holds."""

    def __init__(
        self, systems: Mapping[str, DecisionService], gateway: Gateway, ear: tuple[str, int] | None
    ) -> None:
        """`ear`: the host and port to listen on; None: others do."""
        self.systems, self._ear = systems, ear
        self.app = build_app(gateway, rejected, self.lifespan)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """In the loop that answers: wait for the workers, look after all, close the books."""
        works = (*(self._make_ready(one) for one in self.systems.values()), self._rounds())
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        try:
            async with listen(self.app, *self._ear) if self._ear else nullcontext():
                yield
        finally:
            for task in tasks:
                task.cancel()
            for system in self.systems.values():
                await system.close()

    async def _make_ready(self, system: DecisionService) -> None:
        while not system.ready:
            await system.greet()
            await asyncio.sleep(0 if system.ready else TRY_AGAIN_S)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            for system in self.systems.values():
                try:
                    await system.look_after()
                except Exception:  # the next round may do better
                    log.exception("looking after %s", system.endpoint.system)


def assemble(settings: ServeSettings, workers: Mapping[str, Worker]) -> Service:
    """An InputError says what is wrong with the settings."""
    doorkeeper = TokenStore(settings.tokens)
    settings.check_openness(doorkeeper.keys.needed)
    systems = {
        name: served(name, one, settings, workers[name]) for name, one in settings.systems.items()
    }
    gateway = Gateway(systems, doorkeeper, settings.limits)
    ear = (settings.host, settings.port) if settings.listen else None
    return Service(systems, gateway, ear)


def served(
    name: str, one: EndpointSettings, settings: ServeSettings, worker: Worker
) -> DecisionService:
    endpoint = find_endpoint(name, one.endpoint)
    decider = PolicyRunner(endpoint, one.rule or endpoint.rules[0])
    endpoint.warm_up(decider.rule)
    store = Store(settings.folder, name)
    configured = store.accept(resolve_bundle(one.bundle or endpoint.pretrained), iso(time.time()))
    answering = DecisionPipeline(
        decider,
        RequestBatcher(worker, one.batch, CALLS * one.workers),
        CircuitBreaker(),
        Guard(one.guard),
    )
    log = DecisionLog(settings.folder / "log" / name, one.log)
    keeper = DecisionRecorder(name, one.monitor, log, Metrics(name), one.start, time.time())
    kept = store.remembered().get("renewal")
    retraining = Retraining(
        name,
        Jobs(),
        settings.folder / "retraining",
        one.retraining,
        kept.get("retraining") if isinstance(kept, dict) else None,
    )
    renewal = AutoRetrainer(one.renewal, retraining, time.time)
    tenure = PolicyManager(
        endpoint, worker, StateWriter(store), keeper, configured, renewal, time.time
    )
    return DecisionService(one, worker, answering, keeper, tenure)
