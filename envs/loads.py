"""Loads: counts a minute of an episode, drawn by its seed, and files of them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import column_names, read_csv, trace_path

Floats = NDArray[np.float64]

AZURE = "azure_fn2021/pattern_diurnal.csv"  # in the folder of the traces
# Columns of counts, any one of them.
NAMES = ("view", "invocations_per_minute", "count", "records", "requests")
TIMES = ("datetime", "minute", "time")


class Load(Protocol):
    """Draws the load of an episode."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        """(minutes,) counts, and the minute of the week at which the first is."""


@dataclass(frozen=True)
class Counts:
    """Counts of a trace; episodes begin anywhere in a part of it, and go on from its begin."""

    name: str
    description: str
    counts: Floats  # (minutes of the part,)
    first_minute: int  # of the part, in the week

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        start = int(rng.integers(len(self.counts)))
        places = (start + np.arange(minutes)) % len(self.counts)
        return self.counts[places], (self.first_minute + start) % (7 * 1440)


def load_named_counts(workload: str, data: Path | None, place: str) -> Counts:
    """The counts of a published trace, `place` in the folder of the traces or the file itself."""
    path = trace_path(workload, data)
    for file in (path, path / place, path / Path(place).name):
        if file.is_file():
            return read_counts(file)
    raise InputError(f"{path}: no trace found; expected {place} in it")


def load_own_counts(workload: str, data: Path | None) -> Counts:
    """The counts of the user's file."""
    path = trace_path(workload, data)
    if not path.is_file():
        raise InputError(f"{path}: a folder; workload {workload!r} expects --set data=FILE")
    return read_counts(path)


@lru_cache(maxsize=4)
def read_counts(path: Path) -> Counts:
    """Counts of consecutive minutes; a gap or a negative count is an InputError."""
    import pandas as pd

    header = column_names(path)
    column = next((name for name in NAMES if name in header), None)
    time = next((name for name in TIMES if name in header), None)
    if column is None:
        raise InputError(f"{path}: no column of counts; expected one of {', '.join(NAMES)}")
    table = read_csv(path, [column, *([time] if time else [])])
    counts = table.numbers(column)
    if not len(counts) or not counts.any():
        raise InputError(f"{path}: no records at all; expected counts a minute, some above 0")
    first = 0
    if time is not None:
        moments = pd.to_datetime(pd.Series(table.text(time)), errors="coerce", utc=True)
        minutes = (moments - moments.iloc[0]).dt.total_seconds().to_numpy() / 60
        wrong = ~(minutes == np.arange(len(minutes)))
        if wrong.any():
            raise table.fault(int(wrong.argmax()), time, "the minute after that of the line before")
        start = moments.iloc[0]
        first = start.day_of_week * 1440 + start.hour * 60 + start.minute
    return Counts(path.stem, f"{len(counts):,} minutes of {path.name}", counts, first)


def wandering(minutes: int, rng: np.random.Generator, keep: float, spread: float) -> Floats:
    """(minutes,) a factor around 1 that changes slowly: an autoregressive process by the minute."""
    steps = rng.normal(0.0, spread * np.sqrt(1 - keep**2), minutes)
    level = np.empty(minutes)
    last = rng.normal(0.0, spread)
    for place in range(minutes):
        last = keep * last + steps[place]
        level[place] = last
    return np.exp(level - spread**2 / 2)


def bursts(
    minutes: int,
    rng: np.random.Generator,
    every_min: float,
    length_min: float,
    heights: tuple[float, float],
) -> Floats:
    """(minutes,) a factor of 1, and more in bursts, which decay; mean gap and length in minutes."""
    factor = np.ones(minutes)
    place = rng.exponential(every_min)
    while place < minutes:
        length = 1 + int(rng.exponential(length_min))
        start = int(place)
        height = rng.uniform(*heights)
        span = np.arange(min(4 * length, minutes - start))
        factor[start : start + len(span)] += height * np.exp(-span / length)
        place += rng.exponential(every_min)
    return factor
