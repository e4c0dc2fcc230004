"""Kills of the service's processes: one after another, each until Serve has replaced it."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.service_processes import expected_replicas, kill, running_replicas
from loadmaster.platform.ray.serve_session import wait_until_ready
from loadmaster.serving.settings import CONTROL, GATEWAY, ServeSettings

WORKER = "worker"
KINDS = GATEWAY, WORKER, CONTROL
SEED = 0
REPLACED_S = 120.0  # how long a replacement may take
POLL_S = 0.1


@dataclass(frozen=True)
class Killed:
    """A killed process."""

    time: float  # since the epoch
    kind: str
    deployment: str
    pid: int
    replaced_s: float | None  # seconds until another replica ran; None: none within REPLACED_S


def kill_in_turn(
    settings: ServeSettings,
    every_s: float,
    seconds: float,
    on_kill: Callable[[Killed], None],
    seed: int = SEED,
) -> list[Killed]:
    """Kill a process every `every_s` for `seconds`; return when the last has been replaced.

    While a replacement is starting no other process is killed: the next kill is at the next
    multiple of `every_s`. Ends early if a process was not replaced.
    """
    expected, rng = expected_replicas(settings), random.Random(seed)
    kinds, began, found = drawn_kinds(rng), time.monotonic(), list[Killed]()
    due_s = every_s
    while due_s < seconds:
        time.sleep(max(0.0, began + due_s - time.monotonic()))
        kind = next(kinds)
        deployment = rng.choice(sorted(settings.systems)) if kind == WORKER else kind
        found.append(kill_one(kind, deployment, expected, rng))
        on_kill(found[-1])
        if found[-1].replaced_s is None:
            break
        while due_s < time.monotonic() - began:
            due_s += every_s
    return found


def drawn_kinds(rng: random.Random) -> Iterator[str]:
    """Kinds in a random order; each once in every three."""
    while True:
        yield from rng.sample(KINDS, len(KINDS))


def kill_one(kind: str, deployment: str, expected: Mapping[str, int], rng: random.Random) -> Killed:
    """Kill a replica of a deployment, and wait until as many as expected run without it."""
    pid = rng.choice(sorted(running_replicas()[deployment]))
    moment, began = time.time(), time.monotonic()
    kill(pid, deployment)
    while (waited_s := time.monotonic() - began) < REPLACED_S:
        running = running_replicas()
        now = running.get(deployment, set())
        if pid not in now and len(now) >= expected[deployment]:
            return Killed(moment, kind, deployment, pid, waited_s)
        time.sleep(POLL_S)
    return Killed(moment, kind, deployment, pid, None)


def kill_all(server: BenchServer, timeout_s: float = REPLACED_S) -> float:
    """Kill every process of the service at once; seconds until all are replaced and respond."""
    before, began = running_replicas(), time.monotonic()
    for deployment, pids in before.items():
        for pid in pids:
            kill(pid, deployment)
    expected, old = expected_replicas(server.settings), set().union(*before.values())
    while time.monotonic() - began < timeout_s:
        found = {name: len(pids - old) for name, pids in running_replicas().items()}
        if found == expected:
            wait_until_ready(server.settings, threading.Event())
            return time.monotonic() - began
        time.sleep(POLL_S)
    raise RuntimeError(f"the service has {running_replicas()} after {timeout_s:g} s")
