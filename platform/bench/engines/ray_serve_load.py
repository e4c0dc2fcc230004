"""Requests, policies and figures of the benchmark of Ray Serve.

A peak is counted until well after it, since Serve's default takes ten minutes to remove replicas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.platform.steering.ray_serve.settings import TRAINED_STEP_S

Arrival = tuple[float, float]  # time and work, s

POLICIES = DEFAULT, TUNED, AWARE, HPA = "serve-default", "serve-tuned", "aware", "hpa"
WORK_S, SLO_S = 0.2, 2.8  # the SLO is three times the p99 of a request alone
LONGEST = 6.0  # of the work, in means
TUNED_TARGET, TUNED_DOWN_S = 1.0, 60.0  # by hand: half the target, down after a minute

UP_S, DOWN_S, LOOK_BACK_S, METRICS_S = 30.0, 600.0, 30.0, 10.0  # Serve's defaults
EXPORT_S = 10.0  # of the nodes' metrics, Ray's default
QUEUED_S = 15.0  # default of the policy class


@dataclass(frozen=True)
class Load:
    """One peak, and a low rate before and after it; the rate has noise that lasts for minutes."""

    length_s: float
    after_s: float  # counted as well
    low: float  # requests a second
    peaks: tuple[float, float]  # the highest rate is drawn from this range
    bounds: tuple[int, int]  # of the number of replicas
    speed: float = 1.0  # of time: control steps and Serve's delays are shorter by this factor
    warm_up_s: float = 180.0  # before the peak, at the low rate; not counted
    noise: float = 0.06

    @property
    def counted_s(self) -> float:
        return self.length_s + self.after_s

    def deployment(self) -> dict[str, Any]:
        """Settings of the policy class."""
        return {
            "slo_s": SLO_S,
            "parts": self.speed,  # so that a request is as short as those of the training
            "slots": 1.0,
            "request_s": WORK_S,
            "export_s": EXPORT_S / self.speed,
            "step_s": TRAINED_STEP_S / self.speed,
            "queued_s": QUEUED_S / self.speed,
            "rule_upscale_delay_s": UP_S / self.speed,
            "rule_downscale_delay_s": DOWN_S / self.speed,
        }

    def arrivals(self, seed: int) -> list[Arrival]:
        """Times and work of requests, by thinning."""
        rng = np.random.default_rng(seed)
        peak = rng.uniform(*self.peaks)
        end_s = self.warm_up_s + self.counted_s
        noise, level = [], 0.0
        for _ in range(int(end_s / 60) + 1):
            level = 0.9 * level + self.noise * rng.standard_normal()
            noise.append(math.exp(level))

        def rate(at_s: float) -> float:
            part = min(max(at_s - self.warm_up_s, 0.0) / self.length_s, 1.0)
            wave = math.sin(math.pi * part) ** 2
            return (self.low + (peak - self.low) * wave) * noise[int(at_s / 60)]

        found, at_s, most = [], 0.0, peak * max(noise)
        while (at_s := at_s + rng.exponential(1.0 / most)) < end_s:
            if rng.random() * most < rate(at_s):
                found.append((at_s, float(min(rng.exponential(WORK_S), LONGEST * WORK_S))))
        return found


REAL = Load(420.0, 210.0, 2.0, (10.0, 14.0), (1, 8), speed=3.0, warm_up_s=60.0)
HOURS = Load(3 * 3600.0, 720.0, 3.0, (20.0, 20.0), (1, 20))


@dataclass(frozen=True)
class Arm:
    """A policy, and what it did in a run."""

    name: str
    latencies_s: Sequence[float]
    replica_s: float
    failed: int = 0
    by_policy: float = math.nan  # share of decisions that the service's policy took
    replicas: Sequence[tuple[float, int]] = ()  # at times of the run, s

    def row(self, repeat: int) -> dict[str, Any]:
        found = np.array(self.latencies_s)
        return {
            "repeat": repeat,
            "policy": self.name,
            "requests": len(found),
            "failed": self.failed,
            "by_policy": self.by_policy,
            "replica_s": self.replica_s,
            "p50_s": float(np.percentile(found, 50)),
            "p99_s": float(np.percentile(found, 99)),
            "late": float(np.mean(found > SLO_S)),
        }
