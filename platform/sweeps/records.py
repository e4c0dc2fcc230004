"""What is known of a sweep's trials, and the files that say so."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadmaster.platform.files import written_whole
from loadmaster.platform.sweeps.space import in_words
from loadmaster.platform.sweeps.sweep import Sweep

BEST, TRIALS = "best.yaml", "trials.csv"


@dataclass(frozen=True)
class Record:
    """One trial, as far as it has come."""

    name: str
    parameters: Mapping[str, Any]  # what was drawn, by the settings' names
    iterations: int
    value: float | None  # the best the metric has been; None before the first report
    state: str  # waiting, running, finished, stopped (early), diverged, failed
    seconds: float
    fault: str = ""  # why it failed

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "running")


@dataclass(frozen=True)
class Outcome:
    """A sweep that has ended, or was interrupted."""

    records: tuple[Record, ...]
    interrupted: bool

    def best(self, sweep: Sweep) -> Record | None:
        """The trial that got furthest, if any was judged."""
        best: Record | None = None
        for record in self.records:
            if record.value is None or not math.isfinite(record.value):
                continue
            if best is None or sweep.better(record.value, best.value or 0.0):
                best = record
        return best


def record_of(trial: Any, sweep: Sweep) -> Record:
    """What Tune knows of one of its trials."""
    last: Mapping[str, Any] = trial.last_result or {}
    iterations = int(last.get("iteration", 0))
    value = trial.metric_analysis.get(sweep.metric, {}).get(sweep.settings.mode)
    state = {
        "PENDING": "waiting",
        "PAUSED": "waiting",
        "RUNNING": "running",
        "ERROR": "failed",
    }.get(trial.status)
    if state is None:
        state = "finished" if iterations >= sweep.iterations else "stopped"
        if sweep.metric in last and not math.isfinite(last[sweep.metric]):
            state = "diverged"
    return Record(
        name=Path(trial.path).name,
        parameters=sweep.space.settle(trial.config),
        iterations=iterations,
        value=None if value is None else float(value),
        state=state,
        seconds=float(last.get("time_total_s", 0.0)),
        fault=_last_line(_trace(trial)) if state == "failed" else "",
    )


def _trace(trial: Any) -> str:
    """Of a failed trial: from this process, or from the folder of an earlier one."""
    here = Path(trial.error_file or "")
    return here.read_text(encoding="utf-8") if here.is_file() else trial.get_error() or ""


def _last_line(trace: str) -> str:
    """What a trace comes down to: its end, without the name of our own kind of error."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return lines[-1].removeprefix("loadmaster.envs.errors.InputError: ") if lines else "no trace"


def write_trials(records: Sequence[Record], sweep: Sweep, folder: Path) -> None:
    """trials.csv: one row a trial."""
    names = [dimension.name for dimension in sweep.space.dimensions]
    with written_whole(folder / TRIALS) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["trial", *names, "iterations", sweep.metric, "state", "seconds"])
        for record in records:
            parameters = [in_words(record.parameters[name]) for name in names]
            value = "" if record.value is None else f"{record.value:.6g}"
            ending = [record.iterations, value, record.state, f"{record.seconds:.1f}"]
            table.writerow([record.name, *parameters, *ending])


def write_best(best: Record, outcome: Outcome, sweep: Sweep, folder: Path, command: str) -> None:
    """best.yaml: a configuration that `loadmaster train` takes."""
    path = folder / BEST
    judged = sum(record.value is not None for record in outcome.records)
    config = sweep.space.config(best.parameters).model_dump(mode="json", exclude_unset=True)
    with written_whole(path) as file:
        file.write(
            f"# Purpose: {sweep.settings.purpose}: the best of {judged} trials, {best.name}\n"
            f"# Reached: {sweep.metric} {best.value:.6g} within {best.iterations} iterations\n"
            f"# Found:   {command}\n"
            f"# Command: loadmaster train {sweep.settings.system} --config {path}\n\n"
        )
        yaml.safe_dump(config, file, sort_keys=False)
