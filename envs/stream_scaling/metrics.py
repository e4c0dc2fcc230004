"""Metrics of a stream scaling episode."""

import numpy as np
from scipy.special import gammainc

from loadmaster.envs.metrics import Metric
from loadmaster.envs.stream_scaling.episode import EpisodeResult
from loadmaster.envs.stream_scaling.settings import DAY_MIN, StreamScalingSettings

_ITERATIONS = 50  # of a bisection


def mean_latency_s(result: EpisodeResult) -> float:
    """Mean over the records that left; with none of them, over the minutes."""
    weights = result.output if result.output.sum() > 0 else np.ones_like(result.output)
    return 60 * float(np.average(result.latency_min, weights=weights))


def latency_quantile_s(result: EpisodeResult, share: float) -> float:
    """Quantile over the records that left: in every minute a gamma distribution."""
    weights = result.output if result.output.sum() > 0 else np.ones_like(result.output)
    mean = np.maximum(result.latency_min, 1e-9)
    variance = np.maximum(result.latency_variance, (1e-3 * mean) ** 2)
    shape, scale = mean**2 / variance, variance / mean
    low, high = 0.0, float((mean + 20 * np.sqrt(variance)).max())
    for _ in range(_ITERATIONS):
        middle = 0.5 * (low + high)
        if np.average(gammainc(shape, middle / scale), weights=weights) < share:
            low = middle
        else:
            high = middle
    return 60 * high


def restarts_per_day(result: EpisodeResult) -> float:
    return result.restarts * DAY_MIN / len(result.output)


def episode_metrics(settings: StreamScalingSettings) -> tuple[Metric, ...]:
    """Metrics of an evaluation with these settings, the primary one first."""
    return (
        Metric(
            "reward", "reward", "", lambda result: result.reward, better="higher", relative=False
        ),
        Metric("latency", "mean latency", "s", mean_latency_s),
        Metric("latency_p99", "p99 latency", "s", lambda result: latency_quantile_s(result, 0.99)),
        Metric(
            "minutes_over_target",
            "over target",
            "min",
            lambda result: float((result.latency_min > result.target_min).sum()),
        ),
        Metric(
            "utilisation",
            "utilisation",
            "",
            lambda result: float(result.utilisation.mean()),
            better="higher",
        ),
        Metric(
            "instance_hours",
            "instance-hours",
            "",
            lambda result: float(result.instances.sum()) / 60,
        ),
        Metric("slot_hours", "slot-hours", "", lambda result: float(result.slots.sum()) / 60),
        Metric("restarts", "restarts a day", "", restarts_per_day),
        Metric("lag", "mean lag", "records", lambda result: float(result.lag.mean())),
    )
