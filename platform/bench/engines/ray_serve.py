"""Autoscaling of Ray Serve: replica-seconds and p99 by Serve's default policy and by the service.

In a real Serve: one peak, all policies at the same time, each in an application of its own, with
the same requests at the same times, so they are paired by repeat. Time runs three times as fast
there: a control step is 20 s instead of 60, and Serve's delays are a third of their defaults, so
the peak of 7 minutes stands for 21, and the time that is counted after it for ten. And in a model
of Serve: the same peaks, to see how true it is, and peaks of three hours. Replicas sleep; work is
exponential with a mean of 0.2 s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.models.manifest import pretrained_folder
from loadmaster.platform.bench.engines.ray_serve_cluster import set_cluster_env
from loadmaster.platform.bench.engines.ray_serve_load import (
    AWARE,
    DEFAULT,
    DOWN_S,
    EXPORT_S,
    HOURS,
    HPA,
    LOOK_BACK_S,
    POLICIES,
    REAL,
    TUNED,
    TUNED_DOWN_S,
    TUNED_TARGET,
    UP_S,
    Arm,
    Load,
)
from loadmaster.platform.bench.engines.ray_serve_model import (
    Config,
    ServeModel,
    by_policy,
    by_serve,
)
from loadmaster.platform.bench.engines.ray_serve_runs import real_runs
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation.statistics import paired_difference
from loadmaster.serving.systems.aware.system import ENDPOINT

START_S = 10.0  # of a replica, in the model


def measure(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Figure]:
    """Run all policies `repeats` times; write runs and paired differences as CSV files."""
    rows, replicas = [], []
    for repeat, arms in real_runs(report_step, repeats, folder):
        rows += [arm.row(repeat) for arm in arms]
        replicas += [
            {"repeat": repeat, "policy": arm.name, "at_s": at_s, "replicas": count}
            for arm in arms
            for at_s, count in arm.replicas
        ]
        write_tables(folder, {"runs.csv": rows, "replicas.csv": replicas})
    yield from _figures("ray-serve", rows, folder / "differences.csv")
    set_cluster_env()  # the model imports Ray
    for name, load in (("model", REAL), ("model_hours", HOURS)):
        rows = []
        for repeat in range(repeats):
            report_step(f"ray-serve: {name}, run {repeat + 1} of {repeats}")
            rows += [arm.row(repeat) for arm in in_model(load, repeat)]
        write_tables(folder, {f"{name}.csv": rows})
        yield from _figures(f"ray-serve-{name}", rows, folder / f"{name}_differences.csv")


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
    rest = load.bounds, START_S / load.speed, EXPORT_S / load.speed, seed
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


def _figures(prefix: str, rows: Sequence[Mapping[str, Any]], file: Path) -> Iterator[Figure]:
    """Means beside those of Serve's default; paired intervals go to the file."""

    def values(policy: str, column: str) -> Any:
        return np.array([row[column] for row in rows if row["policy"] == policy], np.float64)

    table = []
    for column, unit in (("replica_s", "replica-s"), ("p99_s", "s"), ("late", "share")):
        for reference in (DEFAULT, TUNED):
            peer = values(reference, column)
            for policy in POLICIES[1:]:
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
        for policy in POLICIES:
            mean = float(values(policy, column).mean())
            peer_mean = None if policy == DEFAULT else default
            yield Figure(f"{prefix}/{policy}/{column}", mean, unit, peer_mean, DEFAULT, False)
    write_tables(file.parent, {file.name: table})
