"""Runs of a real Serve under every policy, several at once where the machine has cores for it.

A run has a Ray, a service and a process of its own. All policies of a run have the same requests at
the same times, each in an application of its own.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, cast

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.bench_server import bench_server
from loadmaster.platform.bench.engines.ray_serve_cluster import SLEEPER, serve_cluster, sleeper
from loadmaster.platform.bench.engines.ray_serve_load import (
    AWARE,
    DEFAULT,
    DOWN_S,
    EXPORT_S,
    HPA,
    LOOK_BACK_S,
    METRICS_S,
    REAL,
    TUNED,
    TUNED_DOWN_S,
    TUNED_TARGET,
    UP_S,
    Arm,
    Arrival,
)
from loadmaster.platform.ray.cleanup import ray_output_in, terminable
from loadmaster.platform.steering.ray_serve.policy import autoscaling_policy
from loadmaster.platform.steering.ray_serve.settings import EXPORT_VARIABLE
from loadmaster.serving.client import Client

CORES = 3  # of a run: a replica that starts takes 5 s of a core, and four policies start dozens
SAMPLE_S = 2.0  # `serve.status` takes 50 ms of a processor
CLIENT_S = 60.0  # longest wait for an answer
DECISIONS = 100  # of a run; there are fewer

Run = tuple[int, list[Arm]]  # repeat, and what every policy did


def real_runs(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Run]:
    """Run all repeats; yields each as it ends."""
    at_once = min(max((os.cpu_count() or 1) // CORES, 1), repeats)
    minutes = (REAL.warm_up_s + REAL.counted_s) / 60
    report_step(f"ray-serve: {repeats} runs of {minutes:g} minutes, {at_once} at once")
    context = get_context("spawn")
    running: dict[Any, tuple[BaseProcess, Path]] = {}  # by the end that runs come from
    try:
        for first in range(at_once):
            reader, writer = context.Pipe(duplex=False)
            log = folder / f"runs-{first}.log"
            given = writer, range(first, repeats, at_once), log
            process = context.Process(target=_send_runs, args=given)
            process.start()
            writer.close()
            running[reader] = process, log
        while running:
            for ready in wait(list(running)):
                try:
                    yield cast(Connection, ready).recv()
                except EOFError:
                    ended, log = running.pop(ready)
                    ended.join()
                    if ended.exitcode:
                        raise InputError(f"a process of the benchmark failed; see {log}") from None
    finally:
        for left, _ in running.values():
            left.terminate()
        for left, _ in running.values():
            left.join()


def _send_runs(writer: Connection, repeats: Sequence[int], log: Path) -> None:
    """Run these repeats one after the other, and send each; faults go to the log."""
    os.setsid()  # Ctrl-C reaches the parent only, which sends SIGTERM: once, not in the clean-up
    with ray_output_in(log):
        try:
            for run in _runs(repeats):
                writer.send(run)
        except BaseException:
            traceback.print_exc()
            sys.exit(1)


def _runs(repeats: Sequence[int]) -> Iterator[Run]:
    os.environ[EXPORT_VARIABLE] = f"{1000 * EXPORT_S / REAL.speed:.0f}"
    with (
        terminable(),
        serve_cluster(dashboard=False),
        bench_server({"aware": {"rule": HPA}}, print) as server,
    ):
        client = Client(server.url, deadline_s=30.0)
        for repeat in repeats:
            client.pause("aware", tenant=tenant(HPA, repeat))  # the service's rule decides
            yield repeat, _run(client, server.url, repeat)


def arms(url: str, repeat: int) -> Mapping[str, dict[str, Any]]:
    """`autoscaling_config` of each policy; tenants of the service are new in each repeat."""
    least, most = REAL.bounds
    default = {
        "min_replicas": least,
        "max_replicas": most,
        "initial_replicas": least,
        "upscale_delay_s": UP_S / REAL.speed,
        "downscale_delay_s": DOWN_S / REAL.speed,
        "look_back_period_s": LOOK_BACK_S / REAL.speed,
        "metrics_interval_s": METRICS_S / REAL.speed,
    }

    def by_service(name: str) -> dict[str, Any]:
        policy = autoscaling_policy(
            mode="act", url=url, tenant=tenant(name, repeat), **REAL.deployment()
        )
        return {**default, "upscale_delay_s": 0.0, "downscale_delay_s": 0.0, "policy": policy}

    tuned = {
        "target_ongoing_requests": TUNED_TARGET,
        "downscale_delay_s": TUNED_DOWN_S / REAL.speed,
    }
    return {
        DEFAULT: default,
        TUNED: {**default, **tuned},
        AWARE: by_service(AWARE),
        HPA: by_service(HPA),
    }


def tenant(name: str, repeat: int) -> str:
    return f"{name}-{repeat}"


def _run(client: Client, url: str, repeat: int) -> list[Arm]:
    """Run all policies at the same time, each in an application of its own."""
    from ray import serve

    configs = arms(url, repeat)
    handles = {
        name: serve.run(sleeper({"autoscaling_config": config}), name=name, route_prefix=None)
        for name, config in configs.items()
    }
    due = REAL.arrivals(repeat)
    began = time.monotonic()

    async def loads() -> list[tuple[list[float], int]]:
        return await asyncio.gather(*(_load(handle, due, began) for handle in handles.values()))

    try:
        with _ReplicaCounter(began + REAL.warm_up_s) as counter:
            found = dict(zip(handles, asyncio.run(loads()), strict=True))
    finally:
        for name in handles:
            serve.delete(name)
    return [
        Arm(
            name,
            latencies_s,
            counter.seconds[name],
            failed,
            _by_policy(client, tenant(name, repeat)),
            counter.replicas[name],
        )
        for name, (latencies_s, failed) in found.items()
    ]


def _by_policy(client: Client, name: str) -> float:
    """Share of the service's decisions for a tenant that its policy took; NaN without any."""
    found = client.decisions("aware", limit=DECISIONS, tenant=name)
    return sum(one.source == "policy" for one in found) / len(found) if found else math.nan


async def _load(handle: Any, due: Sequence[Arrival], began: float) -> tuple[list[float], int]:
    """Send every request when it is due, whatever has been answered: latencies, and the failed."""
    latencies: list[float] = []
    failed = 0

    async def send(at_s: float, work_s: float) -> None:
        nonlocal failed
        try:
            await asyncio.wait_for(handle.remote(work_s), CLIENT_S)
        except Exception:  # counted: a request that got no answer
            failed += 1
        if at_s >= REAL.warm_up_s:
            latencies.append(time.monotonic() - began - at_s)

    sent = []
    for at_s, work_s in due:
        await asyncio.sleep(max(began + at_s - time.monotonic(), 0.0))
        sent.append(asyncio.ensure_future(send(at_s, work_s)))
    await asyncio.gather(*sent)
    return latencies, failed


class _ReplicaCounter(threading.Thread):
    """Adds up the time of replicas that start or run while it counts, for each application."""

    def __init__(self, began: float) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[str] = Counter()
        self.replicas: dict[str, list[tuple[float, int]]] = defaultdict(list)  # since when
        self._began = began
        self._stopped = threading.Event()

    def run(self) -> None:
        from ray import serve

        last = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            applications = serve.status().applications
            now = time.monotonic()
            begin, end = max(last, self._began), min(now, self._began + REAL.counted_s)
            last = now
            for name, application in applications.items():
                if (found := application.deployments.get(SLEEPER)) is not None:
                    states = found.replica_states.items()
                    count = sum(number for state, number in states if state != "STOPPING")
                    self.seconds[name] += count * max(end - begin, 0.0)
                    seen = self.replicas[name]
                    if not seen or seen[-1][1] != count:
                        seen.append((now - self._began, count))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._stopped.set()
        self.join()
