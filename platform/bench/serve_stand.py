"""The decision service as benchmarks need it: on a Ray, a port and a folder of its own."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.ray_session import ray_session
from loadmaster.platform.serve_session import (
    base_url,
    before_loading_serve,
    serving,
    wait_until_ready,
)
from loadmaster.platform.serve_settings import serve_arguments
from loadmaster.platform.systems import systems
from loadmaster.serving.config import ServeSettings
from loadmaster.serving.messages import to_json
from loadmaster.serving.registry import find_endpoint

HOST = "127.0.0.1"
UNBATCHED = "unbatched"
NO_LIMIT = {"rate_per_s": 1e6, "burst": 1_000_000}  # one who asks as fast as it can is our purpose


class Stand(NamedTuple):
    """A service that is up."""

    url: str
    systems: tuple[str, ...]
    folder: Path  # ends with the service

    def decide_url(self, system: str) -> str:
        return f"{self.url}/v1/{system}/decide"

    def body(self, system: str, example: str) -> Path:
        """A request about one of the system's examples, in a file."""
        file = self.folder / f"{system}-{example}.json"
        if not file.exists():
            state = find_endpoint(system, systems()[system].endpoint_at).examples()[example]
            file.write_bytes(to_json({"state": state.model_dump(mode="json", exclude_unset=True)}))
        return file


def served_systems() -> tuple[str, ...]:
    """Those of this installation that can be served."""
    found = []
    for name, system in systems().items():
        if not system.endpoint_at:
            continue
        try:
            find_endpoint(name, system.endpoint_at)
        except InputError:
            continue
        found.append(name)
    if not found:
        raise InputError("no system can be served here; expected decima or das")
    return tuple(found)


@contextmanager
def service_stand(names: Sequence[str], say: Callable[[str], None]) -> Iterator[Stand]:
    """The service with its defaults while it lasts; a Ray that is open already is used."""
    before_loading_serve()
    with tempfile.TemporaryDirectory(prefix="lm-serve-") as folder:
        arguments = arguments_for(names, Path(folder) / "kept")
        say(f"starting Ray and the service of {', '.join(names)}")
        with ray_session(), serving(arguments):
            yield Stand(until_ready(arguments), tuple(names), Path(folder))


def start_unbatched(names: Sequence[str], folder: Path) -> Stand:
    """The same service beside the first, with a call of the worker for every request."""
    from ray import serve

    from loadmaster.serving.app import build

    arguments = arguments_for(names, folder / UNBATCHED / "kept", batch=1)
    serve.run(build(arguments), name=UNBATCHED, route_prefix=f"/{UNBATCHED}")
    return Stand(until_ready(arguments), tuple(names), folder / UNBATCHED)


def arguments_for(names: Sequence[str], folder: Path, **each: Any) -> dict[str, Any]:
    """`each`: settings of every system."""
    given = {
        "host": HOST,
        "port": free_port(),
        "folder": folder,
        "limits": NO_LIMIT,
        "systems": {name: dict(each) for name in names},
    }
    return serve_arguments(None, [], [], given)


def until_ready(arguments: dict[str, Any]) -> str:
    """The service's address, when every system can be asked."""
    settings = build_settings(ServeSettings, arguments)
    wait_until_ready(settings, threading.Event())
    return base_url(settings)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
