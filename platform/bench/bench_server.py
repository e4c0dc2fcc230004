"""The decision service as benchmarks need it: on a Ray, a port and a folder of its own."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.ray.serve_session import (
    base_url,
    serving,
    set_serve_env,
    wait_until_ready,
)
from loadmaster.platform.ray.serve_settings import serve_arguments
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.systems.registry import systems
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint

HOST = "127.0.0.1"
UNBATCHED = "unbatched"
NO_LIMIT = {"rate_per_s": 1e6, "burst": 1_000_000}  # one who asks as fast as it can is our purpose


Systems = Mapping[str, Mapping[str, Any]]  # settings by name, as in a file for `loadmaster serve`


class Stand(NamedTuple):
    """A service that is up."""

    url: str
    settings: ServeSettings
    folder: Path  # ends with the service

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(self.settings.systems)

    def decide_url(self, system: str) -> str:
        return f"{self.url}/v1/{system}/decide"

    def body(self, system: str, example: str) -> Path:
        """A request about one of the system's examples, in a file."""
        file = self.folder / f"{system}-{example}.json"
        if not file.exists():
            endpoint = find_endpoint(system, self.settings.systems[system].endpoint)
            state = endpoint.examples()[example].model_dump(mode="json", exclude_unset=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(to_json({"state": state}))
        return file


def served_systems() -> Systems:
    """Those of this installation that can be served, with their defaults."""
    found = {}
    for name, system in systems().items():
        if not system.endpoint_at:
            continue
        with suppress(InputError):  # a package that is not there as a whole
            find_endpoint(name, system.endpoint_at)
            found[name] = dict[str, Any]()
    if not found:
        raise InputError("no system can be served here; expected decima or das")
    return found


@contextmanager
def service_stand(chosen: Systems, say: Callable[[str], None]) -> Iterator[Stand]:
    """The service while it lasts; a Ray that is open already is used."""
    set_serve_env()
    with tempfile.TemporaryDirectory(prefix="lm-serve-") as folder:
        arguments = arguments_for(chosen, Path(folder) / "kept")
        say(f"starting Ray and the service of {' and '.join(chosen)}")
        with ray_session(), serving(arguments):
            yield ready_stand(arguments, Path(folder))


def start_unbatched(chosen: Systems, folder: Path) -> Stand:
    """The same service beside the first, with a call of the worker for every request."""
    from ray import serve

    from loadmaster.serving.app import build

    alone = {name: {**settings, "batch": 1} for name, settings in chosen.items()}
    arguments = arguments_for(alone, folder / UNBATCHED / "kept")
    serve.run(build(arguments), name=UNBATCHED, route_prefix=f"/{UNBATCHED}")
    return ready_stand(arguments, folder / UNBATCHED)


def arguments_for(chosen: Systems, folder: Path) -> dict[str, Any]:
    given = {
        "host": HOST,
        "port": free_port(),
        "folder": folder,
        "limits": NO_LIMIT,
        "systems": {name: dict(settings) for name, settings in chosen.items()},
    }
    return serve_arguments(None, [], [], given)


def ready_stand(arguments: Mapping[str, Any], folder: Path) -> Stand:
    """When every system can be asked."""
    settings = build_settings(ServeSettings, arguments)
    wait_until_ready(settings, threading.Event())
    return Stand(base_url(settings), settings, folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
