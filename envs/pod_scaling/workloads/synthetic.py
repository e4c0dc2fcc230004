"""Generated loads: requests a minute with a mean by the level of the load.

`diurnal-like` has a daily cycle, a level that changes over hours, and noise beyond that of a
Poisson process. `bursty-like` has a low base and short bursts of several times its height. An
episode of 100 minutes is a part of them, so its mean may be far from that of a day.
"""

from dataclasses import dataclass

import numpy as np

from loadmaster.envs.loads import Floats, bursts, wandering

_DAY, _WEEK = 1440, 10_080
_BUSIEST_MIN = 15 * 60  # of the day
_NOISE_SHAPE = 40.0  # of a gamma distribution, by the minute
# Bursts: mean gap and length in minutes, and heights relative to the base.
_BURSTS = (25.0, 4.0, (1.0, 5.0))
_MEAN_BURST = 1.55  # mean of the factor, so that the load has its mean


@dataclass(frozen=True)
class DiurnalLike:
    """A daily cycle; `rate` is the mean, in requests a second."""

    rate: float
    name: str = "diurnal-like"

    @property
    def description(self) -> str:
        return f"generated, a daily cycle with a mean of {self.rate:g} requests a second"

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        start = int(rng.integers(_WEEK))
        phase = 2 * np.pi * ((start + np.arange(minutes)) % _DAY - _BUSIEST_MIN) / _DAY
        day = 1.0 + 0.6 * np.cos(phase) + 0.1 * np.cos(2 * phase)
        rate = 60 * self.rate * day * wandering(minutes, rng, 0.98, 0.2)
        return _counts(rate, rng), start


@dataclass(frozen=True)
class BurstyLike:
    """A steady base with bursts; `rate` is the mean, in requests a second."""

    rate: float
    name: str = "bursty-like"

    @property
    def description(self) -> str:
        return f"generated, bursts over a base, mean of {self.rate:g} requests a second"

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        start = int(rng.integers(_WEEK))
        shape = bursts(minutes, rng, *_BURSTS) * wandering(minutes, rng, 0.98, 0.15)
        return _counts(60 * self.rate / _MEAN_BURST * shape, rng), start


@dataclass(frozen=True)
class Steady:
    """A constant load without noise, to compute by hand."""

    rate: float
    name: str = "toy"

    @property
    def description(self) -> str:
        return f"{self.rate:g} requests a second, constant"

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        return np.full(minutes, 60 * self.rate), 0


def _counts(rate: Floats, rng: np.random.Generator) -> Floats:
    return rng.poisson(rng.gamma(_NOISE_SHAPE, rate / _NOISE_SHAPE)).astype(np.float64)
