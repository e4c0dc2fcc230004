"""A local Ray head with a dashboard that ends with the command.

`ray.init` gives every dashboard agent the same port, so that with another Ray on the machine jobs
are refused without a reason. `ray start` lets all ports be chosen.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from loadmaster.envs.errors import InputError

START_S = 90.0
END_S = 20.0
HERE = "127.0.0.1"
DIES_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@contextlib.contextmanager
def own_head(folder: Path, cpus: int, metrics_port: int | None) -> Iterator[str]:
    """Run a head that only this machine can reach; yield its address."""
    gcs, dashboard, client, agent, metrics = free_ports(5)
    ports = {
        "port": gcs,
        "dashboard-port": dashboard,
        "ray-client-server-port": client,
        "dashboard-agent-listen-port": agent,
        "metrics-export-port": metrics_port or metrics,
    }
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--num-cpus={cpus}", "--disable-usage-stats", f"--dashboard-host={HERE}",
        f"--node-ip-address={HERE}", f"--temp-dir={folder}",
        *(f"--{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (folder / "start.log").open("wb") as log:
        head = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the head
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            env={**os.environ, "RAY_AUTH_MODE": "token"},
        )
    try:
        _wait_for(head, dashboard, folder / "start.log")
        yield f"{HERE}:{gcs}"
    finally:
        head.terminate()
        try:
            head.wait(END_S)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()


def _wait_for(head: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the dashboard accepts connections; everything else is up by then."""
    began = time.monotonic()
    while head.poll() is None and time.monotonic() - began < START_S:
        with contextlib.suppress(OSError):
            socket.create_connection((HERE, port), 1.0).close()
            return
        time.sleep(0.2)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise InputError(f"Ray did not start: {' '.join(lines[-3:])[-300:] or 'no output'}")


def free_ports(count: int) -> list[int]:
    """Find free ports; all are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind((HERE, 0))
        return [each.getsockname()[1] for each in found]


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no cluster is left behind."""
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGTERM)
