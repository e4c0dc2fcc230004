"""Autoscaling of Ray Serve: replica-seconds and p99 by Serve's default policy and by the service.

All policies run at the same time, each with a deployment of its own, whose replicas sleep, and get
the same requests at the same times, so a run is a pair of each two. Time is compressed: a control
step is 10 s instead of 60, and Serve's delays and look-back are a sixth of their defaults as well.
Work is exponential with a mean of 0.2 s; the load is one peak of two and a half minutes, which
stands for 15.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.platform.bench.bench_server import bench_server
from loadmaster.platform.bench.engines.ray_serve_cluster import SLEEPER, serve_cluster, sleeper
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation.statistics import paired_difference
from loadmaster.platform.steering.ray_serve.policy import autoscaling_policy
from loadmaster.platform.steering.ray_serve.settings import TRAINED_STEP_S
from loadmaster.serving.client import Client

STEP_S = 10.0
FACTOR = TRAINED_STEP_S / STEP_S
WORK_S, SLO_S = 0.2, 2.8  # the SLO is three times the p99 of a request alone
PARTS = 5.0  # of a request: 0.2 s are 1.2 s of a state, beyond what the policy knows
LONGEST = 6.0  # of the work, in means
WARM_UP_S, RUN_S = 40.0, 150.0
LOW, PEAKS = 2.0, (10.0, 14.0)  # requests a second
MOST_REPLICAS = 8
DEFAULT, TUNED, AWARE, HPA = "serve-default", "serve-tuned", "aware", "hpa"
SAMPLE_S = 0.5
CLIENT_S = 60.0  # longest wait for an answer

# Serve's defaults, in the compressed time.
_SERVE = {
    "upscale_delay_s": 30.0 / FACTOR,
    "downscale_delay_s": 600.0 / FACTOR,
    "look_back_period_s": 30.0 / FACTOR,
    "metrics_interval_s": 1.0,
}
_BY_SERVICE = {**_SERVE, "upscale_delay_s": 0.0, "downscale_delay_s": 0.0}


@dataclass(frozen=True)
class Arm:
    """A policy, and what it did in a run."""

    name: str
    latencies_s: list[float]
    replica_s: float = 0.0
    failed: int = 0


def arms(url: str, repeat: int) -> Mapping[str, dict[str, Any]]:
    """`autoscaling_config` of each policy; tenants of the service are new in each repeat."""
    bounds = {"min_replicas": 1, "max_replicas": MOST_REPLICAS, "initial_replicas": 2}

    def by_service(name: str) -> dict[str, Any]:
        policy = autoscaling_policy(
            mode="act", url=url, tenant=tenant(name, repeat), slo_s=SLO_S, step_s=STEP_S,
            slots=1.0, request_s=WORK_S, parts=PARTS, deadline_s=1.0, queued_s=5.0,
            rule_upscale_delay_s=_SERVE["upscale_delay_s"],
            rule_downscale_delay_s=_SERVE["downscale_delay_s"],
        )  # fmt: skip
        return {**bounds, **_BY_SERVICE, "policy": policy}

    return {
        DEFAULT: {**bounds, **_SERVE},
        # By hand: half the target, and down as soon as a control step of the others.
        TUNED: {**bounds, **_SERVE, "target_ongoing_requests": 1.0, "downscale_delay_s": STEP_S},
        AWARE: by_service(AWARE),
        HPA: by_service(HPA),
    }


def tenant(name: str, repeat: int) -> str:
    return f"{name}-{repeat}"


def rate(at_s: float, peak: float) -> float:
    """Requests a second; `at_s` is below 0 in the warm-up."""
    if at_s < 0:
        return LOW
    return LOW + (peak - LOW) * math.sin(math.pi * at_s / RUN_S) ** 2


def arrivals(seed: int) -> list[tuple[float, float]]:
    """Times and work of the requests of a run, by thinning."""
    rng = np.random.default_rng(seed)
    peak, at_s = rng.uniform(*PEAKS), -WARM_UP_S
    found = []
    while (at_s := at_s + rng.exponential(1.0 / peak)) < RUN_S:
        if rng.random() * peak < rate(at_s, peak):
            found.append((at_s, float(min(rng.exponential(WORK_S), LONGEST * WORK_S))))
    return found


def measure(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Figure]:
    """Run all policies side by side `repeats` times; write runs.csv and differences.csv."""
    rows: list[dict[str, Any]] = []
    with serve_cluster(), bench_server({"aware": {"rule": HPA}}, report_step) as server:
        client = Client(server.url, deadline_s=10.0)
        for repeat in range(repeats):
            report_step(f"ray-serve: run {repeat + 1} of {repeats}")
            client.pause("aware", tenant=tenant(HPA, repeat))  # the service's rule decides
            rows += _run(server.url, repeat)
            write_tables(folder, {"runs.csv": rows})
    yield from _figures(rows, folder)


def _run(url: str, repeat: int) -> list[dict[str, Any]]:
    from ray import serve

    handles = {}
    for name, config in arms(url, repeat).items():
        application = sleeper({"autoscaling_config": config})
        handles[name] = serve.run(application, name=name, route_prefix=None)
    try:
        done = asyncio.run(_load(handles, arrivals(repeat)))
    finally:
        for name in handles:
            serve.delete(name)
    return [
        {
            "repeat": repeat,
            "policy": arm.name,
            "requests": len(arm.latencies_s),
            "failed": arm.failed,
            "replica_s": arm.replica_s,
            "p50_s": float(np.percentile(arm.latencies_s, 50)),
            "p99_s": float(np.percentile(arm.latencies_s, 99)),
            "late": float(np.mean(np.array(arm.latencies_s) > SLO_S)),
        }
        for arm in done
    ]


async def _load(handles: Mapping[str, Any], due: Sequence[tuple[float, float]]) -> list[Arm]:
    """Send every request to every deployment when it is due, whatever has been answered."""
    latencies: dict[str, list[float]] = {name: [] for name in handles}
    failed = dict.fromkeys(handles, 0)
    began = time.monotonic() + WARM_UP_S
    counter = _ReplicaCounter(tuple(handles), began)

    async def send(name: str, at_s: float, work_s: float) -> None:
        try:
            await asyncio.wait_for(handles[name].remote(work_s), CLIENT_S)
        except Exception:  # counted: a request that got no answer
            failed[name] += 1
        if at_s >= 0:
            latencies[name].append(time.monotonic() - began - at_s)

    with counter:
        sent = []
        for at_s, work_s in due:
            await asyncio.sleep(max(began + at_s - time.monotonic(), 0.0))
            sent += [asyncio.ensure_future(send(name, at_s, work_s)) for name in handles]
        await asyncio.gather(*sent)
    return [Arm(name, latencies[name], counter.seconds[name], failed[name]) for name in handles]


class _ReplicaCounter(threading.Thread):
    """Adds up the time of replicas that start or run, from the end of the warm-up to RUN_S."""

    def __init__(self, names: Sequence[str], began: float) -> None:
        super().__init__(daemon=True)
        self.seconds = dict.fromkeys(names, 0.0)
        self._began, self._stopped = began, threading.Event()

    def run(self) -> None:
        from ray import serve

        last = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            known = serve.status().applications
            now = time.monotonic()
            begin, end = max(last, self._began), min(now, self._began + RUN_S)
            last = now
            for name in self.seconds:
                states = known[name].deployments[SLEEPER].replica_states
                count = sum(number for state, number in states.items() if state != "STOPPING")
                self.seconds[name] += count * max(end - begin, 0.0)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *fault: object) -> None:
        self._stopped.set()
        self.join()


def _figures(rows: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Figure]:
    """Means with those of Serve's default, and paired intervals in differences.csv."""

    def values(policy: str, column: str) -> Any:
        return np.array([row[column] for row in rows if row["policy"] == policy], np.float64)

    table = []
    names = dict.fromkeys(row["policy"] for row in rows)
    for column, unit in (("replica_s", "replica-s"), ("p99_s", "s"), ("late", "share")):
        for reference in (DEFAULT, TUNED):
            peer = values(reference, column)
            for policy in (AWARE, HPA, TUNED):
                if policy == reference or policy not in names:
                    continue
                found = paired_difference(values(policy, column), peer)
                table.append(
                    {
                        "figure": column, "policy": policy, "reference": reference,
                        "mean": values(policy, column).mean(), "reference_mean": peer.mean(),
                        "difference": found.mean, "low": found.interval.low,
                        "high": found.interval.high, "percent": found.percent,
                        "percent_low": found.percent_interval.low,
                        "percent_high": found.percent_interval.high,
                    }
                )  # fmt: skip
        default = float(values(DEFAULT, column).mean())
        for policy in names:
            mean = float(values(policy, column).mean())
            peer_of = None if policy == DEFAULT else default
            yield Figure(f"ray-serve/{policy}/{column}", mean, unit, peer_of, DEFAULT, False)
    write_tables(folder, {"differences.csv": table})
