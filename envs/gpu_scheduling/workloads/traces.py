"""Jobs that were recorded somewhere: read from a CSV file, checked row by row."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds, select_jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.traces import trace_path


class RecordedJob(NamedTuple):
    """A job as a trace tells it; resources in percent, per instance."""

    job_id: int
    arrival_s: float
    duration_s: float
    instances: int
    gpu: int
    cpu: int
    gpu_type: int
    comm: float
    user: str


@dataclass(frozen=True)
class Trace:
    """A workload of recorded jobs."""

    name: str
    description: str
    jobs: Jobs
    mean_gpu_s: float
    keeps_time: bool = True

    @property
    def size(self) -> int:
        return len(self.jobs.job_id)

    def draw(self, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
        if consecutive:
            first = int(rng.integers(self.size - count + 1))
            return select_jobs(self.jobs, slice(first, first + count))
        return select_jobs(self.jobs, rng.permutation(self.size)[:count])


def build_trace(
    name: str, records: Sequence[RecordedJob], origin: Path | str, description: str
) -> Trace:
    """Lay the jobs out in arrays, in the order of (arrival, id)."""
    if not records:
        raise InputError(f"{origin}: holds no GPU jobs; expected at least one")
    twice = [number for number, count in Counter(r.job_id for r in records).items() if count > 1]
    if twice:
        raise InputError(f"{origin}: job {twice[0]} stands there twice; expected each job once")
    ordered = sorted(records, key=lambda job: (job.arrival_s, job.job_id))
    users = {user: number for number, user in enumerate(dict.fromkeys(r.user for r in ordered))}
    jobs = Jobs(
        arrival_s=np.array([job.arrival_s for job in ordered], np.float64),
        duration_s=np.array([job.duration_s for job in ordered], np.float64),
        instances=np.array([job.instances for job in ordered], np.int64),
        gpu=np.array([job.gpu for job in ordered], np.int64),
        cpu=np.array([job.cpu for job in ordered], np.int64),
        gpu_type=np.array([job.gpu_type for job in ordered], np.int64),
        comm=np.array([job.comm for job in ordered], np.float64),
        user=np.array([users[job.user] for job in ordered], np.int64),
        job_id=np.array([job.job_id for job in ordered], np.int64),
    )
    return Trace(name, description, jobs, float(gpu_seconds(jobs).mean()))


class Row:
    """One line of a trace; what cannot be read of it is named with its place."""

    def __init__(self, path: Path, line: int, fields: dict[str, str]) -> None:
        self._place = f"{path}, line {line}"
        self._fields = fields

    def text(self, column: str) -> str:
        return self._fields[column]

    def number(self, column: str, least: float = 0.0) -> float:
        try:
            value = float(self._fields[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            raise self.fault(column, f"a number of {least:g} or more")
        return value

    def whole(self, column: str, least: int = 0) -> int:
        value = self.number(column, least)
        if value != int(value):
            raise self.fault(column, f"a whole number of {least} or more")
        return int(value)

    def gpu_type(self, column: str, types: Sequence[str]) -> int:
        """The place of the type in `types`; where the row names none, ANY_TYPE."""
        name = self._fields[column]
        if name and name not in types:
            raise self.fault(column, f"a GPU type: {', '.join(types)}")
        return types.index(name) if name else ANY_TYPE

    def fault(self, column: str, expected: str) -> InputError:
        return InputError(f"{self._place}: {column} {self._fields[column]!r}; expected {expected}")


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a .csv or .csv.gz file whose first line names its columns."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", newline="", encoding="utf-8") as text:
            reader = csv.reader(text)
            header = next(reader, [])
            for column in columns:
                if column not in header:
                    raise InputError(f"{path}: no column {column!r}; expected {', '.join(columns)}")
            for fields in reader:
                if len(fields) != len(header):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(fields)} fields; "
                        f"expected {len(header)}"
                    )
                yield Row(path, reader.line_num, dict(zip(header, fields, strict=True)))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error):
        raise InputError(
            f"{path}: unreadable or damaged; expected a .csv or .csv.gz file"
        ) from None


def find_file(settings: GpuSchedulingSettings, *names: str) -> Path:
    """The first of these files in the folder of traces; that itself where it is a file."""
    path = trace_path(settings.workload, settings.data)
    if path.is_file():
        return path
    for name in names:
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: no trace found; expected {names[0]} in it")


def told(jobs: int, rows: int, path: Path) -> str:
    """Of a file some of whose rows ask for no GPU."""
    without = f"; left out: {rows - jobs} without a GPU" if rows > jobs else ""
    return f"{jobs} jobs of {path.name}{without}"
