"""Normal distributions of one number."""

from __future__ import annotations

import math

from torch import Tensor

LOG_TAU = math.log(2 * math.pi)
FIRST_LOG_STD = -1.0  # before anything was learnt
LEAST_LOG_STD, MOST_LOG_STD = -5.0, 2.0  # neither a fixed choice nor mere noise


def bounded(log_std: Tensor) -> Tensor:
    return log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD)


def log_density(value: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Each by itself, of the same shape."""
    standard = (value - mean) / log_std.exp()
    return -standard.square() / 2 - log_std - LOG_TAU / 2


def entropy_of(log_std: Tensor) -> Tensor:
    """Each by itself, of the same shape."""
    return log_std + (1 + LOG_TAU) / 2
