"""Serve's default policy, for when no decision counts: replicas by ongoing requests.

`target_ongoing_requests` a replica, as `ray.serve.autoscaling_policy` computes it. Serve applies
its own delays, factors and bounds to what a policy returns; the delays of here come first.
"""

from __future__ import annotations

import math
from typing import Any


class OngoingRequestsRule:
    """Called at every tick, since a delay is the time for which other replicas were wanted."""

    def __init__(
        self, upscale_delay_s: float, downscale_delay_s: float, load_metric: str | None = None
    ) -> None:
        self._up_s, self._down_s, self._metric = upscale_delay_s, downscale_delay_s, load_metric
        self._since_s: float | None = None
        self._direction = 0

    def load(self, context: Any) -> float | None:
        """Ongoing requests; None if the metric is not there."""
        if self._metric is None:
            return float(context.total_num_requests)
        values = (context.aggregated_metrics or {}).get(self._metric) or {}
        return float(sum(values.values())) if values else None

    def replicas(self, context: Any, now_s: float) -> float:
        """What the default policy would return; Serve rounds it up."""
        target = context.target_num_replicas
        load = self.load(context)
        if context.current_num_replicas == 0 or load is None:
            return float(target)
        wanted = load / context.config.get_target_ongoing_requests()
        return wanted if self._is_due(wanted, target, context.config, now_s) else float(target)

    def _is_due(self, wanted: float, target: int, config: Any, now_s: float) -> bool:
        """Whether the delay has passed, less that which Serve adds."""
        whole = math.ceil(wanted)
        direction = (whole > target) - (whole < target)
        if direction != self._direction:
            self._direction, self._since_s = direction, now_s
        if direction == 0 or self._since_s is None:
            return True
        if direction > 0:
            delay_s = self._up_s - config.upscale_delay_s
        else:
            delay_s = self._down_s - config.downscale_delay_s
        return bool(now_s - self._since_s >= delay_s)
