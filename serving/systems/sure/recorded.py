"""A recorded job and its load as files of the environment, for retraining.

The environment scales a load by the longest task, so counts are scaled back by `load_scale`. All of
its sources get the same load: the work of a source with a larger one is scaled instead, and so are
the records on its edges.
"""

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling import state as cols
from loadmaster.envs.stream_scaling.jobs import PEAK, PEAK_INSTANCES
from loadmaster.serving.system import RecordedInput
from loadmaster.serving.systems.sure.schema import SureState

JOB_FILE, COUNTS_FILE = "job.yaml", "counts.csv"
LEAST_MIN = 120  # of a load that is worth training on
LEAST_SHARE = 0.01  # duration of a task without records, of the longest
MINUTE_S = 60

Floats = NDArray[np.float64]


def recorded_input(states: Iterable[tuple[float, SureState]]) -> RecordedInput | None:
    """Job of the last state, and the load of all states of that job; None if it is too short."""
    counts: dict[int, float] = {}  # records by minute since 1970, of a source on average
    latest: SureState | None = None
    for time, state in states:
        if latest is not None and state.job != latest.job:
            counts.clear()
        latest = state
        snapshot = state.parsed.snapshot
        arrived = snapshot.metrics[:, snapshot.job.source >= 0, cols.IN_RATE].mean(1)
        first = int(time // MINUTE_S) - len(arrived) + 1
        for place in np.flatnonzero(~np.isnan(arrived)).tolist():
            counts[first + place] = float(arrived[place])
    if latest is None or len(counts) < LEAST_MIN or not any(counts.values()):
        return None
    tasks, longest_min = _tasks(latest)
    settings: dict[str, Any] = {
        "jobs": [JOB_FILE],
        "environment.job": JOB_FILE,
        "environment.workload": "counts",
        "environment.week": "all",
        "environment.data": COUNTS_FILE,
        "environment.load_scale": float(f"{longest_min * PEAK / PEAK_INSTANCES:.6g}"),
        "environment.max_parallelism": max(task.max_parallelism for task in latest.tasks),
        "environment.max_instances": latest.max_instances,
        "environment.initial": max(int(np.median(latest.snapshots.parallelism[-1])), 1),
    }
    if latest.restart_minutes:
        settings["environment.restart_s"] = 60 * latest.restart_minutes
    files = {
        JOB_FILE: yaml.safe_dump({"tasks": tasks}, sort_keys=False),
        COUNTS_FILE: _table(counts),
    }
    return RecordedInput(settings, files)


def _tasks(state: SureState) -> tuple[list[dict[str, Any]], float]:
    """Tasks in the fields of a job file, and the minutes of a record in the longest."""
    parsed = state.parsed
    job, metrics = parsed.snapshot.job, parsed.snapshot.metrics.astype(np.float64)
    known = metrics[~np.isnan(metrics[:, 0, cols.PARALLELISM])]
    work = (known[:, :, cols.BUSY] * known[:, :, cols.PARALLELISM]).sum(0)
    finished, arrived = known[:, :, cols.OUT_RATE].sum(0), known[:, :, cols.IN_RATE].sum(0)
    minutes = np.divide(work, finished, out=np.zeros_like(work), where=finished > 0)
    source = job.source >= 0
    weight = np.where(source, arrived / max(float(arrived[source].mean()), 1e-12), 1.0)
    minutes *= weight
    longest = float(minutes.max()) or 1.0
    minutes = np.maximum(minutes, LEAST_SHARE * longest)
    by_name = {task.name: task for task in state.tasks}
    rows = []
    for place, name in enumerate(parsed.names):
        own, task = slice(job.parent_at[place], job.parent_at[place + 1]), by_name[name]
        parents = job.parent[own]
        row = {
            "name": name,
            "duration": float(f"{minutes[place]:.6g}"),
            "parents": [parsed.names[parent] for parent in parents],
            "key_groups": task.key_groups or task.max_parallelism,
            "partitions": task.max_parallelism,
            "chained": task.chained,
        }
        if len(parents):
            ratios = job.ratio[own] * weight[parents]
            row["selectivity"] = [float(f"{ratio:.6g}") for ratio in ratios]
        rows.append(row)
    return rows, longest


def _table(counts: dict[int, float]) -> str:
    """CSV with a row for each minute; those without a report are interpolated."""
    known = sorted(counts)
    minutes = np.arange(known[0], known[-1] + 1)
    values = np.interp(minutes, known, [counts[minute] for minute in known])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["datetime", "count"])
    for minute, value in zip(minutes.tolist(), values.tolist(), strict=True):
        moment = datetime.fromtimestamp(minute * MINUTE_S, UTC)
        writer.writerow([f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{value:.6g}"])
    return text.getvalue()
