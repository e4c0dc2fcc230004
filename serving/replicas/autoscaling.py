"""Load of a replica, for Serve's autoscaling, which does not count requests past its router.

`loadmaster.serving.replicas.autoscaling:replicas_for_load` is the policy. Serve applies delays,
factors and bounds of `autoscaling_config` to what it returns.
"""

import time
from collections.abc import Callable
from typing import Any

LOAD = "load"  # the metric: mean number of requests under way
POLICY = f"{__name__}:replicas_for_load"
# Requests under way that a replica should have: a gateway waits for workers most of the time, a
# worker decides on one request at a time.
GATEWAY_TARGET, WORKER_TARGET = 4.0, 0.6


class LoadMeter:
    """Mean number of requests under way between two readings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.under_way = clock, 0
        self._since, self._read_at, self._area = clock(), clock(), 0.0

    def add(self, change: int) -> None:
        """`change`: 1 at the begin of a request, -1 at its end."""
        now = self._clock()
        self._area += self.under_way * (now - self._since)
        self._since, self.under_way = now, self.under_way + change

    def read(self) -> float:
        self.add(0)
        mean = self._area / max(self._since - self._read_at, 1e-9)
        self._read_at, self._area = self._since, 0.0
        return mean


def replicas_for_load(context: Any) -> tuple[float, dict[str, Any]]:
    """The number of replicas with the target load, for the load of all of them (Serve's API)."""
    loads = context.aggregated_metrics.get(LOAD, {})
    if not loads:
        return context.target_num_replicas, {}
    return sum(loads.values()) / context.config.get_target_ongoing_requests(), {}


def autoscaling_options(given: dict[str, Any], target: float) -> dict[str, Any]:
    """`autoscaling_config` of a deployment: Serve's options, with the policy and target of here."""
    return {
        "target_ongoing_requests": target,
        "policy": {"policy_function": POLICY},
        **given,
    }
