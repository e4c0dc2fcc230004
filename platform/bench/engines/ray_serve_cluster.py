"""A Ray with Serve on this machine, and a deployment whose replicas sleep.

`python -m loadmaster.platform.bench.engines.ray_serve_cluster` runs one until its input ends, and
prints the address of its dashboard: for trying `loadmaster steer ray-serve`, and for tests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadmaster.platform.ray.head import HERE, free_ports
from loadmaster.platform.ray.serve_session import set_serve_env
from loadmaster.platform.ray.session import own_token, start_local
from loadmaster.platform.ray.session_folder import session_folder
from loadmaster.platform.steering.ray_serve.settings import EXPORT_VARIABLE

METRICS_MS = "1000"  # from export to export; Ray's default is 10,000
SLEEPER = "Sleeper"
IMPORT_PATH = f"{__name__ if __name__ != '__main__' else __spec__.name}:sleeper"


class Sleeper:
    """Works on one request at a time: others that Serve gives it wait inside of the replica."""

    def __init__(self, places: int = 1) -> None:
        self._places = asyncio.Semaphore(places)

    async def __call__(self, work_s: Any) -> str:
        async with self._places:
            await asyncio.sleep(work_s if isinstance(work_s, float) else 0.1)
        return "done"


def sleeper(options: dict[str, Any]) -> Any:
    """An application of one sleeper, with these options of its deployment."""
    from ray import serve

    return serve.deployment(
        Sleeper,
        name=SLEEPER,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.2,
        **options,
    ).bind()


def set_cluster_env() -> None:
    """Set variables that Ray reads at its import."""
    set_serve_env()
    # Requests are sent from several event loops.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"


@contextmanager
def serve_cluster(cpus: int = 8, dashboard: bool = True) -> Iterator[str]:
    """Run Ray and Serve; yield the URL of the dashboard. This process is connected to it."""
    set_cluster_env()
    import ray
    from ray import serve

    (port,) = free_ports(1)
    with session_folder() as folder, own_token():
        try:
            start_local(
                folder,
                num_cpus=cpus,
                include_dashboard=dashboard,
                dashboard_host=HERE,
                dashboard_port=port,
                object_store_memory=128 * 2**20,
            )
            serve.start(proxy_location="Disabled")
            yield f"http://{HERE}:{port}"
        finally:
            if ray.is_initialized():
                serve.shutdown()
            ray.shutdown()


def main() -> None:
    """Run a cluster with one deployment."""
    os.environ.setdefault(EXPORT_VARIABLE, METRICS_MS)
    with serve_cluster(cpus=4) as url:
        from ray import serve

        serve.run(sleeper({"num_replicas": 1}), name="app", route_prefix=None)
        print(url, os.environ["RAY_AUTH_TOKEN"], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
