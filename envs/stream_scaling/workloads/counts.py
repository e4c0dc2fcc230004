"""Import of counts a minute: ClarkNet, Azure, or any CSV with one row a minute."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling.settings import WEEK_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.workloads.load import Counts
from loadmaster.envs.traces import column_names, read_csv, trace_path

NAMES = ("view", "invocations_per_minute", "count", "records")  # columns of counts, any one
TIMES = ("datetime", "minute", "time")


def clarknet(settings: StreamScalingSettings) -> Counts:
    return _named(settings, "clarknet/clarknet_per_minute.csv")


def azure(settings: StreamScalingSettings) -> Counts:
    return _named(settings, "azure_fn2021/pattern_diurnal.csv")


def custom(settings: StreamScalingSettings) -> Counts:
    path = trace_path(settings.workload, settings.data)
    if not path.is_file():
        raise InputError(f"{path}: a folder; workload 'counts' expects --set data=FILE")
    return _part(settings, path)


def _named(settings: StreamScalingSettings, place: str) -> Counts:
    path = trace_path(settings.workload, settings.data)
    if path.is_file():
        return _part(settings, path)
    for file in (path / place, path / Path(place).name):
        if file.is_file():
            return _part(settings, file)
    raise InputError(f"{path}: no trace found; expected {place} in it")


def _part(settings: StreamScalingSettings, path: Path) -> Counts:
    whole = _read(path)
    if settings.week == "all":
        return whole
    if len(whole.counts) < 2 * WEEK_MIN:
        raise InputError(
            f"setting week: {settings.week}; {path} has {len(whole.counts):,} minutes, expected "
            f"{2 * WEEK_MIN:,} or more"
        )
    first = slice(0, WEEK_MIN) if settings.week == "first" else slice(WEEK_MIN, 2 * WEEK_MIN)
    return Counts(
        whole.name, f"{whole.description}, {settings.week} week", whole.counts[first],
        whole.first_minute,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _read(path: Path) -> Counts:
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
