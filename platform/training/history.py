"""A run's validations, read from its files, and labels of its metric."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Measure
from loadmaster.models.storage import Location, Place, is_remote, parse_place
from loadmaster.platform.training.run_folder import CONFIG, MANIFEST, METRICS, RunFolder

Effort = Literal["iterations", "decisions", "minutes"]  # x axis of a learning curve
UNKNOWN = Measure("validation", "validation", "")


def describe_metric(metric: Measure) -> dict[str, Any]:
    """Entries of a run's manifest."""
    own = asdict(metric)
    return {"metric": own.pop("name"), "metric_labels": own}


def _metric(manifest: Mapping[str, Any], folder: Place) -> Measure | None:
    """The metric in a manifest; None if it has none yet. Old runs have its name alone."""
    name = manifest.get("metric")
    if name is None:
        return None
    labels = {"label": str(name).removesuffix("_s"), "unit": "s" if str(name)[-2:] == "_s" else ""}
    try:
        return Measure(str(name), **manifest.get("metric_labels", labels))
    except TypeError:
        raise InputError(
            f"{folder / MANIFEST}: metric_labels are malformed; the run is damaged"
        ) from None


class Point(NamedTuple):
    """One validation, and the training effort before it."""

    iterations: float
    decisions: float
    minutes: float  # of rolling out and learning, without validations
    validation: float


@dataclass(frozen=True)
class History:
    """Validations of a run so far."""

    name: str
    folder: Place
    metric: Measure  # UNKNOWN: not in the manifest yet
    iterations: int
    points: tuple[Point, ...]
    best_baseline: tuple[str, float] | None  # on the same sequences

    @property
    def values(self) -> list[float]:
        """Finite validations: a run may diverge."""
        return [point.validation for point in self.points if math.isfinite(point.validation)]

    @property
    def best(self) -> Point:
        finite = (point for point in self.points if math.isfinite(point.validation))
        return min(finite, key=lambda point: self.metric.rank(point.validation))


def read_history(folder: Place, name: str | None = None) -> History:
    """Read a finished or running run; manifest.json and metrics.csv are enough."""
    if isinstance(folder, Location):
        with TemporaryDirectory() as scratch:
            folder.download(Path(scratch), folder.entries() & {MANIFEST, METRICS, CONFIG})
            return _read_history(Path(scratch), folder, name or folder.name)
    return _read_history(folder, folder, name or folder.resolve().name)


def _read_history(copy: Path, folder: Place, name: str) -> History:
    """Read the files in `copy`; `folder` is the run's, for the errors."""
    if not (copy / MANIFEST).is_file() or not (
        (copy / METRICS).is_file() or (copy / CONFIG).is_file()  # no row was written yet
    ):
        raise InputError(
            f"{str(folder)!r} is not a run; expected a folder that `loadmaster train` made, "
            f"with {MANIFEST} and {METRICS}"
        )
    run = RunFolder(copy)
    manifest = run.manifest
    try:
        rows = run.rows()
    except UnicodeDecodeError:
        raise InputError(f"{folder / METRICS} is not text; the run is damaged") from None
    metric = _metric(manifest, folder) or UNKNOWN
    history = History(
        name=name,
        folder=folder,
        metric=metric,
        iterations=int(rows[-1]["iteration"]) if rows else 0,
        points=tuple(_points(rows)),
        best_baseline=_best_baseline(manifest, metric, folder),
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


def _best_baseline(
    manifest: Mapping[str, Any], metric: Measure, folder: Place
) -> tuple[str, float] | None:
    try:
        known = [(name, float(value)) for name, value in manifest.get("baselines", {}).items()]
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{folder / MANIFEST}: baselines are not numbers; the run is damaged"
        ) from None
    finite = (pair for pair in known if math.isfinite(pair[1]))
    return min(finite, key=lambda pair: metric.rank(pair[1]), default=None)


def read_histories(given: Sequence[str]) -> list[History]:
    """Read runs given as RUN or NAME=RUN; folders with equal names are named by their paths."""
    named = [_name_and_folder(text) for text in given]
    by_folder = [name or _name(folder) for name, folder in named]
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


def _name(folder: Place) -> str:
    return folder.resolve().name if isinstance(folder, Path) else folder.name


def _name_and_folder(text: str) -> tuple[str | None, Place]:
    name, equals, folder = text.partition("=")
    # The name of a folder and the query of a URL may contain '='.
    if not equals or is_remote(text) or Path(text).exists():
        return None, parse_place(text)
    if not name or not folder:
        raise InputError(f"{text!r} names no run; expected RUN or NAME=RUN")
    return name, parse_place(folder)


def common_metric(histories: Sequence[History]) -> Measure:
    """The one metric of all runs; those without an entry are assumed to have it."""
    metrics = {history.metric.name: history.metric for history in histories}
    metrics.pop(UNKNOWN.name, None)
    if len(metrics) > 1:
        raise InputError(f"the runs measure {', '.join(sorted(metrics))}; expected one metric")
    return next(iter(metrics.values()), UNKNOWN)
