"""The service on a real Serve, as tests ask it, and what can be done to its processes."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from loadmaster.serving.client import Client, Decision, Status
from tests.serving import toy

PATIENCE_S = 90.0
DEADLINE_MS = 500.0  # of the toy system
GATEWAY, TOY = "ray::ServeReplica:loadmaster:gateway", "ray::ServeReplica:loadmaster:toy"
CONTROLLER = "ray::ServeController"


class Live:
    """A service that runs, and an admin who asks it."""

    def __init__(self, port: int, folder: Path, bundles: Path) -> None:
        self.port, self.folder, self._bundles = port, folder, bundles
        self.url = f"http://127.0.0.1:{port}"
        self.admin = Client(self.url, deadline_s=PATIENCE_S, retries=100)

    def bundle(self, does: str = "follows", extra: int = 0) -> str:
        """A bundle of the toy system's that behaves so."""
        folder = self._bundles / f"{does} {extra}".replace(" ", "-")
        if not folder.exists():
            toy.make_bundle(folder, name=folder.name, does=does, extra=extra)
        return str(folder)

    def serve(self, does: str = "follows", extra: int = 0) -> Status:
        """Promote it."""
        return self.admin.promote("toy", self.bundle(does, extra), to="serving")

    def decide(self, load: float = 42, replicas: int = 3) -> Decision:
        return self.admin.decide("toy", {"load": load, "replicas": replicas})

    def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> float:
        """Wait for it; after how many seconds it came."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, self.decide()
            time.sleep(0.05)
        return time.monotonic() - began

    def by_policy(self) -> Decision:
        """A decision of the policy, which may have missed its deadline before."""
        told: list[Decision] = []

        def acts() -> bool:
            told.append(self.decide())
            return told[-1].source == "policy"

        self.until(acts)
        return told[-1]

    def process(self, title: str) -> psutil.Process:
        """One of this test session's own Ray; there may be other services on this machine."""
        found = processes(title)
        assert len(found) == 1, found
        return found[0]

    def kill(self, title: str) -> int:
        """Without a warning; the process id that is gone."""
        process = self.process(title)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        return process.pid

    def has_new(self, title: str, old_pid: int) -> bool:
        return any(process.pid != old_pid for process in processes(title))


def processes(title: str) -> list[psutil.Process]:
    """Descendants of this process that go by that title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            name = process.cmdline()[:1]
        except psutil.NoSuchProcess:  # it has just ended, or nobody has buried it yet
            continue
        if name and name[0].startswith(title):
            found.append(process)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
