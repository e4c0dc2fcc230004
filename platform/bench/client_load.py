"""Load by the service's own client, in a process of its own: what callers see, after retries.

Requests start at fixed times whether or not earlier ones were answered, and latency counts from
that time. Deadline and retries are the client's defaults.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.serving.client import AsyncClient, ServiceError

POLICY = "policy"  # source of a decision


@dataclass(frozen=True)
class ClientLoad:
    url: str
    bodies: dict[str, tuple[Path, ...]]  # requests by system, absolute; used in turn
    tenants: int
    rate: float  # requests/s, of all systems and tenants
    seconds: float


class Request(NamedTuple):
    """A request and its result."""

    start_s: float  # intended, since the begin of the load
    latency_ms: float
    system: str
    source: str  # of the decision; empty: it failed
    cause: str = ""  # why the policy did not decide, or the error


class ClientReport(NamedTuple):
    began: float  # seconds since the epoch
    requests: list[Request]


@contextmanager
def running_load(load: ClientLoad) -> Iterator[Callable[[], ClientReport]]:
    """Run a load in a new process; the function waits for its end and returns the report."""
    program = [sys.executable, "-m", "loadmaster.platform.bench.client_load"]
    with subprocess.Popen(
        [*program, json.dumps(asdict(load), default=str)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
    ) as process:

        def report() -> ClientReport:
            output, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"the load generator failed: {errors.strip()[-500:]}")
            began, rows = json.loads(output)
            return ClientReport(began, [Request(*row) for row in rows])

        try:
            yield report
        finally:
            process.kill()


async def drive(load: ClientLoad) -> ClientReport:
    """Run a load in this event loop."""
    states = {
        system: cycle([_state(Path(file)) for file in files])
        for system, files in load.bodies.items()
    }
    clients = [AsyncClient(load.url, tenant=f"t{number}") for number in range(load.tenants)]
    # Systems and tenants change with every request; each tenant meets every system.
    turns = cycle([(system, client) for client in clients for system in states])
    done: list[Request] = []
    began, start = time.time(), time.monotonic()

    async def decide(client: AsyncClient, system: str, due_s: float) -> None:
        source = ""
        try:
            decision = await client.decide(system, next(states[system]))
            source, cause = decision.source, decision.cause or ""
        except ServiceError as fault:
            cause = f"{type(fault).__name__}: {fault}"
        latency_ms = 1000 * (time.monotonic() - start - due_s)
        done.append(Request(due_s, latency_ms, system, source, cause))

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(load.rate * load.seconds)):
            due_s = number / load.rate
            await asyncio.sleep(max(0.0, start + due_s - time.monotonic()))
            system, client = next(turns)
            tasks.create_task(decide(client, system, due_s))
    for client in clients:
        await client.close()
    return ClientReport(began, sorted(done))


def _state(file: Path) -> bytes:
    """The state of a request in a file, as JSON."""
    body: dict[str, Any] = json.loads(file.read_bytes())
    return json.dumps(body["state"]).encode()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(drive(ClientLoad(**json.loads(sys.argv[1]))))))
