"""A service on Ray Serve, its client and processes, and a steady load on it."""

import asyncio
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from loadmaster.platform.ray.head import free_ports
from loadmaster.serving.client import AsyncClient, Client, Decision, ServiceError
from tests.serving import toy
from tests.serving.starvation import LATER_S, SAMPLE_S, Starvation, Steal

PATIENCE_S = 90.0
DEADLINE_MS = 500.0  # of the toy system
FLAPS = 40  # of the toy system
WINDOW = 20  # rewards that the lifecycle of AWARE compares
GRACE_MS = 100.0  # beyond the deadline
STARVED_MS = DEADLINE_MS / 2  # explains a timeout: a decision takes some milliseconds
LATEST, NEARLY_ALL, MOST = 40, 0.9, 0.5
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
        (found,) = processes(title)
        return found

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
    """A port that nothing listens on, at any address: Ray listens on that of the node."""
    return free_ports(1)[0]


class Sample(NamedTuple):
    """A request and its response."""

    began_s: float
    took_ms: float
    state: dict[str, Any]
    answer: Decision | None
    fault: str  # if there is no answer

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_ms / 1000


class Pressure:
    """`rate` requests a second from a thread, inside the context, and all their responses."""

    def __init__(self, live: Live, rate: float = 40.0, connections: int = 12) -> None:
        self._live, self._every_s, self._connections = live, 1 / rate, connections
        self._samples: list[Sample] = []
        self._own, self._gateway = Starvation(os.getpid()), Starvation(live.process(GATEWAY).pid)
        self._worker, self._steal = Starvation(live.process(TOY).pid), Steal()
        self._known: dict[float, bool] = {}  # by the beginning of a request
        self._sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        began = time.monotonic()
        watched = (self._own, self._gateway, self._worker, self._steal)
        watches = [asyncio.create_task(each.watch()) for each in watched]
        await asyncio.gather(*(self._send(began) for _ in range(self._connections)))
        for watch, each in zip(watches, watched, strict=True):
            watch.cancel()
            each.sample(time.monotonic())

    async def _send(self, began: float) -> None:
        """Send the next request when it is due; at once if it is late."""
        async with AsyncClient(self._live.url, deadline_s=10.0, retries=0) as client:
            while not self._over.is_set():
                number, self._sent = self._sent, self._sent + 1
                await asyncio.sleep(max(0.0, began + number * self._every_s - time.monotonic()))
                state: dict[str, Any] = {"load": number * 7 % 500, "replicas": number % 60}
                state["service"] = f"s{number}"  # never the same: the guard holds none
                sent, answer, fault = time.monotonic(), None, ""
                try:
                    answer = await client.decide("toy", state)
                except ServiceError as refusal:
                    fault = str(refusal)
                took_ms = 1000 * (time.monotonic() - sent)
                self._samples.append(Sample(sent, took_ms, state, answer, fault))

    # Results.

    def samples(self, since_s: float = 0.0) -> list[Sample]:
        return [sample for sample in list(self._samples) if sample.began_s >= since_s]

    def causes(self, since_s: float = 0.0) -> Counter[str | None]:
        """Number of responses by cause; None: decided by the policy."""
        return Counter(s.answer.cause for s in self.samples(since_s) if s.answer is not None)

    def counted(self, since_s: float = 0.0) -> Counter[str | None]:
        """As `causes`, without the responses that the machine's other load explains."""
        return Counter(self._counted(since_s))

    def _counted(self, since_s: float) -> list[str | None]:
        """Causes in order; not those of timeouts while a process was starved.

        Nor the breaker's after such a timeout: it opens after some, and stays open after one more.
        """
        found: list[str | None] = []
        excused = False  # the latest timeout
        answered = (one for one in self.samples(since_s) if one.answer is not None)
        for one in sorted(answered, key=lambda one: one.ended_s):
            cause = one.answer.cause if one.answer is not None else None
            if cause == "timeout":
                excused = self._explained(one)
            if not (excused and cause in ("timeout", "breaker open")):
                found.append(cause)
        return found

    def until_chiefly(self, cause: str | None) -> None:
        """Wait until nearly all of the latest responses that count have that cause."""
        since = time.monotonic()
        while True:
            latest = self._counted(since)[-LATEST:]
            if len(latest) == LATEST and latest.count(cause) >= NEARLY_ALL * LATEST:
                return _check_others(cause, self.causes(since))
            assert time.monotonic() - since < PATIENCE_S, self.causes(since)
            time.sleep(0.05)

    def check_chiefly(self, cause: str | None) -> None:
        """Nearly all responses that count, which are most of them, have that cause."""
        every, found = self.causes(), self.counted()
        assert found.total() >= MOST * every.total() > 0, (found, every)
        assert found[cause] >= NEARLY_ALL * found.total(), (found, every)
        _check_others(cause, every)

    def check(self, extra: dict[str, int]) -> None:
        """Every request got a correct decision in time: that of the rule or of the stated version.

        `extra`: the replicas that the bundle of a version adds.
        """
        samples = self.samples()
        wrong = [one for one in samples if not _fits(one, extra) or self._is_late(one)]
        assert not wrong, f"{len(wrong)} of {len(samples)}: {wrong[:20]}"
        assert len(samples) >= 20

    def _is_late(self, one: Sample) -> bool:
        """Whether it took longer than the deadline, less the time of starvation."""
        limit_ms = DEADLINE_MS + GRACE_MS
        if one.took_ms <= limit_ms:
            return False
        watched = (self._own, self._gateway)
        starved_ms = sum(each.ms(one.began_s, one.ended_s) for each in watched)
        return one.took_ms - starved_ms > limit_ms

    def _explained(self, one: Sample) -> bool:
        """Whether gateway, worker or the whole machine were starved for much of the deadline."""
        if one.began_s in self._known:
            return self._known[one.began_s]
        watched = (self._gateway, self._worker, self._steal)
        found = sum(each.ms(one.began_s, one.ended_s) for each in watched) >= STARVED_MS
        if time.monotonic() > one.ended_s + LATER_S + 2 * SAMPLE_S:
            self._known[one.began_s] = found
        return found


def _check_others(cause: str | None, found: Counter[str | None]) -> None:
    """A busy machine may cause timeouts, and the breaker opens after them."""
    assert set(found) <= {cause, "timeout", "breaker open"}, found


def _fits(sample: Sample, extra: dict[str, int]) -> bool:
    answer = sample.answer
    if answer is None:
        return False
    replicas, wanted = answer.decision["replicas"], math.ceil(sample.state["load"] / 10)
    if answer.source == "fallback":
        return answer.policy.name == "hold" and replicas == sample.state["replicas"]
    more = extra.get(answer.policy.version)
    return more is not None and replicas == min(wanted + more, toy.MOST)
