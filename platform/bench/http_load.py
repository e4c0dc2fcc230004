"""HTTP load generator, in a process of its own: it shares no interpreter with what it measures.

Without a rate every connection sends its next request when the last was answered (closed loop).
With a rate requests start at fixed times whether or not earlier ones were answered (open loop), and
latency counts from that time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import selectors
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadmaster.serving.client import http1

REOPEN_S = 0.05
WATCH_S = 0.1  # interval of the check for timeouts


@dataclass(frozen=True)
class Load:
    url: str  # with the path
    bodies: tuple[Path, ...] = ()  # absolute; posted in turn; without any, GET
    concurrency: int = 1  # connections; select() takes about 1,000 files
    seconds: float = 5.0
    rate: float | None = None  # requests/s
    warmup_s: float = 0.0  # before `seconds`; not counted
    timeout_s: float = 10.0  # of one request
    own_bodies: bool = False  # connection k always posts body k, from the first again if fewer
    in_flight: int | None = None  # requests at a time in a closed loop; None: one per connection
    marker: str = ""  # responses that contain this text are counted


def measure(load: Load) -> dict[str, Any]:
    """Run a load in a new process, which takes the token from the environment; return `report`."""
    program = [sys.executable, "-m", "loadmaster.platform.bench.http_load"]
    done = subprocess.run(
        [*program, json.dumps(asdict(load), default=str)],
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def drive(load: Load) -> Driver:
    """Run a load in this process."""
    parts = urlsplit(load.url)
    server = http1.parse_address(f"{parts.scheme}://{parts.netloc}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    posted = [http1.Request("POST", target, Path(file).read_bytes()) for file in load.bodies]
    requests = [server.encode(each) for each in posted or [http1.Request("GET", target)]]

    async def run() -> Driver:
        driver = Driver(load, server, requests)
        await driver.run()
        return driver

    # epoll wakes up to a millisecond late, which would count as latency of the endpoint.
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())


def report(load: Load, driver: Driver) -> dict[str, Any]:
    """Summarise a load. Latencies are those of successful responses; `requests` counts all."""
    latencies = sorted(driver.latencies_s)
    optional: dict[str, Any] = {}
    if load.marker:
        optional["marked"] = driver.marked
    if load.own_bodies:
        optional["connections"] = driver.by_connection
    return {
        "url": load.url,
        "concurrency": load.concurrency,
        "seconds": load.seconds,
        "rate": load.rate,
        "requests": len(latencies) + driver.failed.total(),
        "sent": driver.sent,
        "failed": dict(sorted(driver.failed.items())),
        "requests_per_s": len(latencies) / driver.elapsed_s(),
        "cpu_s": driver.cpu_s,
        "mean_ms": 1000 * sum(latencies) / len(latencies) if latencies else None,
        "p50_ms": percentile_ms(latencies, 50),
        "p90_ms": percentile_ms(latencies, 90),
        "p99_ms": percentile_ms(latencies, 99),
        "max_ms": percentile_ms(latencies, 100),
        "by_second": by_second(driver),
        **optional,
    }


def percentile_ms(ordered_s: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile in ms; None without latencies."""
    if not ordered_s:
        return None
    return 1000 * ordered_s[max(0, math.ceil(percent / 100 * len(ordered_s)) - 1)]


def by_second(driver: Driver) -> list[dict[str, Any]]:
    """Successful responses, failures and latencies in every second."""
    latencies: dict[int, list[float]] = {}
    for finished, latency in zip(driver.finished_s, driver.latencies_s, strict=True):
        latencies.setdefault(int(finished), []).append(latency)
    failures = Counter(int(failed) for failed in driver.failed_s)
    rows = []
    for second in range(max([*latencies, *failures], default=-1) + 1):
        ordered = sorted(latencies.get(second, []))
        row: dict[str, Any] = {"answers": len(ordered), "failed": failures[second]}
        rows.append(row | {f"p{each}_ms": percentile_ms(ordered, each) for each in (50, 99)})
    return rows


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection with one request at a time."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver, self.number = driver, number
        self._parser = http1.ResponseParser()
        self.transport: asyncio.Transport | None = None
        self.intended: float | None = None  # intended start of its request; None: idle
        self.sent_at = 0.0

    def send(self, data: bytes, intended: float, now: float) -> None:
        assert self.transport is not None
        self._parser = http1.ResponseParser()
        self.intended, self.sent_at = intended, now
        self.transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._parser.feed(data)
        except http1.MalformedError:
            self.fail("malformed")
            return
        if answer is None or self.intended is None:
            return
        outcome = "" if 200 <= answer.status < 300 else str(answer.status)
        self._driver.finished(self, outcome, stays=answer.keep, body=answer.body)

    def connection_lost(self, fault: Exception | None) -> None:
        self.transport = None
        self._driver.lost(self)

    def fail(self, outcome: str) -> None:
        self._driver.finished(self, outcome, stays=False)


class Driver:
    """Starts requests on connections, and records their results."""

    def __init__(self, load: Load, server: http1.Address, requests: Sequence[bytes]) -> None:
        self._load, self._server = load, server
        self._loop = asyncio.get_running_loop()
        self._encoded, self._requests = requests, cycle(requests)
        self._marker = load.marker.encode()
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()  # used in turn
        self._due: deque[float] = deque()  # intended starts that wait for a connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._start = self._began = self._ends = self._gives_up = math.inf
        self._planned = 0
        self.latencies_s, self.finished_s = array("d"), array("d")  # (answers,)
        self.failed: Counter[str] = Counter()
        self.failed_s: list[float] = []
        self.marked = 0
        self.sent = 0  # also while warming up
        self.by_connection: list[dict[str, Any]] = [{} for _ in range(load.concurrency)]
        self.cpu_s = 0.0  # of this process; close to `seconds`, the generator was the bottleneck

    async def run(self) -> None:
        cpu_before = time.process_time()
        numbers = range(self._load.concurrency)
        self._idle.extend(await asyncio.gather(*(self._open(number) for number in numbers)))
        now = self._loop.time()
        self._start, self._began = now, now + self._load.warmup_s
        self._ends = self._began + self._load.seconds  # no request starts after this
        self._gives_up = self._ends + self._load.timeout_s  # no request is sent after this
        if self._load.rate is None:
            self._due.extend([now] * (self._load.in_flight or self._load.concurrency))
            self._dispatch()
        else:
            self._pace()
        while (now := self._loop.time()) < self._ends:
            self._watch(now)
            await asyncio.sleep(min(WATCH_S, self._ends - now))
        if self._load.rate is not None:
            self._pace()  # requests due since the last call
        while self._due and (now := self._loop.time()) < self._gives_up:
            self._watch(now)
            await asyncio.sleep(WATCH_S / 10)
        for intended in self._due:
            self._count(intended, "unsent", now)
        self._due.clear()
        while any(connection.intended is not None for connection in self._connections):
            self._watch(self._loop.time())
            await asyncio.sleep(WATCH_S / 10)
        self.cpu_s = time.process_time() - cpu_before
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.abort()

    def elapsed_s(self) -> float:
        """Measured time; until the last response if that came later."""
        return max(self._load.seconds, max(self.finished_s, default=0.0))

    def finished(
        self, connection: Connection, outcome: str, stays: bool, body: bytes = b""
    ) -> None:
        now, intended = self._loop.time(), connection.intended
        connection.intended = None
        if intended is not None:
            self._count(intended, outcome, now, connection.number, body)
        if stays:
            self._free(connection, now)
        elif connection.transport is not None:
            connection.transport.abort()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.intended is not None:
            self.finished(connection, "connection", stays=False)
        if self._loop.time() < self._ends or self._due:
            task = self._loop.create_task(self._reopen(connection.number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, number: int) -> Connection:
        server = self._server
        transport, connection = await self._loop.create_connection(
            lambda: Connection(self, number), server.host, server.port, ssl=server.tls
        )
        self._connections.add(connection)
        port = transport.get_extra_info("sockname")[1]
        self.by_connection[number] = {"port": port, "latencies_ms": []}
        return connection

    async def _reopen(self, number: int) -> None:
        while self._loop.time() < self._gives_up:
            try:
                self._free(await self._open(number), self._loop.time())
            except OSError:
                await asyncio.sleep(REOPEN_S)
            else:
                return

    def _free(self, connection: Connection, now: float) -> None:
        self._idle.append(connection)
        if self._load.rate is None and now < self._ends:
            self._due.append(now)
        self._dispatch()

    def _dispatch(self) -> None:
        now = self._loop.time()
        while self._due and self._idle and now < self._gives_up:
            connection, data = self._idle.popleft(), next(self._requests)
            if self._load.own_bodies:
                data = self._encoded[connection.number % len(self._encoded)]
            connection.send(data, self._due.popleft(), now)
            self.sent += 1

    def _pace(self) -> None:
        """Start every request that is due; schedule the next call."""
        assert self._load.rate is not None
        now = self._loop.time()
        while (due := self._start + self._planned / self._load.rate) <= now and due < self._ends:
            self._due.append(due)
            self._planned += 1
        self._dispatch()
        if due < self._ends:
            self._loop.call_at(due, self._pace)

    def _watch(self, now: float) -> None:
        for connection in list(self._connections):
            late = now - connection.sent_at > self._load.timeout_s
            if connection.intended is not None and late:
                connection.fail("timeout")

    def _count(
        self, intended: float, outcome: str, now: float, number: int = 0, body: bytes = b""
    ) -> None:
        if intended < self._began:
            return  # warming up
        if outcome:
            self.failed[outcome] += 1
            self.failed_s.append(now - self._began)
        else:
            self.latencies_s.append(now - intended)
            self.finished_s.append(now - self._began)
            self.marked += bool(self._marker) and self._marker in body
            if self._load.own_bodies:
                self.by_connection[number]["latencies_ms"].append(1000 * (now - intended))


if __name__ == "__main__":
    gc.disable()  # its pauses would count as latency, and only numbers are kept here
    given = Load(**json.loads(sys.argv[1]))
    print(json.dumps(report(given, drive(given))))
