"""Quantiles of a request's time in a pod, tabulated by load and cores.

Requests arrive as a Poisson process and take an exponential CPU time of mean 1. A pod of C >= 1
cores gives each request at most one core. The table holds quantiles times (1 - rho), which change
little with the load: k of p = k s / (1 - rho).

- Processor sharing: with n others in the pod a request runs at min(1, C / (n + 1)). The number of
  others is a birth and death process, and the request's end its absorption. The generator is
  similar to a symmetric tridiagonal matrix, whose eigenvalues give the whole distribution.
- First come, first served: the closed form of M/M/c (a waiting request waits an exponential time).
  Between whole numbers of cores the quantiles are interpolated.

`python -m loadmaster.envs.pod_scaling.quantile_table` writes the file that is shipped.
"""

import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

Floats = NDArray[np.float64]

PATH = Path(__file__).parent / "latency_quantiles.json"
# Levels x: the quantile of the share 1 - exp(-x) of the requests; ln 100 is the p99.
LEVELS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, math.log(100), 5.5, 7.0, 9.0, 12.0)
LOADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
CORES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 8.0, 16.0)
DISCIPLINES = ("ps", "fcfs")
_ITERATIONS = 80  # of a bisection
_DIGITS = 5


def shared_quantiles(rho: float, cores: float, levels: Floats) -> Floats:
    """(levels,) quantiles under processor sharing."""
    if rho == 0:
        return levels.copy()
    states = int(max(60, math.log(1e-10) / math.log(rho) + 4 * cores + 20))
    others, rate = np.arange(states), rho * cores
    speed = np.minimum(1.0, cores / (others + 1))
    born, die = np.full(states, rate), others * speed
    born[-1] = 0.0
    values, vectors = eigh_tridiagonal(-(born + die + speed), np.sqrt(born[:-1] * die[1:]))
    scale = np.concatenate([[0.0], np.cumsum(np.log(rate / die[1:]))]) / 2
    logs = np.cumsum(np.log(rate / np.minimum(others[1:], cores)))
    found = np.exp(np.concatenate([[0.0], logs]) - max(logs.max(), 0.0))
    weights = ((found / found.sum() * np.exp(-scale)) @ vectors) * (vectors.T @ np.exp(scale))
    return _invert(lambda times: weights @ np.exp(np.outer(values, times)), levels)


def queued_quantiles(rho: float, servers: int, levels: Floats) -> Floats:
    """(levels,) quantiles of M/M/c, first come first served."""
    offered, free = rho * servers, servers * (1 - rho)
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - rho)
    waits = last / (sum(terms) + last)  # Erlang C
    if abs(free - 1.0) < 1e-6:  # equal rates: the limit, by a small difference
        free = 1.0 + 1e-6

    def tail(times: Floats) -> Floats:
        # The sum of an exponential service time of rate 1 and, with Erlang's probability, a wait.
        both = (free * np.exp(-times) - np.exp(-free * times)) / (free - 1.0)
        return np.asarray((1 - waits) * np.exp(-times) + waits * both)

    return _invert(tail, levels)


def _invert(tail: Callable[[Floats], Floats], levels: Floats) -> Floats:
    """The times at which the tail of a distribution is exp(-levels)."""
    low, high = np.zeros(len(levels)), np.full(len(levels), 1e5)
    for _ in range(_ITERATIONS):
        middle = 0.5 * (low + high)
        above = tail(middle) > np.exp(-levels)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


def quantiles(discipline: str, rho: float, cores: float, levels: Floats) -> Floats:
    """(levels,) quantiles of a request's time, in units of its CPU time on one core."""
    if discipline == "ps":
        return shared_quantiles(rho, cores, levels)
    low = math.floor(cores)
    found = queued_quantiles(rho, low, levels)
    if cores > low:
        found = found + (cores - low) * (queued_quantiles(rho, low + 1, levels) - found)
    return found


def build_table(discipline: str) -> list[list[list[float]]]:
    """(CORES, LOADS, LEVELS) quantiles times 1 - rho."""
    levels = np.array(LEVELS)
    return [
        [
            [
                float(f"{value:.{_DIGITS}g}")
                for value in (1 - rho) * quantiles(discipline, rho, cores, levels)
            ]
            for rho in LOADS
        ]
        for cores in CORES
    ]


@lru_cache(maxsize=2)
def load_table(discipline: str) -> Floats:
    """The shipped table of a discipline, (CORES, LOADS, LEVELS)."""
    return np.array(json.loads(PATH.read_text(encoding="utf-8"))[discipline])


if __name__ == "__main__":
    tables = {discipline: build_table(discipline) for discipline in DISCIPLINES}
    PATH.write_text(json.dumps(tables) + "\n", encoding="utf-8")
