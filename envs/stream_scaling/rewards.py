"""Reward: low latency and busy instances, lambda and 1 - lambda.

    r = -lambda l + (1 - lambda) u

l is the latency in units of `latency_scale_min`, u the share of instances that are busy, both
means over the minutes since the last decision.
"""

from typing import Any

from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.state import SUM_BUSY_SHARE, SUM_LATENCY


def reward_sum(settings: StreamScalingSettings, sums: NDArray[Any]) -> Any:
    """Sum of the rewards of all minutes; `sums` is (..., SUM_COLUMNS)."""
    weight = settings.latency_weight
    latency = sums[..., SUM_LATENCY] / settings.latency_scale_min
    return (1 - weight) * sums[..., SUM_BUSY_SHARE] - weight * latency
