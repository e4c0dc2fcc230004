"""Puts the gateway together: from settings and workers to an application that answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from loadmaster.serving.access import Doorkeeper
from loadmaster.serving.answering import Answering
from loadmaster.serving.books import Books
from loadmaster.serving.breaker import Breaker
from loadmaster.serving.config import EndpointSettings, ServeSettings
from loadmaster.serving.deciding import Decider
from loadmaster.serving.decision_log import DecisionLog
from loadmaster.serving.gateway import Gateway
from loadmaster.serving.guard import Guard
from loadmaster.serving.jobs.client import Jobs
from loadmaster.serving.keeper import Keeper
from loadmaster.serving.link import CALLS, Link, Worker
from loadmaster.serving.listener import listening
from loadmaster.serving.metrics import Metrics, rejected
from loadmaster.serving.places import bundle_folder
from loadmaster.serving.registry import find_endpoint
from loadmaster.serving.renewal import Renewal
from loadmaster.serving.retraining import Retraining
from loadmaster.serving.routes import build_app
from loadmaster.serving.served import ServedSystem
from loadmaster.serving.store import Store
from loadmaster.serving.tenure import Tenure
from loadmaster.serving.times import iso

log = logging.getLogger(__name__)

ROUND_S = 2.0  # how often what is no request is looked after
TRY_AGAIN_S = 0.5  # while a worker starts


class Service:
    """All that a gateway's process holds."""

    def __init__(
        self, systems: Mapping[str, ServedSystem], gateway: Gateway, ear: tuple[str, int] | None
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
            async with listening(self.app, *self._ear) if self._ear else nullcontext():
                yield
        finally:
            for task in tasks:
                task.cancel()
            for system in self.systems.values():
                await system.close()

    async def _make_ready(self, system: ServedSystem) -> None:
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
    doorkeeper = Doorkeeper(settings.tokens)
    settings.check_openness(doorkeeper.keys.needed)
    systems = {
        name: served(name, one, settings, workers[name]) for name, one in settings.systems.items()
    }
    gateway = Gateway(systems, doorkeeper, settings.limits)
    ear = (settings.host, settings.port) if settings.listen else None
    return Service(systems, gateway, ear)


def served(
    name: str, one: EndpointSettings, settings: ServeSettings, worker: Worker
) -> ServedSystem:
    endpoint = find_endpoint(name, one.endpoint)
    decider = Decider(endpoint, one.rule or endpoint.rules[0])
    endpoint.warm_up(decider.rule)
    store = Store(settings.folder, name)
    configured = store.accept(bundle_folder(one.bundle or endpoint.pretrained), iso(time.time()))
    answering = Answering(
        decider, Link(worker, one.batch, CALLS * one.workers), Breaker(), Guard(one.guard)
    )
    log = DecisionLog(settings.folder / "log" / name, one.log)
    keeper = Keeper(name, one.monitor, log, Metrics(name), one.start, time.time())
    kept = store.remembered().get("renewal")
    retraining = Retraining(
        name,
        Jobs(),
        settings.folder / "retraining",
        one.retraining,
        kept.get("retraining") if isinstance(kept, dict) else None,
    )
    renewal = Renewal(one.renewal, retraining, time.time)
    tenure = Tenure(endpoint, worker, Books(store), keeper, configured, renewal, time.time)
    return ServedSystem(one, worker, answering, keeper, tenure)
