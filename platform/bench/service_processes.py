"""The processes of a running service: replicas as Serve lists them, owners of tenants, sockets."""

import json
import time
from collections.abc import Iterable
from typing import Any

import psutil

from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.ray.serve_session import APPLICATION
from loadmaster.serving.replicas.control_files import MEMBERS_FILE
from loadmaster.serving.replicas.membership import Assignment, restore_assignment
from loadmaster.serving.settings import CONTROL, GATEWAY, ServeSettings

TITLE = f"ray::ServeReplica:{APPLICATION}:"  # of the service's processes; their deployment follows
RUNNING = "RUNNING"
COMPLETE_S, POLL_S = 300.0, 0.2


def expected_replicas(settings: ServeSettings) -> dict[str, int]:
    """Number of processes by deployment."""
    workers = {system: one.workers for system, one in settings.systems.items()}
    return {CONTROL: 1, GATEWAY: settings.replicas, **workers}


def running_replicas() -> dict[str, set[int]]:
    """Process ids by deployment, of the replicas that Serve lists as running."""
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
    details: dict[str, Any] = ray.get(controller.get_serve_instance_details.remote())
    deployments = details["applications"][APPLICATION]["deployments"]
    return {
        name: {one["pid"] for one in found["replicas"] if one["state"] == RUNNING}
        for name, found in deployments.items()
    }


def wait_until_complete(server: BenchServer, timeout_s: float = COMPLETE_S) -> None:
    """Return when every replica runs and every gateway owns tenants."""
    expected, until = expected_replicas(server.settings), time.monotonic() + timeout_s
    while True:
        running = {name: len(pids) for name, pids in running_replicas().items()}
        if running == expected and len(assignment(server).members) == expected[GATEWAY]:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"the service has {running}; expected {expected}")
        time.sleep(POLL_S)


def assignment(server: BenchServer) -> Assignment:
    """The gateways that own tenants now."""
    file = server.settings.folder / MEMBERS_FILE
    return restore_assignment(json.loads(file.read_text()))


def kill(pid: int, deployment: str) -> None:
    """End a process of the service by SIGKILL; raises RuntimeError if it is another process."""
    process = psutil.Process(pid)
    title = "".join(process.cmdline()[:1])
    if not title.startswith(TITLE + deployment):
        raise RuntimeError(f"process {pid} is {title!r}; expected one of {deployment}")
    process.kill()


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that these processes have used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(one.user + one.system for one in times))


def accepted_by(pids: Iterable[int], port: int) -> dict[int, int]:
    """The process that accepted each connection to a local port, by the client's port."""
    return {
        one.raddr.port: pid
        for pid in pids
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
    }
