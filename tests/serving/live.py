"""A service on Ray Serve, its client, and its processes."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from loadmaster.serving.client import Client, Decision
from tests.serving import toy

PATIENCE_S = 90.0
DEADLINE_MS = 500.0  # of the toy system
GATEWAY, TOY = "ray::ServeReplica:loadmaster:gateway", "ray::ServeReplica:loadmaster:toy"
CONTROLLER = "ray::ServeController"


class Live:
    """A running service, and a client of it."""

    def __init__(self, port: int, folder: Path, bundles: Path) -> None:
        self.port, self.folder, self._bundles = port, folder, bundles
        self.url = f"http://127.0.0.1:{port}"
        self.admin = Client(self.url, deadline_s=PATIENCE_S, retries=100)

    def bundle(self, does: str = "follows", extra: int = 0) -> str:
        """Folder of a bundle of the toy system with that behaviour."""
        folder = self._bundles / f"{does} {extra}".replace(" ", "-")
        if not folder.exists():
            toy.make_bundle(folder, name=folder.name, does=does, extra=extra)
        return str(folder)

    def serve(self, does: str = "follows", extra: int = 0) -> str:
        """Promote such a bundle; returns its version."""
        served = self.admin.promote("toy", self.bundle(does, extra), to="serving").policies.serving
        assert served is not None
        return served.version

    def decide(self, load: float = 42, replicas: int = 3) -> Decision:
        return self.admin.decide("toy", {"load": load, "replicas": replicas})

    def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, self.decide()
            time.sleep(0.05)
        return time.monotonic() - began

    def by_policy(self) -> Decision:
        """Decide until the policy answers; it may miss its deadline at first."""
        seen: list[Decision] = []

        def acts() -> bool:
            seen.append(self.decide())
            return seen[-1].source == "policy"

        self.until(acts)
        return seen[-1]

    def process(self, title: str) -> psutil.Process:
        """The process of that title in the Ray of this test session."""
        found = processes(title)
        assert len(found) == 1, found
        return found[0]

    def kill(self, title: str) -> int:
        """Send SIGKILL; returns the process id."""
        process = self.process(title)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        return process.pid

    def has_new(self, title: str, old_pid: int) -> bool:
        return any(process.pid != old_pid for process in processes(title))


def processes(title: str) -> list[psutil.Process]:
    """Descendants of this process with that title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            name = process.cmdline()[:1]
        except psutil.NoSuchProcess:  # it has just ended
            continue
        if name and name[0].startswith(title):
            found.append(process)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
