"""Generated loads.

`clarknet-like` has the mean (166), standard deviation (76) and maximum (472) of the requests a
minute to ClarkNet's web server in two weeks of 1995: a daily cycle, weaker at weekends, a level
that changes over hours, short bursts, and noise from minute to minute, more than of a Poisson
process (of the trace, 19% of the variance is gone within a minute).
"""

from dataclasses import dataclass

import numpy as np

from loadmaster.envs.loads import Floats, bursts, wandering

MOST = 472.0
_DAY, _WEEK = 1440, 10_080
_BUSIEST_MIN = 15 * 60  # of the day
_WEEKEND = 0.72  # factor of the load
_LEVEL = (0.995, 0.16)  # autoregression by the minute, spread
_BURSTS = (300.0, 12.0, (0.2, 0.9))  # mean gap and length in minutes, heights
_NOISE_SHAPE = 28.0  # of a gamma distribution, by the minute


@dataclass(frozen=True)
class ClarknetLike:
    name: str = "clarknet-like"
    description: str = "generated after ClarkNet, mean 166 records a minute"

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        start = int(rng.integers(_WEEK))
        minute = start + np.arange(minutes)
        phase = 2 * np.pi * ((minute % _DAY) - _BUSIEST_MIN) / _DAY
        day = 1.0 + 0.49 * np.cos(phase) + 0.08 * np.cos(2 * phase)
        weekend = (minute % _WEEK) // _DAY >= 5
        rate = 175.0 * day * np.where(weekend, _WEEKEND, 1.0)
        rate = rate * wandering(minutes, rng, *_LEVEL) * bursts(minutes, rng, *_BURSTS)
        rate = rng.gamma(_NOISE_SHAPE, rate / _NOISE_SHAPE)
        return np.minimum(rng.poisson(rate), MOST).astype(np.float64), start


@dataclass(frozen=True)
class Constant:
    name: str = "toy"
    description: str = "60 records in every minute"

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        return np.full(minutes, 60.0), 0


CLARKNET_LIKE, TOY = ClarknetLike(), Constant()
