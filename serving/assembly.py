"""Puts the gateway together: from settings and workers to an application that answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI

from loadmaster.serving.access import Doorkeeper
from loadmaster.serving.answering import Answering
from loadmaster.serving.breaker import Breaker
from loadmaster.serving.config import EndpointSettings, ServeSettings
from loadmaster.serving.deciding import Decider
from loadmaster.serving.decision_log import DecisionLog
from loadmaster.serving.gateway import Gateway
from loadmaster.serving.guard import Guard
from loadmaster.serving.keeper import Keeper
from loadmaster.serving.link import Link, Worker
from loadmaster.serving.metrics import Metrics, rejected
from loadmaster.serving.places import bundle_folder
from loadmaster.serving.registry import find_endpoint
from loadmaster.serving.routes import build_app
from loadmaster.serving.served import ServedSystem
from loadmaster.serving.store import Store
from loadmaster.serving.times import iso

ROUND_S = 2.0  # how often what is no request is looked after
TRY_AGAIN_S = 0.5  # while a worker starts


@dataclass
class Service:
    """All that a gateway's process holds."""

    app: FastAPI
    systems: Mapping[str, ServedSystem]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """In the loop that answers: wait for the workers, then look after everything."""
        for work in (*(self._make_ready(one) for one in self.systems.values()), self._rounds()):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for system in self.systems.values():
            system.save()
            system.keeper.close()

    async def _make_ready(self, system: ServedSystem) -> None:
        while not system.ready:
            system.ready = await system.is_answered()
            if not system.ready:
                await asyncio.sleep(TRY_AGAIN_S)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            for system in self.systems.values():
                await system.look_after()


def assemble(settings: ServeSettings, workers: Mapping[str, Worker]) -> Service:
    """An InputError says what is wrong with the settings."""
    systems = {
        name: served(name, one, settings, workers[name]) for name, one in settings.systems.items()
    }
    gateway = Gateway(systems, Doorkeeper(settings.tokens), settings.limits)
    return Service(build_app(gateway, rejected), systems)


def served(
    name: str, one: EndpointSettings, settings: ServeSettings, worker: Worker
) -> ServedSystem:
    endpoint = find_endpoint(name, one.endpoint)
    decider = Decider(endpoint, one.rule or endpoint.rules[0])
    for state in endpoint.examples().values():
        decider.rule.decide(state)  # compiles, where that was never done: no request shall wait
    store = Store(settings.folder, name)
    configured = store.accept(bundle_folder(one.bundle or endpoint.pretrained), iso(time.time()))
    answering = Answering(
        decider, Link(worker, one.batch, one.workers), Breaker(), Guard(one.guard)
    )
    log = DecisionLog(settings.folder / "log" / name, one.log)
    keeper = Keeper(name, one.monitor, log, Metrics(name), one.start, time.time())
    return ServedSystem(one, worker, answering, store, keeper, configured)
