"""The report of a sweep: one HTML file with data, style and script, which needs no network."""

import datetime
import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from ray.tune import ExperimentAnalysis

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file
from loadmaster.models.storage import Place
from loadmaster.platform.sweeps.folder import TUNE, SweepFolder
from loadmaster.platform.sweeps.importance import METHOD, importances
from loadmaster.platform.sweeps.records import BEST, Record, best_of, record_of, short_names
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.space import Dimension, in_words
from loadmaster.serving.console.page_bundle import bundle_modules, offline_page

REPORT = "report.html"
ASSETS = Path(__file__).parents[1]  # not importlib's: `platform` is a namespace, without files
MAX_POINTS = 200  # of a curve
MAX_LEVELS = 8  # whole numbers in so small a range are drawn as categories
UNFINISHED = "unfinished"  # begun and not over, in a sweep that may be under way or interrupted

Curve = tuple[list[int], list[float]]  # iterations, and the metric at each


def rewrite_report(folder: SweepFolder, sweep: Sweep) -> Path:
    """Write the report from the state that Tune has saved; the sweep may be under way."""
    if not folder.begun:
        raise InputError(
            f"{str(folder.place)!r} has no trials yet; expected a sweep that has begun"
        )
    storage = folder.tune_storage
    analysis = ExperimentAnalysis(
        f"{storage['storage_path']}/{TUNE}", storage_filesystem=storage.get("storage_filesystem")
    )
    records = sorted((record_of(t, sweep) for t in analysis.trials), key=lambda r: r.name)
    begun = [r if r.over or not r.iterations else replace(r, state=UNFINISHED) for r in records]
    return write_report(folder, sweep, begun, analysis)


def write_report(
    folder: SweepFolder, sweep: Sweep, records: Sequence[Record], analysis: ExperimentAnalysis
) -> Path:
    """Write the report; `analysis` has the trials' curves."""
    page = build_report(sweep, records, curves_of(analysis, sweep.metric), folder.place)
    with atomic_text_file(folder.path / REPORT) as file:
        file.write(page)
    return folder.path / REPORT


def curves_of(analysis: ExperimentAnalysis, metric: str) -> dict[str, Curve]:
    """The metric over the iterations of each trial that has reported."""
    curves = {}
    for trial in analysis.trials:
        frame = analysis.trial_dataframes.get(trial.trial_id)
        if frame is None or metric not in frame:
            continue
        # A trial that crashed went on from its last checkpoint, and repeated iterations.
        frame = frame.dropna(subset=[metric]).drop_duplicates("iteration", keep="last")
        frame = frame.sort_values("iteration").iloc[:: math.ceil(len(frame) / MAX_POINTS)]
        curves[Path(trial.path).name] = (frame["iteration"].tolist(), frame[metric].tolist())
    return curves


def build_report(
    sweep: Sweep, records: Sequence[Record], curves: Mapping[str, Curve], folder: Place
) -> str:
    """Build the page."""
    script = bundle_modules(ASSETS, "sweeps/script/main.js")
    style = _asset("replay/page.css") + _asset("sweeps/report.css")
    best = best_of(records, sweep)
    title = html.escape(f"Sweep {sweep.name}")
    return offline_page(
        _asset("sweeps/report.html"),
        style,
        script,
        "sweep-data",
        _page_data(sweep, records, curves, best, folder),
        title=title,
        subtitle=f"{title}: {html.escape(sweep.settings.purpose)}",
        headline=html.escape(_headline(sweep, records, best)),
        note=html.escape(_note(sweep, records)),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _headline(sweep: Sweep, records: Sequence[Record], best: Record | None) -> str:
    if best is None:
        return f"No result yet in {len(records)} trials"
    reported = sum(record.value is not None for record in records)
    return f"{best.name} is the best of {reported}: {sweep.metric} {best.value:.5g}"


def _note(sweep: Sweep, records: Sequence[Record]) -> str:
    states = Counter(record.state for record in records)
    counts = [f"{states[state]} {state}" for state in sorted(states, key=lambda s: -states[s])]
    scheduler = next((name for name, given in sweep.settings.scheduler if given), "none")
    searcher = next((name for name, given in sweep.settings.searcher if given), "random")
    return (
        f"{', '.join(counts)} of {sweep.settings.trials} trials of up to {sweep.iterations} "
        f"iterations; scheduler {scheduler}, searcher {searcher}; "
        f"written {datetime.datetime.now():%Y-%m-%d %H:%M}"
    )


def _page_data(
    sweep: Sweep,
    records: Sequence[Record],
    curves: Mapping[str, Curve],
    best: Record | None,
    folder: Place,
) -> dict[str, Any]:
    dimensions = sweep.space.dimensions
    shares, note = importances(sweep, records)
    names = [dimension.name for dimension in dimensions]
    return {
        "metric": sweep.metric,
        "mode": sweep.settings.mode,
        "iterations": sweep.iterations,
        "rungs": _rungs(sweep),
        "parameters": [
            _parameter(dimension, short)
            for dimension, short in zip(dimensions, short_names(names), strict=True)
        ],
        "trials": [_trial(record, dimensions, curves.get(record.name)) for record in records],
        "best": None if best is None else list(records).index(best),
        "command": None
        if best is None
        else f"loadmaster train {sweep.system.name} --config {folder / BEST}",
        "importance": {
            "method": METHOD,
            "note": note,
            "shares": [{**asdict(share), "evident": share.evident} for share in shares],
        },
    }


def _parameter(dimension: Dimension, short: str) -> dict[str, Any]:
    found = {"name": dimension.name, "short": short}
    if (levels := _levels(dimension)) is not None:
        return {**found, "categories": [in_words(level) for level in levels]}
    low, high = dimension.arguments[:2]
    return {**found, "log": dimension.kind == "loguniform", "low": low, "high": high}


def _levels(dimension: Dimension) -> Sequence[Any] | None:
    """The values that are drawn as categories; None on an axis of numbers."""
    if not dimension.numeric:
        return dimension.arguments
    low, high = dimension.arguments[:2]
    few = dimension.kind == "randint" and high - low < MAX_LEVELS
    return range(low, high + 1) if few else None


def _trial(record: Record, dimensions: Sequence[Dimension], curve: Curve | None) -> dict[str, Any]:
    drawn = [(_levels(d), record.parameters[d.name]) for d in dimensions]
    return {
        "name": record.name,
        "drawn": [v if levels is None else levels.index(v) for levels, v in drawn],
        "settings": [in_words(value) for _, value in drawn],
        "value": _finite(record.value),
        "state": record.state,
        "iterations": record.iterations,
        "seconds": record.seconds,
        "fault": record.fault,
        "curve": [] if curve is None else [[i, _finite(v)] for i, v in zip(*curve, strict=True)],
    }


def _rungs(sweep: Sweep) -> list[int]:
    """Iterations at which ASHA stops trials."""
    asha = sweep.settings.scheduler.asha
    if asha is None:
        return []
    last = asha.max_iterations or sweep.iterations
    rungs = (math.ceil(asha.grace_iterations * asha.reduction**k) for k in count())
    return list(takewhile(lambda rung: rung < last, rungs))


def _finite(value: float | None) -> float | None:
    """Replace infinity and nan, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
