"""Detection of falls of episode rewards: CUSUMs of what a level and a daily cycle do not explain.

A window of episodes and ADWIN need many episodes to notice a fall, and take the low hours of a day
for one. Here the expected reward is a level and the first two harmonics of the day, tracked by a
Kalman filter whose coefficients drift slowly (dynamic harmonic regression: Young, Pedregal and
Tych, "Dynamic harmonic regression", Journal of Forecasting 18, 1999). Its standardised prediction
errors enter the CUSUM of Page ("Continuous inspection schemes", Biometrika 41, 1954):

    sum <- max(0, sum - error - k),  an alarm where sum > h

and a second one with the opposite sign, whose alarms show that a fall is over.

k is half the fall that must be noticed, in standard deviations, which is optimal for a fall of that
size (Moustakides, Annals of Statistics 14, 1986), and at least LEAST_REFERENCE: changes smaller
than one deviation are left to ADWIN. h follows from the mean number of episodes between false
alarms by Siegmund's approximation ("Sequential Analysis", 1985, chapter II). Errors of successive
episodes may be correlated: their deviation is multiplied by sqrt((1 + r) / (1 - r)) for an
autocorrelation r at lag 1.

Measured in docs/benchmarks.md, "Falls of rewards".

One episode alone raises no alarm: it contributes at most CAP of h. While the sum is above HELD of h
the model is not updated, so that a fall is not learnt as the new level; if it was none, its errors
count in the deviation afterwards.
"""

import math
from dataclasses import dataclass, field
from operator import mul
from typing import Annotated

from pydantic import Field, FiniteFloat

from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.drift import Drift

DAY_S = 86_400.0
HARMONICS = (1, 2)
SIZE = 1 + 2 * len(HARMONICS)  # coefficients: level, then cosine and sine of each harmonic
CAP, HELD = 0.6, 0.5  # shares of the threshold
LEAST_REFERENCE = 0.5  # standard deviations
FIRST_EPISODES = 15  # without alarms, a day: deviation and cycle are not known yet
OVERSHOOT = 1.166  # Siegmund's correction for discrete steps
CLIPPED = 2.5  # standard deviations: a larger error counts as one of this size in the level
OUTLIER = 5.0  # standard deviations: and in the deviation
PRIOR_EPISODES = 2  # weight of the prior deviation, half of the fall
PRIOR_UNCORRELATED = 5  # episodes: weight of the prior autocorrelation, 0
LEAST_DEVIATION = 1e-3  # share of the level
MAX_CORRELATION = 0.8

Coefficients = Annotated[list[FiniteFloat], Field(min_length=SIZE, max_length=SIZE)]


class FallSettings(Settings):
    """Falls that are noticed, and how often there may be a false alarm."""

    share: float = Field(default=0.10, gt=0, lt=1)  # of the level of the rewards
    between_false_alarms: float = Field(default=5000.0, ge=10)  # episodes
    memory: float = Field(default=200.0, ge=10)  # episodes that level, cycle and deviation follow


def alarm_threshold(reference: float, between: float) -> float:
    """h for the reference value k and the mean number of steps between false alarms.

    Solves between = (exp(2 k b) - 2 k b - 1) / (2 k^2), b = h + OVERSHOOT, by iteration.
    """
    bound = 1.0
    for _ in range(8):
        grown = 2 * reference * reference * between + 2 * reference * bound
        bound = math.log1p(grown) / (2 * reference)
    return max(bound - OVERSHOOT, 1.0)


def _regressors(time: float) -> list[float]:
    phases = [2 * math.pi * number * (time % DAY_S) / DAY_S for number in HARMONICS]
    return [1.0, *(wave(phase) for phase in phases for wave in (math.cos, math.sin))]


def _dot(one: list[float], other: list[float]) -> float:
    return math.fsum(map(mul, one, other))


def _prior() -> list[list[float]]:
    return [[float(row == column) for column in range(SIZE)] for row in range(SIZE)]


@dataclass
class Excursion:
    """A CUSUM, and the errors since it was 0."""

    excess: FiniteFloat = 0.0
    errors: FiniteFloat = 0.0  # their sum
    episodes: int = 0

    def add(self, step: float, error: float) -> None:
        self.excess = max(0.0, self.excess + step)
        self.errors = self.errors + error if self.excess else 0.0
        self.episodes = self.episodes + 1 if self.excess else 0


@dataclass
class FallDetector:
    """Detector of one stream. An episode is the mean of `block` successive rewards.

    All fields are its state and are saved; settings are passed in.
    """

    coefficients: Coefficients | None = None  # None: before the first episode
    covariance: Annotated[list[Coefficients], Field(min_length=SIZE, max_length=SIZE)] = field(
        default_factory=_prior
    )  # of the coefficients, divided by the variance of an error
    squares: FiniteFloat = 0.0  # of errors, with exponential weights
    products: FiniteFloat = 0.0  # of successive standardised errors
    weight: FiniteFloat = 0.0  # of the two sums
    last: FiniteFloat = 0.0  # standardised error of the last episode
    down: Excursion = field(default_factory=Excursion)
    up: Excursion = field(default_factory=Excursion)
    held_squares: FiniteFloat = 0.0  # of errors that were not learnt
    held: int = 0
    seen: int = 0  # episodes
    total: FiniteFloat = 0.0  # of the block so far
    count: int = 0

    def add(self, time: float, reward: float, block: int, settings: FallSettings) -> Drift | None:
        """Add a reward of the policy; return the change that it reveals."""
        self.total += reward
        self.count += 1
        if self.count < block:
            return None
        episode, self.total, self.count = self.total / self.count, 0.0, 0
        return self._add_episode(time, episode, settings)

    def _add_episode(self, time: float, reward: float, settings: FallSettings) -> Drift | None:
        if self.coefficients is None:
            self.coefficients = [reward] + [0.0] * (SIZE - 1)
            return None
        at, model = _regressors(time), self.coefficients
        level = model[0]
        deviation = self._deviation(abs(level), settings)
        gains = [_dot(row, at) for row in self.covariance]
        spread = 1.0 + _dot(at, gains)  # prediction variance over that of an error
        error = reward - _dot(model, at)
        scale = deviation * math.sqrt(spread)
        correlation = self.products / (self.weight + PRIOR_UNCORRELATED)
        correlation = min(max(correlation, 0.0), MAX_CORRELATION)
        inflation = math.sqrt((1 + correlation) / (1 - correlation))
        scale *= inflation
        fall = settings.share * max(abs(level), deviation)
        reference = max(fall / 2 / (deviation * inflation), LEAST_REFERENCE)
        threshold = alarm_threshold(reference, settings.between_false_alarms)
        self.seen += 1
        for sign, side in ((-1, self.down), (1, self.up)):
            side.add(min(sign * error / scale - reference, CAP * threshold), error)
            if side.excess > threshold and self.seen >= FIRST_EPISODES:
                after = level + side.errors / side.episodes
                self.move_to(after)
                return Drift(time, "rewards", "policy", level, after, deviation)
        square = min(error * error / spread, (OUTLIER * deviation) ** 2)
        if max(self.down.excess, self.up.excess) > HELD * threshold and self.seen >= FIRST_EPISODES:
            self.held_squares += square
            self.held += 1
        else:
            self._update(error, square, gains, spread, deviation, settings.memory)
        return None

    def _deviation(self, level: float, settings: FallSettings) -> float:
        """Standard deviation of an error, one standard error above its estimate.

        A prior counts as some episodes. Too small a deviation would cause false alarms.
        """
        prior = settings.share / 2 * level
        weight = PRIOR_EPISODES + self.weight
        variance = (PRIOR_EPISODES * prior * prior + self.squares) / weight
        deviation = math.sqrt(variance) * (1 + 1 / math.sqrt(2 * weight))
        return max(deviation, LEAST_DEVIATION * level) or 1.0

    def _update(
        self,
        error: float,
        square: float,
        gains: list[float],
        spread: float,
        deviation: float,
        memory: float,
    ) -> None:
        """Step of the Kalman filter, and of the sums; errors that were held are noise now."""
        assert self.coefficients is not None
        scale = deviation * math.sqrt(spread)
        clipped = min(max(error / scale, -CLIPPED), CLIPPED)
        for row, gain in enumerate(gains):
            self.coefficients[row] += gain / spread * clipped * scale
            for column, other in enumerate(gains):
                self.covariance[row][column] -= gain * other / spread
        for row in range(SIZE):
            self.covariance[row][row] += 1 / (memory * memory)  # coefficients drift
            self._limit_variance(row)
        kept = 1 - 1 / memory
        self.squares = kept * self.squares + square + self.held_squares
        self.products = kept * self.products + clipped * self.last
        self.weight = kept * self.weight + 1 + self.held
        self.last, self.held_squares, self.held = clipped, 0.0, 0

    def _limit_variance(self, row: int) -> None:
        """Keep the variance of a coefficient within its prior, 1.

        Rewards of the same hour say nothing about the cycle: without a limit it would grow.
        """
        if (variance := self.covariance[row][row]) > 1.0:
            factor = 1 / math.sqrt(variance)
            for column in range(SIZE):
                self.covariance[row][column] *= factor
                self.covariance[column][row] *= factor

    def move_to(self, level: float) -> None:
        """Go on from another level, after a change; the cycle is kept."""
        if self.coefficients is None:
            return
        self.coefficients[0] = level
        for other in range(1, SIZE):
            self.covariance[0][other] = self.covariance[other][0] = 0.0
        self.covariance[0][0] = 1.0
        self.down, self.up = Excursion(), Excursion()
        self.held_squares, self.held = 0.0, 0
