"""Which gateway owns a tenant: rendezvous hashing over the gateways of an assignment.

Every process computes the same owner from the same assignment. If a gateway joins, only the tenants
that become its own move; if it leaves, only those that were.
"""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

MAX_CACHED = 100_000  # owners


class ProcessId(NamedTuple):
    """A process, distinguished from later ones with the same number."""

    machine: str  # numbers are unique there
    pid: int
    started: float

    @property
    def is_dead(self) -> bool:
        """Whether the process has certainly ended; False for one of another machine."""
        if self.machine != machine():
            return False
        try:
            found = psutil.Process(self.pid)
            ended: bool = found.status() == psutil.STATUS_ZOMBIE
            return ended or bool(abs(found.create_time() - self.started) > 1.0)
        except psutil.NoSuchProcess:
            return True


def own_process() -> ProcessId:
    return ProcessId(machine(), os.getpid(), psutil.Process().create_time())


@cache
def machine() -> str:
    """This machine since its start, as processes of this container see it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return f"{os.uname().nodename} since {psutil.boot_time():.0f}"
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


class Member(NamedTuple):
    """A gateway that owns tenants."""

    name: str
    host: str  # address and port of its listener for other gateways
    port: int
    process: ProcessId


class Assignment:
    """The gateways that own tenants. Numbers of assignments rise, over restarts too."""

    def __init__(self, number: int, members: Sequence[Member]) -> None:
        self.number = number
        self.members = {member.name: member for member in members}
        self._owners: dict[str, str] = {}

    def owner(self, tenant: str) -> str | None:
        """Name of the gateway that owns a tenant; None if there is no gateway."""
        found = self._owners.get(tenant)
        if found is None and self.members:
            if len(self._owners) >= MAX_CACHED:
                self._owners.clear()
            found = max(self.members, key=lambda name: _weight(name, tenant))
            self._owners[tenant] = found
        return found

    def record(self) -> Any:
        return {"number": self.number, "members": list(self.members.values())}


def restore_assignment(record: Any) -> Assignment:
    """Restore from `record()`; raises ValueError, TypeError or KeyError if it is damaged."""
    members = [
        Member(str(name), str(host), int(port), ProcessId(str(where), int(pid), float(started)))
        for name, host, port, (where, pid, started) in record["members"]
    ]
    return Assignment(int(record["number"]), members)


def _weight(member: str, tenant: str) -> bytes:
    return hashlib.blake2b(f"{member}\0{tenant}".encode(), digest_size=8).digest()


class Signal:
    """Wakes all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after the timeout."""
        event = self._event
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
