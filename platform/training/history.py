"""How a run's validation went: what its learning curve is drawn from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.run_folder import CONFIG, MANIFEST, METRICS, RunFolder

Effort = Literal["iterations", "decisions", "minutes"]  # what learning may be held against


class Point(NamedTuple):
    """A validation, and what had gone into the policy by then."""

    iterations: float
    decisions: float
    minutes: float  # of rolling out and learning; validations do not count
    validation: float


@dataclass(frozen=True)
class History:
    """A run, as far as it has come."""

    name: str
    folder: Path
    metric: str | None  # None: the run has not said
    iterations: int
    points: tuple[Point, ...]
    best_baseline: tuple[str, float] | None  # on the same sequences

    @property
    def values(self) -> list[float]:
        """Every validation that is a number: a run may diverge."""
        return [point.validation for point in self.points if math.isfinite(point.validation)]

    @property
    def best(self) -> Point:
        sound = (point for point in self.points if math.isfinite(point.validation))
        return min(sound, key=lambda point: point.validation)


def read_history(folder: Path, name: str | None = None) -> History:
    """Of a run that has ended or goes on; the manifest and the metrics are enough."""
    if not (folder / MANIFEST).is_file() or not (
        (folder / METRICS).is_file() or (folder / CONFIG).is_file()  # the first row is yet to come
    ):
        raise InputError(
            f"{str(folder)!r} is not a run; expected a folder that `loadmaster train` made, "
            f"with {MANIFEST} and {METRICS}"
        )
    run = RunFolder(folder)
    manifest = run.manifest
    try:
        rows = run.rows()
    except UnicodeDecodeError:
        raise InputError(f"{folder / METRICS} is not text; the run is damaged") from None
    metric = manifest.get("metric")
    history = History(
        name=name or folder.resolve().name,
        folder=folder,
        metric=None if metric is None else str(metric),
        iterations=int(rows[-1]["iteration"]) if rows else 0,
        points=tuple(_points(rows)),
        best_baseline=_best_baseline(manifest, folder),
    )
    if not history.values:
        raise InputError(f"{str(folder)!r} has no validation yet; nothing to draw")
    return history


def _points(rows: Iterable[Mapping[str, float]]) -> Iterator[Point]:
    decisions = seconds = 0.0
    for row in rows:
        decisions = row.get("decisions_in_all", decisions)
        seconds += row.get("seconds", 0.0)
        if "validation" in row:
            yield Point(row["iteration"], decisions, seconds / 60, row["validation"])


def _best_baseline(manifest: Mapping[str, Any], folder: Path) -> tuple[str, float] | None:
    try:
        known = [(name, float(value)) for name, value in manifest.get("baselines", {}).items()]
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{folder / MANIFEST}: baselines are no figures; the run is damaged"
        ) from None
    sound = (pair for pair in known if math.isfinite(pair[1]))
    return min(sound, key=lambda pair: pair[1], default=None)


def read_histories(given: Sequence[str]) -> list[History]:
    """Of runs given as RUN or NAME=RUN; folders that are called alike go by their paths."""
    named = [_name_and_folder(text) for text in given]
    by_folder = [name or folder.resolve().name for name, folder in named]
    alike = Counter(by_folder)
    names = [
        short if name or alike[short] == 1 else str(folder)
        for (name, folder), short in zip(named, by_folder, strict=True)
    ]
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(
                f"{times} runs are called {name!r}; expected different names, as NAME=RUN"
            )
    return [read_history(folder, name) for name, (_, folder) in zip(names, named, strict=True)]


def _name_and_folder(text: str) -> tuple[str | None, Path]:
    name, equals, folder = text.partition("=")
    if not equals or Path(text).exists():  # a folder's own name may hold the sign
        return None, Path(text)
    if not name or not folder:
        raise InputError(f"{text!r} names no run; expected RUN or NAME=RUN")
    return name, Path(folder)


def common_metric(histories: Sequence[History]) -> str:
    """What all of them measure; those that have not said are taken at the others' word."""
    metrics = {history.metric for history in histories if history.metric is not None}
    if len(metrics) > 1:
        raise InputError(f"the runs measure {', '.join(sorted(metrics))}; expected one metric")
    return metrics.pop() if metrics else "validation"
