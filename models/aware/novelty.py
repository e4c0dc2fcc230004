"""Novelty of an application: distance of its estimated parameters from those of known ones.

The parameters are those that a policy estimates and remembers, so that a decision alone suffices.
They are whitened by the covariance of the known applications, so a distance is a Mahalanobis
distance. An application is unknown if the nearest known one is farther away than it is for most
applications of the training, each compared with the others (`novelty_limit`).
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.applications import TRAIN, Application, compose, generated_split
from loadmaster.envs.pod_scaling.state import (
    CPU_S,
    IO_S,
    MEMORY_MIB,
    REQUEST_MIB,
    SLO_S,
    Floats,
    app_row,
)
from loadmaster.models.aware.estimates import IO_SEEN, REQUESTS, STEPS, W

COORDINATES = (
    "log cpu time", "io share of slo", "cpu share of slo", "log idle memory", "log request memory",
)  # fmt: skip
LIMIT = 1.73  # printed by `python -m loadmaster.models.aware.novelty_limit`
LEAST_STEPS = 10  # control steps before an application is compared
LEAST_REPORTS, LEAST_LATENCIES = 20.0, 5.0  # that memory and I/O time are estimated from


class Novelty(NamedTuple):
    """Distance of an application from the nearest known one."""

    distance: float

    @property
    def is_unknown(self) -> bool:
        return self.distance > LIMIT

    @property
    def note(self) -> str:
        return (
            f"the application is unlike those of the training: distance {self.distance:.3g}, "
            f"expected at most {LIMIT:g}"
        )


def coordinates(app: Floats) -> Floats:
    """(COORDINATES,) of an application, a row of `SimState.apps`."""
    return np.array(
        [
            math.log(app[CPU_S]),
            app[IO_S] / app[SLO_S],
            app[CPU_S] / app[SLO_S],
            math.log(app[MEMORY_MIB]),
            math.log(app[REQUEST_MIB]),
        ]
    )


def estimated_coordinates(app: Floats, estimates: Floats) -> Floats:
    """The same by estimates, NaN where too little was observed yet."""
    found = coordinates(app)
    if estimates[REQUESTS] <= 0:
        found[[0, 2]] = np.nan
    if estimates[IO_SEEN] < LEAST_LATENCIES:
        found[1] = np.nan
    if estimates[W] < LEAST_REPORTS:
        found[[3, 4]] = np.nan
    return found


class KnownApplications:
    """Applications that others are compared with."""

    def __init__(self, applications: Iterable[Application]) -> None:
        rows = np.array([coordinates(np.array(app_row(each))) for each in applications])
        if len(rows) <= len(COORDINATES):
            raise InputError(
                f"{len(rows)} known applications; expected more than {len(COORDINATES)}"
            )
        self._mean = rows.mean(0)
        self._whitening = np.linalg.cholesky(np.linalg.inv(np.cov(rows, rowvar=False)))
        self._points = (rows - self._mean) @ self._whitening

    def distance(self, row: Floats, without: int | None = None) -> float:
        """To the nearest one; a coordinate that is NaN counts as the mean.

        `without`: the number of a known application that does not count.
        """
        point = np.where(np.isnan(row), 0.0, row - self._mean) @ self._whitening
        squares = np.square(self._points - point).sum(1)
        if without is not None:
            squares[without] = math.inf
        return math.sqrt(squares.min())

    def compare(self, app: Floats, estimates: Floats) -> Novelty | None:
        """The novelty of an application by its estimates; None before LEAST_STEPS."""
        if estimates[STEPS] < LEAST_STEPS:
            return None
        return Novelty(self.distance(estimated_coordinates(app, estimates)))


@lru_cache(maxsize=1)
def trained_applications() -> KnownApplications:
    """The generated training set."""
    return KnownApplications(map(compose, generated_split(TRAIN)))
