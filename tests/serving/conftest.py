"""Services: in this process, of the toy system or of all; or on a real Serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.serving.http.app_factory import Service, assemble
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving import toy
from tests.serving.asgi import Answered, ask
from tests.serving.built_in import SYSTEMS
from tests.serving.live import DEADLINE_MS, Live, free_port


class Here:
    """A service and its loop."""

    def __init__(self, service: Service, worker: SystemWorker, folder: Path) -> None:
        self.service, self.worker, self.folder = service, worker, folder
        self._loop = asyncio.new_event_loop()
        self._life = service.lifespan(service.app)
        self._open = True
        self.run(self._start())

    async def _start(self) -> None:
        await self._life.__aenter__()
        while not all(system.ready for system in self.service.systems.values()):
            await asyncio.sleep(0.01)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answered:
        answered: Answered = self.run(ask(self.service.app, method, path, body, **more))
        return answered

    def decide(self, load: float = 42, replicas: int = 3, **more: Any) -> dict[str, Any]:
        asked = {"state": {"load": load, "replicas": replicas}, **more}
        answered = self.ask("POST", "/v1/toy/decide", asked)
        assert answered.status == 200, answered
        told: dict[str, Any] = answered.json
        return told

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self.ask("GET", "/v1/toy/status").json
        return told

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self.run(self._life.__aexit__(None, None, None))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


Start = Callable[..., Here]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(does=..., systems={...}, ...)`: a service of the toy system, with any settings."""
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    opened: list[Here] = []

    def begin(does: str = "follows", **settings: Any) -> Here:
        bundle = tmp_path / f"bundle-{does}"
        if not bundle.exists():
            toy.make_bundle(bundle, does=does)
        one = {"endpoint": toy.REFERENCE, "bundle": str(bundle), "deadline_ms": 10_000}
        one |= settings.pop("toy", {})
        chosen = build_settings(
            ServeSettings,
            {"systems": {"toy": one}, "folder": tmp_path / "kept", "listen": False, **settings},
        )
        worker = SystemWorker("toy", toy.REFERENCE, "hold", str(bundle), warm=False)
        here = Here(assemble(chosen, {"toy": worker}), worker, tmp_path)
        opened.append(here)
        return here

    yield begin
    for here in opened:
        here.close()


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """A service of every system there is, and of the toy. Who changes it, changes it back."""
    folder = tmp_path_factory.mktemp("everything")
    bundle = toy.make_bundle(folder / "bundle")
    systems: dict[str, Any] = {"toy": {"endpoint": toy.REFERENCE, "bundle": str(bundle)}}
    systems |= {name: {"endpoint": at} for name, at in SYSTEMS.items()}
    for one in systems.values():
        one["deadline_ms"] = 10_000
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOADMASTER_TOKENS", raising=False)
        chosen = build_settings(
            ServeSettings, {"systems": systems, "folder": folder / "kept", "listen": False}
        )
        workers = {}
        for name, settings in chosen.systems.items():
            endpoint = find_endpoint(name, settings.endpoint)
            where = resolve_bundle(settings.bundle or endpoint.pretrained)
            workers[name] = SystemWorker(
                name, settings.endpoint, endpoint.rules[0], str(where), warm=False
            )
        here = Here(assemble(chosen, workers), workers["toy"], folder)
    yield here
    here.close()


@pytest.fixture(scope="session")
def live(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One service on a real Serve for all tests that need it: toy and the built-in systems."""
    from loadmaster.platform.ray.serve_session import serving, wait_until_ready

    base = tmp_path_factory.mktemp("live")
    port = free_port()
    service = Live(port, base / "kept", base / "bundles")
    one = {"endpoint": toy.REFERENCE, "bundle": service.bundle(), "deadline_ms": DEADLINE_MS}
    one |= {"log": {"flush_s": 0.5}, "guard": {"flaps": None}}
    patient = {"deadline_ms": 10_000, "guard": {"flaps": None}}
    arguments = {
        "systems": {"toy": one, "decima": patient, "das": patient},
        "port": port,
        "folder": str(service.folder),
    }
    with serving(arguments):
        assert wait_until_ready(build_settings(ServeSettings, arguments), threading.Event())
        yield service
