"""Queues whose load changes: mean and variance of the number of records in them.

The pointwise stationary fluid flow approximation (Wang, Tipper and Banerjee 1996): with a mean
number of records l, an instance is busy for the share rho(l) of the time that it would be in a
stationary queue with that mean, so

    dl/dt = arrivals - capacity * rho(l).

It is exact in a stationary queue, and becomes a fluid queue where arrivals exceed the capacity. The
stationary mean is that of Kingman's formula,

    l = rho + a rho^2 / (1 - rho),  a = (ca^2 + cs^2) / 2,

exact for M/M/1 and M/G/1. A step is implicit, so it is stable however short the service times are.
The variance follows from the linear noise of the same equation; in M/M/1 it is rho / (1 - rho)^2,
also exact.
"""

import math

from loadmaster.envs.compiled import njit_internal

_ITERATIONS = 40  # of a bisection


@njit_internal
def busy_share(amount: float, capacity: float, a: float) -> float:
    """rho after a step in which `amount` records were there and `capacity` could be processed.

    The solution of l = amount - capacity * rho with the stationary mean of one instance.
    """
    b = amount + capacity + 1.0
    root = math.sqrt(max(b * b - 4.0 * (capacity + 1.0 - a) * amount, 0.0))
    return min(2.0 * amount / (b + root), 1.0)


@njit_internal
def slope(rho: float, a: float) -> float:
    """d rho / d l at the stationary mean of one instance."""
    free = max(1.0 - rho, 1e-9)
    return 1.0 / (1.0 + a * rho * (2.0 - rho) / (free * free))


@njit_internal
def shared_number(rho: float, servers: float, a: float) -> float:
    """Stationary mean of one queue for several servers (Sakasegawa 1977)."""
    waiting: float = a * rho ** math.sqrt(2.0 * (servers + 1.0)) / max(1.0 - rho, 1e-12)
    return servers * rho + waiting


@njit_internal
def shared_busy_share(amount: float, capacity: float, servers: int, a: float) -> float:
    """`busy_share` of several servers with one queue; `capacity` is that of all."""
    low, high = 0.0, 1.0
    for _ in range(_ITERATIONS):
        rho = 0.5 * (low + high)
        if shared_number(rho, servers, a) + capacity * rho > amount:
            high = rho
        else:
            low = rho
    return 0.5 * (low + high)


@njit_internal
def shared_slope(rho: float, servers: int, a: float) -> float:
    """d rho / d l of several servers with one queue."""
    step = 1e-6
    low = max(min(rho, 1.0 - 1e-5) - step, 0.0)
    rise = shared_number(low + 2 * step, servers, a) - shared_number(low, servers, a)
    return 2 * step / rise


@njit_internal
def next_variance(
    variance: float, arrivals: float, departures: float, ca2: float, cs2: float, restoring: float
) -> float:
    """Variance of the number after a step; `restoring` is capacity * d rho / d l."""
    return (variance + ca2 * arrivals + cs2 * departures) / (1.0 + 2.0 * restoring)


@njit_internal
def departure_variability(rho: float, ca2: float, cs2: float) -> float:
    """Squared coefficient of variation of the gaps between departures (Whitt 1983, QNA)."""
    return rho * rho * cs2 + (1.0 - rho * rho) * ca2


@njit_internal
def split_variability(c2: float, share: float) -> float:
    """Of the gaps of a random share of the records (Whitt 1983, QNA)."""
    return share * (c2 - 1.0) + 1.0
