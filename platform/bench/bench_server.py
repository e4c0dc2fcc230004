"""A decision service for benchmarks: its own Ray, port and folder."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.settings import build_settings
from loadmaster.platform.ray.head import HERE, free_ports
from loadmaster.platform.ray.serve_session import base_url, serving, set_serve_env, wait_until_ready
from loadmaster.platform.ray.serve_settings import serve_arguments
from loadmaster.platform.ray.session import ray_session
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import default_systems, find_endpoint

NOOP, BY_HANDLE = "noop", "noop_by_handle"  # replies itself; calls a deployment first
NO_LIMIT = {"rate_per_s": 1e6, "burst": 1_000_000}  # the load generator sends as fast as it can


Systems = Mapping[str, Mapping[str, Any]]  # settings by name, as in a file for `loadmaster serve`


class BenchServer(NamedTuple):
    """A running service."""

    url: str
    settings: ServeSettings
    folder: Path  # deleted with the service

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(self.settings.systems)

    def decide_url(self, system: str) -> str:
        return f"{self.url}/v1/{system}/decide"

    def body(self, system: str, example: str) -> Path:
        """Write a request with one of the system's example states to a file."""
        file = self.folder / f"{system}-{example}.json"
        if not file.exists():
            endpoint = find_endpoint(system, self.settings.systems[system].endpoint)
            state = endpoint.examples()[example].model_dump(mode="json", exclude_unset=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(to_json({"state": state}))
        return file

    def tenant_bodies(self, system: str, example: str, tenants: int) -> tuple[Path, ...]:
        """Write requests with one state to files, one for each of the tenants t0, t1, ..."""
        body, files = self.body(system, example).read_bytes(), []
        for number in range(tenants):
            files.append(self.folder / f"{system}-{example}-t{number}.json")
            files[-1].write_bytes(body[:-1] + b',"tenant":"t%d"}' % number)
        return tuple(files)


def served_systems() -> Systems:
    """Systems of this installation that are served by default, with default settings."""
    return {name: {} for name in default_systems()}


@contextmanager
def bench_server(
    chosen: Systems, report_step: Callable[[str], None], replicas: int = 1
) -> Iterator[BenchServer]:
    """Run the service until every system is ready; a connected Ray is reused.

    `replicas`: number of gateways, and of workers of each system.
    """
    set_serve_env()
    with tempfile.TemporaryDirectory(prefix="lm-serve-") as folder:
        given = {
            "host": HERE,
            "port": free_ports(1)[0],
            "folder": Path(folder) / "kept",
            "limits": NO_LIMIT,
            # Nothing else runs on this Ray, so nothing is reserved.
            "cpus": 0,
            "replicas": replicas,
            "systems": {
                name: {"cpus": 0, "workers": replicas, **settings}
                for name, settings in chosen.items()
            },
        }
        arguments = serve_arguments(None, [], [], given)
        settings = build_settings(ServeSettings, arguments)
        report_step(f"starting Ray and the service of {' and '.join(chosen)}")
        with ray_session(), serving(arguments):
            wait_until_ready(settings, threading.Event())
            yield BenchServer(base_url(settings), settings, Path(folder))
