"""Autoscaling of Ray Serve: replica-seconds and p99 by Serve's default policy and by the service.

Twice: in a real Serve, and in a model of it over hours. In a repeat of the real one two policies
run at the same time, then the other two, in an order that changes, all with the same requests at
the same times, so they are paired by repeat. Replicas sleep. Time is compressed there: a control
step is 10 s instead of 60, and Serve's delays and look-back are a sixth of their defaults as well;
the load is one peak of two minutes, which stands for 12. Work is exponential with a mean of 0.2 s.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
AT_ONCE = (AWARE, DEFAULT), (HPA, TUNED)
WORK_S, SLO_S = 0.2, 2.8  # the SLO is three times the p99 of a request alone
LONGEST = 6.0  # of the work, in means
TUNED_TARGET, TUNED_DOWN_S = 1.0, 60.0  # by hand: half the target, down after a minute

# The real Serve, in compressed time.
STEP_S = 10.0
FACTOR = TRAINED_STEP_S / STEP_S
PARTS = 5.0  # of a request: 0.2 s are 1.2 s of a state, beyond what the policy knows
WARM_UP_S, RUN_S = 30.0, 120.0
LOW, PEAKS = 2.0, (10.0, 14.0)  # requests a second
MOST_REPLICAS = 8
SAMPLE_S = 0.5
CLIENT_S = 60.0  # longest wait for an answer

# The model, in its own time: three hours with one peak.
MODEL_S, MODEL_WARM_UP_S, MODEL_START_S = 3 * 3600.0, 600.0, 10.0
MODEL_LOW, MODEL_PEAK, MODEL_NOISE = 3.0, 20.0, 0.06
MODEL_BOUNDS = 1, 20

# Serve's defaults, compressed.
_SERVE = {
    "upscale_delay_s": 30.0 / FACTOR,
    "downscale_delay_s": 600.0 / FACTOR,
    "look_back_period_s": 30.0 / FACTOR,
    "metrics_interval_s": 1.0,
}
_BY_SERVICE = {**_SERVE, "upscale_delay_s": 0.0, "downscale_delay_s": 0.0}
_DEPLOYMENT = {"slo_s": SLO_S, "slots": 1.0, "request_s": WORK_S}


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
    yield from measure_model(report_step, repeats, folder)
    yield from measure_real(report_step, repeats, folder)


def measure_model(
    report_step: Callable[[str], None], repeats: int, folder: Path
) -> Iterator[Figure]:
    """The model's runs: model.csv and model_differences.csv."""
    rows = []
    log, before = logging.getLogger("ray.serve"), logging.getLogger("ray.serve").level
    log.setLevel(logging.ERROR)
    try:
        for repeat in range(repeats):
            report_step(f"ray-serve: model, run {repeat + 1} of {repeats}")
            due = model_arrivals(repeat)
            for name, model in models(repeat).items():
                replica_s, latencies_s = model.run(due, MODEL_WARM_UP_S)
                rows.append(Arm(name, latencies_s, replica_s).row(repeat))
            write_tables(folder, {"model.csv": rows})
    finally:
        log.setLevel(before)
    yield from _figures("ray-serve-model", rows, folder / "model_differences.csv")


def models(seed: int) -> Mapping[str, ServeModel]:
    """A deployment for each policy."""
    rest = MODEL_BOUNDS, MODEL_START_S, seed
    tuned = Config(target_ongoing_requests=TUNED_TARGET, downscale_delay_s=TUNED_DOWN_S)
    at_once = Config(upscale_delay_s=0.0, downscale_delay_s=0.0)
    settings = {**_DEPLOYMENT, "rule_upscale_delay_s": 30.0, "rule_downscale_delay_s": 600.0}
    policies = {AWARE: ENDPOINT.policy(pretrained_folder() / AWARE), HPA: ENDPOINT.rule(HPA)}
    return {
        DEFAULT: by_serve(Config(), *rest),
        TUNED: by_serve(tuned, *rest),
        **{name: by_policy(one, settings, at_once, *rest) for name, one in policies.items()},
    }


def model_arrivals(seed: int) -> list[Arrival]:
    """Requests of one peak, with noise that lasts for minutes."""
    rng = np.random.default_rng(seed)
    noise, level = [], 0.0
    for _ in range(int(MODEL_S / 60) + 1):
        level = 0.9 * level + MODEL_NOISE * rng.standard_normal()
        noise.append(level)

    def rate(at_s: float) -> float:
        wave = math.sin(math.pi * at_s / MODEL_S) ** 2
        return (MODEL_LOW + (MODEL_PEAK - MODEL_LOW) * wave) * math.exp(noise[int(at_s / 60)])

    return _arrivals(rng, rate, 2.0 * MODEL_PEAK, 0.0, MODEL_S)


def _arrivals(
    rng: np.random.Generator,
    rate: Callable[[float], float],
    most: float,
    begin_s: float,
    end_s: float,
) -> list[Arrival]:
    """Times and work of requests, by thinning."""
    found, at_s = [], begin_s
    while (at_s := at_s + rng.exponential(1.0 / most)) < end_s:
        if rng.random() * most < rate(at_s):
            found.append((at_s, float(min(rng.exponential(WORK_S), LONGEST * WORK_S))))
    return found


def measure_real(
    report_step: Callable[[str], None], repeats: int, folder: Path
) -> Iterator[Figure]:
    """Runs of a real Serve: runs.csv and differences.csv."""
    rows: list[dict[str, Any]] = []
    with serve_cluster(), bench_server({"aware": {"rule": HPA}}, report_step) as server:
        client = Client(server.url, deadline_s=30.0)
        for repeat in range(repeats):
            client.pause("aware", tenant=tenant(HPA, repeat))  # the service's rule decides
            configs = arms(server.url, repeat)
            for names in AT_ONCE if repeat % 2 else AT_ONCE[::-1]:
                report_step(f"ray-serve: run {repeat + 1} of {repeats}: {', '.join(names)}")
                rows += [arm.row(repeat) for arm in _run(names, configs, repeat)]
                write_tables(folder, {"runs.csv": rows})
    yield from _figures("ray-serve", rows, folder / "differences.csv")


def arms(url: str, repeat: int) -> Mapping[str, dict[str, Any]]:
    """`autoscaling_config` of each policy; tenants of the service are new in each repeat."""
    bounds = {"min_replicas": 1, "max_replicas": MOST_REPLICAS, "initial_replicas": 2}
    down_s = TUNED_DOWN_S / FACTOR

    def by_service(name: str) -> dict[str, Any]:
        policy = autoscaling_policy(
            mode="act", url=url, tenant=tenant(name, repeat), step_s=STEP_S, parts=PARTS,
            queued_s=5.0, rule_upscale_delay_s=_SERVE["upscale_delay_s"],
            rule_downscale_delay_s=_SERVE["downscale_delay_s"], **_DEPLOYMENT,
        )  # fmt: skip
        return {**bounds, **_BY_SERVICE, "policy": policy}

    tuned = {"target_ongoing_requests": TUNED_TARGET, "downscale_delay_s": down_s}
    return {
        DEFAULT: {**bounds, **_SERVE},
        TUNED: {**bounds, **_SERVE, **tuned},
        AWARE: by_service(AWARE),
        HPA: by_service(HPA),
    }


def tenant(name: str, repeat: int) -> str:
    return f"{name}-{repeat}"


def arrivals(seed: int) -> list[Arrival]:
    """Requests of a run: the warm-up, below 0 s, then one peak."""
    rng = np.random.default_rng(seed)
    peak = rng.uniform(*PEAKS)

    def rate(at_s: float) -> float:
        return LOW + (peak - LOW) * math.sin(math.pi * max(at_s, 0.0) / RUN_S) ** 2

    return _arrivals(rng, rate, peak, -WARM_UP_S, RUN_S)


def _run(names: Sequence[str], configs: Mapping[str, Mapping[str, Any]], repeat: int) -> list[Arm]:
    """Run some policies at the same time, each in an application of its own."""
    from ray import serve

    handles = {
        name: serve.run(
            sleeper({"autoscaling_config": configs[name]}), name=name, route_prefix=None
        )
        for name in names
    }
    due = arrivals(repeat)

    def load(name: str) -> Arm:
        return asyncio.run(_load(name, handles[name], due))

    try:
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(load, names))
    finally:
        for name in names:
            serve.delete(name)


async def _load(name: str, handle: Any, due: Sequence[Arrival]) -> Arm:
    """Send every request when it is due, whatever has been answered."""
    latencies: list[float] = []
    failed = 0
    began = time.monotonic() + WARM_UP_S

    async def send(at_s: float, work_s: float) -> None:
        nonlocal failed
        try:
            await asyncio.wait_for(handle.remote(work_s), CLIENT_S)
        except Exception:  # counted: a request that got no answer
            failed += 1
        if at_s >= 0:
            latencies.append(time.monotonic() - began - at_s)

    with _ReplicaCounter(name, began) as counter:
        sent = []
        for at_s, work_s in due:
            await asyncio.sleep(max(began + at_s - time.monotonic(), 0.0))
            sent.append(asyncio.ensure_future(send(at_s, work_s)))
        await asyncio.gather(*sent)
    return Arm(name, latencies, counter.seconds, failed)


class _ReplicaCounter(threading.Thread):
    """Adds up the time of replicas that start or run, from the end of the warm-up to RUN_S."""

    def __init__(self, application: str, began: float) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        self._application, self._began = application, began
        self._stopped = threading.Event()

    def run(self) -> None:
        from ray import serve

        last = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            found = serve.status().applications[self._application].deployments[SLEEPER]
            now = time.monotonic()
            begin, end = max(last, self._began), min(now, self._began + RUN_S)
            last = now
            states = found.replica_states.items()
            count = sum(number for state, number in states if state != "STOPPING")
            self.seconds += count * max(end - begin, 0.0)

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
