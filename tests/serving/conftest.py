"""Services for tests: in this process, of the toy system or of all systems; or on Ray Serve."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loadmaster.envs.registry import systems
from loadmaster.envs.settings import build_settings
from loadmaster.models.manifest import pretrained_policies
from loadmaster.serving.http.app_factory import Service, assemble
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.worker import SystemWorker, freeze_gc
from tests.bundles import make_bundle
from tests.conftest import LIVE, group_of
from tests.serving import toy
from tests.serving.asgi import Answer, send_request
from tests.serving.live import DEADLINE_MS, FLAPS, WINDOW, Live, free_port

SYSTEMS = [name for name, one in systems().items() if one.has("endpoint")]
ALL = ("toy", *SYSTEMS)


Result = TypeVar("Result")


class LocalService:
    """A service in this process, with its event loop."""

    def __init__(
        self, service: Service, worker: SystemWorker, folder: Path, wait: bool = True
    ) -> None:
        self.service, self.worker, self.folder = service, worker, folder
        self._runner = asyncio.Runner()
        self._lifespan = service.lifespan(service.app)
        self._open = True
        self.run(self._lifespan.__aenter__())
        while wait and not all(system.ready for system in service.systems.values()):
            self.run(asyncio.sleep(0.01))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def request(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return self.run(send_request(self.service.app, method, path, body, **more))

    def post(self, verb: str, body: Any = None) -> Answer:
        return self.request("POST", f"/v1/toy/{verb}", body)

    def decide(self, load: float = 42, replicas: int = 3, **options: Any) -> Any:
        """The response to a decide request of the toy system."""
        answer = self.post("decide", {"state": {"load": load, "replicas": replicas}, **options})
        assert answer.status == 200, answer
        return answer.json

    def state(self, system: str, name: str = "small") -> Any:
        return self.request("GET", f"/v1/{system}/example?name={name}").json

    def status(self, system: str = "toy", tenant: str = "default") -> Any:
        return self.request("GET", f"/v1/{system}/status?tenant={tenant}").json

    def kill(self) -> None:
        """End without a last write."""
        service: Any = self.service
        self._open = False
        self.run(service.stop())
        self._runner.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self.run(self._lifespan.__aexit__(None, None, None))
            self._runner.close()


def bundle_of(system: str, folder: Path) -> Path:
    """The pretrained bundle of a system; one of an untrained network where none is shipped."""
    name = find_endpoint(system).pretrained
    if name in pretrained_policies():
        return resolve_bundle(name)
    return make_bundle(folder / f"bundle-{system}", system=system)


def open_service(
    systems: dict[str, Any], folder: Path, wait: bool = True, **settings: Any
) -> LocalService:
    values = {"systems": systems, "folder": folder / "kept", "listen": False, **settings}
    chosen, workers = build_settings(ServeSettings, values), {}
    for name, one in chosen.systems.items():
        endpoint = find_endpoint(name, one.endpoint)
        bundle = str(resolve_bundle(one.bundle or endpoint.pretrained))
        rule = one.rule or endpoint.rules[0]
        workers[name] = SystemWorker(name, one.endpoint, rule, bundle, warm=False)
    return LocalService(assemble(chosen, workers), workers["toy"], folder, wait)


Start = Callable[..., LocalService]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(does=..., toy={...}, ...)`: a service of the toy system, with any settings."""
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    opened: list[LocalService] = []

    def begin(does: str = "follows", wait: bool = True, **settings: Any) -> LocalService:
        bundle = tmp_path / f"bundle-{does}"
        if not bundle.exists():
            toy.make_bundle(bundle, does=does)
        one = {"endpoint": toy.REFERENCE, "bundle": str(bundle), "deadline_ms": 10_000}
        one |= settings.pop("toy", {})
        opened.append(open_service({"toy": one}, tmp_path, wait, **settings))
        return opened[-1]

    yield begin
    for here in opened:
        here.close()


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service of all systems and of the toy. Tests must undo what they change."""
    folder = tmp_path_factory.mktemp("everything")
    bundle = toy.make_bundle(folder / "bundle")
    chosen: dict[str, Any] = {"toy": {"endpoint": toy.REFERENCE, "bundle": str(bundle)}}
    chosen |= {name: {"bundle": str(bundle_of(name, folder))} for name in SYSTEMS}
    for one in chosen.values():
        one["deadline_ms"] = 60_000  # the first decision of a kind may be compiled
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOADMASTER_TOKENS", raising=False)
        here = open_service(chosen, folder)
    freeze_gc()  # as gateways and workers do
    yield here
    gc.unfreeze()
    here.close()


class LiveService:
    """The service on Ray Serve, started for the first test of the group LIVE, ended after the last.

    Its eight processes would take a fifth of a core from all tests that follow.
    """

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder, self._open = make_folder, ExitStack()
        self._running: Live | None = None

    def running(self) -> Live:
        if self._running is None:
            self._running = self._open.enter_context(_serving(self._make_folder("live")))
        return self._running

    def end(self) -> None:
        self._running = None
        self._open.close()


SERVICE = pytest.StashKey[LiveService]()


@pytest.fixture(scope="session")
def live_service(
    ray_session: None, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[LiveService]:
    service = pytestconfig.stash[SERVICE] = LiveService(tmp_path_factory.mktemp)
    yield service
    service.end()


@pytest.fixture
def live(live_service: LiveService) -> Live:
    """One service on Ray Serve for all tests that need it: the toy and the built-in systems."""
    return live_service.running()


@pytest.hookimpl(trylast=True)  # after the test's own fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    service = item.config.stash.get(SERVICE, None)
    if service is not None and (nextitem is None or group_of(nextitem) != LIVE):
        service.end()


@contextmanager
def _serving(base: Path) -> Iterator[Live]:
    from loadmaster.platform.ray.serve_session import serving, wait_until_ready

    port = free_port()
    service = Live(port, base / "kept", base / "bundles")
    one = {"endpoint": toy.REFERENCE, "bundle": service.bundle(), "deadline_ms": DEADLINE_MS}
    one |= {"log": {"flush_s": 0.5}, "guard": {"flaps": FLAPS}, "cpus": 0}
    patient = {"deadline_ms": 10_000, "guard": {"flaps": None}, "cpus": 0}
    short = {"monitor": {"lifecycle": {"window": WINDOW}}}  # a lifecycle in some seconds
    arguments = {
        "cpus": 0,  # the two of the session are for other tests
        "control_cpus": 0,
        "systems": {"toy": one, "decima": patient, "das": patient, "aware": {**patient, **short}},
        "port": port,
        "folder": str(service.folder),
    }
    with service.admin, serving(arguments):
        assert wait_until_ready(build_settings(ServeSettings, arguments), threading.Event())
        yield service
