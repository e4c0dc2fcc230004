"""A Ray cluster of this machine, started with `ray start --head`: own ports, folder and token."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from loadmaster.platform.ray.head import AGENT_START, free_ports
from loadmaster.serving.jobs.client import Jobs, UnreachableError

TIMEOUT_S = 120.0


class Cluster(NamedTuple):
    address: str  # of the dashboard
    gcs: str  # address of Ray's control service
    env: Mapping[str, str]  # of clients, with the token
    storage: Path
    agent: int  # port of the dashboard's agent

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.address, self.env["RAY_AUTH_TOKEN"])


@contextlib.contextmanager
def running_cluster(
    home: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a head with these options of `ray start` and only these variables."""
    # Directly under /tmp: paths of sockets are limited to 107 bytes.
    folder = tempfile.mkdtemp(prefix="lm-", dir="/tmp")
    gcs, dashboard, client, agent = free_ports(4)
    token = secrets.token_hex(32)
    secure = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "HOME": str(home)}
    places = [
        "--head", "--block", "--object-store-memory=134217728", "--disable-usage-stats",
        "--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}",
        f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}",
        f"--dashboard-agent-listen-port={agent}",
    ]  # fmt: skip
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    log = home / "head.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", *places, *options],
            env={**path, **AGENT_START, **secure, **(env or {})},
            cwd=home,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{dashboard}"
    clients = {**os.environ, **secure, "RAY_API_SERVER_ADDRESS": address, "NO_COLOR": "1"}
    clients.pop("RAY_ADDRESS", None)
    cluster = Cluster(address, f"127.0.0.1:{gcs}", clients, home / "storage", agent)
    try:
        _wait_for(cluster, head, log)
        yield cluster
        assert head.poll() is None, f"the head ended: {log.read_text()[-2000:]}"
    finally:
        _end(head)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(cluster: Cluster, head: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + TIMEOUT_S
    while time.monotonic() < limit:
        assert head.poll() is None, f"the head ended: {log.read_text()[-2000:]}"
        with contextlib.suppress(UnreachableError):
            cluster.jobs.list()
            return
        time.sleep(0.5)
    pytest.fail("the head did not come up in time")


def _end(head: subprocess.Popen[bytes]) -> None:
    """Kill the head and its children, by id, as other Rays may run on this machine."""
    processes = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=15)
    head.wait()
