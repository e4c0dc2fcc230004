"""Metrics of a stream scaling episode."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc

from loadmaster.envs.metrics import Metric
from loadmaster.envs.stream_scaling.episode import EpisodeResult
from loadmaster.envs.stream_scaling.settings import DAY_MIN, Fault, StreamScalingSettings

_ITERATIONS = 50  # of a bisection
# Lag below which a job counts as recovered, in minutes of the episode's median load: the records of
# a restart in normal operation stay below. It depends on the load alone, not on the policy.
RECOVERED_LAG_MIN = 3.0
CALM_MIN = 30  # for so long; a lack of instances shows within it


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
    metrics = (
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
    if not settings.faults:
        return metrics
    return (
        *metrics,
        Metric("peak_lag", "peak lag", "records", lambda result: peak_lag(result, settings.faults)),
        Metric("recovery", "recovery", "min", lambda result: recovery_min(result, settings.faults)),
    )


def peak_lag(result: EpisodeResult, faults: Sequence[Fault]) -> float:
    """Highest lag from the onset of a fault to the end of the calm that follows it."""
    spans = [(_onset(fault), _calm_from(result, fault) + CALM_MIN) for fault in faults]
    return float(max(result.lag[onset:end].max(initial=0.0) for onset, end in spans))


def recovery_min(result: EpisodeResult, faults: Sequence[Fault]) -> float:
    """Minutes from the onset of a fault to the last high lag before the calm; of several, the most.

    A lag is high above RECOVERED_LAG_MIN, and calm are the first CALM_MIN minutes without one at or
    after the end of the fault. 0 if no lag was high; without calm, to the end of the episode.
    """
    high = _high_lag(result)
    most = 0
    for fault in faults:
        onset = _onset(fault)
        minutes = np.flatnonzero(high[onset : _calm_from(result, fault)])
        most = max(most, minutes[-1] + 1 if len(minutes) else 0)
    return float(most)


def _high_lag(result: EpisodeResult) -> NDArray[np.bool_]:
    return result.lag > RECOVERED_LAG_MIN * np.median(result.load)


def _onset(fault: Fault) -> int:
    """The first minute of a fault; of a silent source the one in which its load comes back."""
    return fault.end if fault.kind == "silent-source" else fault.begin


def _calm_from(result: EpisodeResult, fault: Fault) -> int:
    """First minute of the calm after the fault; without one, the end of the episode."""
    high, minutes = _high_lag(result), len(result.lag)
    for minute in range(fault.end, minutes):
        if not high[minute : minute + CALM_MIN].any():
            return minute
    return minutes
