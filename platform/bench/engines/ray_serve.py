"""Autoscaling of Ray Serve: replica-seconds and p99 by Serve's default policy and by the service.

In a real Serve: one peak, all policies at the same time, each in an application of its own, with
the same requests at the same times, so they are paired by repeat. Time runs twice as fast there: a
control step is 30 s instead of 60, and Serve's delays are half of their defaults, so the peak of a
quarter of an hour stands for half an hour. And in a model of Serve: the same peaks, to see how true
it is, and peaks of three hours. Replicas sleep; work is exponential with a mean of 0.2 s.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from loadmaster.models.manifest import pretrained_folder
from loadmaster.platform.bench.bench_server import bench_server
from loadmaster.platform.bench.engines.ray_serve_cluster import (
    SLEEPER,
    serve_cluster,
    set_cluster_env,
    sleeper,
)
from loadmaster.platform.bench.engines.ray_serve_model import (
    Arrival,
    Config,
    ServeModel,
    by_policy,
    by_serve,
)
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation.statistics import paired_difference
from loadmaster.platform.steering.ray_serve.policy import autoscaling_policy
from loadmaster.platform.steering.ray_serve.settings import TRAINED_STEP_S
from loadmaster.serving.client import Client
from loadmaster.serving.systems.aware.system import ENDPOINT

DEFAULT, TUNED, AWARE, HPA = "serve-default", "serve-tuned", "aware", "hpa"
WORK_S, SLO_S = 0.2, 2.8  # the SLO is three times the p99 of a request alone
LONGEST = 6.0  # of the work, in means
TUNED_TARGET, TUNED_DOWN_S = 1.0, 60.0  # by hand: half the target, down after a minute
START_S = 10.0  # of a replica, in the model
SAMPLE_S = 2.0  # `serve.status` takes 50 ms of a processor
CLIENT_S = 60.0  # longest wait for an answer

UP_S, DOWN_S, LOOK_BACK_S, METRICS_S = 30.0, 600.0, 30.0, 10.0  # Serve's defaults
QUEUED_S = 15.0  # default of the policy class


@dataclass(frozen=True)
class Load:
    """One peak; the rate has noise that lasts for minutes."""

    length_s: float
    low: float  # requests a second
    peaks: tuple[float, float]  # the highest rate is drawn from this range
    bounds: tuple[int, int]  # of the number of replicas
    speed: float = 1.0  # of time: control steps and Serve's delays are shorter by this factor
    warm_up_s: float = 180.0  # before the peak, at the low rate; not counted
    noise: float = 0.06

    def deployment(self) -> dict[str, Any]:
        """Settings of the policy class."""
        return {
            "slo_s": SLO_S,
            "slots": 1.0,
            "request_s": WORK_S,
            "step_s": TRAINED_STEP_S / self.speed,
            "queued_s": QUEUED_S / self.speed,
            "rule_upscale_delay_s": UP_S / self.speed,
            "rule_downscale_delay_s": DOWN_S / self.speed,
        }

    def arrivals(self, seed: int) -> list[Arrival]:
        """Times and work of requests, by thinning."""
        rng = np.random.default_rng(seed)
        peak = rng.uniform(*self.peaks)
        end_s = self.warm_up_s + self.length_s
        noise, level = [], 0.0
        for _ in range(int(end_s / 60) + 1):
            level = 0.9 * level + self.noise * rng.standard_normal()
            noise.append(math.exp(level))

        def rate(at_s: float) -> float:
            wave = math.sin(math.pi * max(at_s - self.warm_up_s, 0.0) / self.length_s) ** 2
            return (self.low + (peak - self.low) * wave) * noise[int(at_s / 60)]

        found, at_s, most = [], 0.0, peak * max(noise)
        while (at_s := at_s + rng.exponential(1.0 / most)) < end_s:
            if rng.random() * most < rate(at_s):
                found.append((at_s, float(min(rng.exponential(WORK_S), LONGEST * WORK_S))))
        return found


REAL = Load(900.0, 2.0, (10.0, 14.0), (1, 8), speed=2.0)
HOURS = Load(3 * 3600.0, 3.0, (20.0, 20.0), (1, 20))


@dataclass(frozen=True)
class Arm:
    """A policy, and what it did in a run."""

    name: str
    latencies_s: Sequence[float]
    replica_s: float
    failed: int = 0

    def row(self, repeat: int) -> dict[str, Any]:
        found = np.array(self.latencies_s)
        return {
            "repeat": repeat,
            "policy": self.name,
            "requests": len(found),
            "failed": self.failed,
            "replica_s": self.replica_s,
            "p50_s": float(np.percentile(found, 50)),
            "p99_s": float(np.percentile(found, 99)),
            "late": float(np.mean(found > SLO_S)),
        }


def measure(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Figure]:
    """Run all policies `repeats` times; write runs and paired differences as CSV files."""
    set_cluster_env()  # the model imports Ray
    predicted = []
    for name, load in (("model", REAL), ("model_hours", HOURS)):
        rows = []
        for repeat in range(repeats):
            report_step(f"ray-serve: {name}, run {repeat + 1} of {repeats}")
            rows += [arm.row(repeat) for arm in in_model(load, repeat)]
        write_tables(folder, {f"{name}.csv": rows})
        predicted.append((name, rows))
    for name, rows in predicted:
        yield from _figures(f"ray-serve-{name}", rows, folder / f"{name}_differences.csv")
    yield from measure_real(report_step, repeats, folder)


def in_model(load: Load, seed: int) -> Iterator[Arm]:
    """Run every policy in a model of Serve."""
    log, before = logging.getLogger("ray.serve"), logging.getLogger("ray.serve").level
    log.setLevel(logging.ERROR)
    due = load.arrivals(seed)
    try:
        for name, model in models(load, seed).items():
            replica_s, latencies_s = model.run(due, load.warm_up_s)
            yield Arm(name, latencies_s, replica_s)
    finally:
        log.setLevel(before)


def models(load: Load, seed: int) -> Mapping[str, ServeModel]:
    """A deployment for each policy."""
    rest = load.bounds, START_S / load.speed, seed
    look_back_s, up_s, down_s = (one / load.speed for one in (LOOK_BACK_S, UP_S, DOWN_S))
    default = Config(upscale_delay_s=up_s, downscale_delay_s=down_s, look_back_period_s=look_back_s)
    tuned = replace(
        default,
        target_ongoing_requests=TUNED_TARGET,
        downscale_delay_s=TUNED_DOWN_S / load.speed,
    )
    at_once = replace(default, upscale_delay_s=0.0, downscale_delay_s=0.0)
    policies = {AWARE: ENDPOINT.policy(pretrained_folder() / AWARE), HPA: ENDPOINT.rule(HPA)}
    return {
        DEFAULT: by_serve(default, *rest),
        TUNED: by_serve(tuned, *rest),
        **{
            name: by_policy(one, load.deployment(), at_once, *rest)
            for name, one in policies.items()
        },
    }


def measure_real(
    report_step: Callable[[str], None], repeats: int, folder: Path
) -> Iterator[Figure]:
    """Runs of a real Serve: runs.csv and differences.csv."""
    rows: list[dict[str, Any]] = []
    with (
        serve_cluster(dashboard=False),
        bench_server({"aware": {"rule": HPA}}, report_step) as server,
    ):
        client = Client(server.url, deadline_s=30.0)
        for repeat in range(repeats):
            client.pause("aware", tenant=tenant(HPA, repeat))  # the service's rule decides
            minutes = (REAL.warm_up_s + REAL.length_s) / 60
            report_step(f"ray-serve: run {repeat + 1} of {repeats}, {minutes:g} minutes")
            rows += [arm.row(repeat) for arm in _run(server.url, repeat)]
            write_tables(folder, {"runs.csv": rows})
    yield from _figures("ray-serve", rows, folder / "differences.csv")


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


def _run(url: str, repeat: int) -> list[Arm]:
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
        Arm(name, latencies_s, counter.seconds[name], failed)
        for name, (latencies_s, failed) in found.items()
    ]


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
    """Adds up the time of replicas that start or run over the peak, for each application."""

    def __init__(self, began: float) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[str] = Counter()
        self._began = began
        self._stopped = threading.Event()

    def run(self) -> None:
        from ray import serve

        last = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            applications = serve.status().applications
            now = time.monotonic()
            begin, end = max(last, self._began), min(now, self._began + REAL.length_s)
            last = now
            for name, application in applications.items():
                if (found := application.deployments.get(SLEEPER)) is not None:
                    states = found.replica_states.items()
                    count = sum(number for state, number in states if state != "STOPPING")
                    self.seconds[name] += count * max(end - begin, 0.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._stopped.set()
        self.join()


def _figures(prefix: str, rows: Sequence[Mapping[str, Any]], file: Path) -> Iterator[Figure]:
    """Means beside those of Serve's default; paired intervals go to the file."""

    def values(policy: str, column: str) -> Any:
        return np.array([row[column] for row in rows if row["policy"] == policy], np.float64)

    table = []
    for column, unit in (("replica_s", "replica-s"), ("p99_s", "s"), ("late", "share")):
        for reference in (DEFAULT, TUNED):
            peer = values(reference, column)
            for policy in (TUNED, AWARE, HPA):
                if policy != reference:
                    found = paired_difference(values(policy, column), peer)
                    low, high = found.percent_interval.low, found.percent_interval.high
                    table.append(
                        {
                            "figure": column, "policy": policy, "reference": reference,
                            "mean": values(policy, column).mean(), "of_reference": peer.mean(),
                            "difference": found.mean, "low": found.interval.low,
                            "high": found.interval.high, "percent": found.percent,
                            "percent_low": low, "percent_high": high,
                        }
                    )  # fmt: skip
        default = float(values(DEFAULT, column).mean())
        for policy in (DEFAULT, TUNED, AWARE, HPA):
            mean = float(values(policy, column).mean())
            peer_mean = None if policy == DEFAULT else default
            yield Figure(f"{prefix}/{policy}/{column}", mean, unit, peer_mean, DEFAULT, False)
    write_tables(file.parent, {file.name: table})
