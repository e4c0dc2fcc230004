"""Records of a sweep's trials, the files they are written to, and their display."""

import csv
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadmaster.models.files import atomic_text_file
from loadmaster.models.storage import Place
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.space import in_words

BEST, TRIALS = "best.yaml", "trials.csv"
HUNG = "hung: "  # before the reason in Tune's error file
STATES = {"PENDING": "waiting", "PAUSED": "waiting", "RUNNING": "running", "ERROR": "failed"}


@dataclass(frozen=True)
class Record:
    """State and best value of one trial."""

    name: str
    parameters: Mapping[str, Any]  # drawn values, by setting
    iterations: int
    value: float | None  # best value of the metric; None before the first report
    state: str  # waiting, running, finished, stopped (early), diverged, failed, hung
    seconds: float
    fault: str = ""  # why it failed, or since when it hung

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "running")

    @property
    def settings(self) -> str:
        """The drawn values as assignments."""
        return ", ".join(f"{name}={in_words(value)}" for name, value in self.parameters.items())


class Outcome(NamedTuple):
    """A sweep that has ended, or was interrupted."""

    records: tuple[Record, ...]
    interrupted: bool


def best_of(records: Sequence[Record], sweep: Sweep) -> Record | None:
    """The trial with the best finite value, if any."""
    finite = (each for each in records if each.value is not None and math.isfinite(each.value))
    return min(finite, key=lambda record: _rank(sweep, record), default=None)


def record_of(trial: Any, sweep: Sweep) -> Record:
    """Make a record of one of Tune's trials."""
    last: Mapping[str, Any] = trial.last_result or {}
    iterations = int(last.get("iteration", 0))
    value = trial.metric_analysis.get(sweep.metric, {}).get(sweep.settings.mode)
    state = STATES.get(trial.status)
    if state is None:
        state = "finished" if iterations >= sweep.iterations else "stopped"
        if sweep.metric in last and not math.isfinite(last[sweep.metric]):
            state = "diverged"
    fault = _fault(trial) if state == "failed" else ""
    if fault.startswith(HUNG):
        state, fault = "hung", fault.removeprefix(HUNG)
    return Record(
        name=Path(trial.path).name,
        parameters=sweep.space.settle(trial.config),
        iterations=iterations,
        value=None if value is None else float(value),
        state=state,
        seconds=float(last.get("time_total_s", 0.0)),
        fault=fault,
    )


def _fault(trial: Any) -> str:
    """Last line of the traceback, of this session or an earlier one; without InputError's name."""
    file = Path(trial.error_file or "")
    trace = file.read_text(encoding="utf-8") if file.is_file() else str(trial.get_error() or "")
    last = (trace.strip() or "no trace").splitlines()[-1].strip()
    # Ray appends advice to the line on a process that died.
    return last.removeprefix("loadmaster.envs.errors.InputError: ").partition(" Some common ")[0]


def write_trials(records: Sequence[Record], sweep: Sweep, folder: Path) -> None:
    """Write trials.csv, one row a trial."""
    names = [dimension.name for dimension in sweep.space.dimensions]
    with atomic_text_file(folder / TRIALS) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["trial", *names, "iterations", sweep.metric, "state", "seconds", "fault"])
        for record in records:
            parameters = [in_words(record.parameters[name]) for name in names]
            value = "" if record.value is None else f"{record.value:.6g}"
            ending = [record.iterations, value, record.state, f"{record.seconds:.1f}", record.fault]
            table.writerow([record.name, *parameters, *ending])


def write_best(
    best: Record,
    outcome: Outcome,
    sweep: Sweep,
    folder: Path,
    command: str,
    place: Place | None = None,
) -> None:
    """Write best.yaml, a configuration that `loadmaster train` takes; `place`: where it will be."""
    command_line = f"loadmaster train {sweep.settings.system} --config {(place or folder) / BEST}"
    reported = sum(record.value is not None for record in outcome.records)
    config = sweep.space.config(best.parameters).model_dump(mode="json", exclude_unset=True)
    with atomic_text_file(folder / BEST) as file:
        file.write(
            f"# Purpose: {sweep.settings.purpose}: the best of {reported} trials, {best.name}\n"
            f"# Reached: {sweep.metric} {best.value:.6g} within {best.iterations} iterations\n"
            f"# Found:   {command}\n"
            f"# Command: {command_line}\n\n"
        )
        yaml.safe_dump(config, file, sort_keys=False)


COLOURS = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "hung": "red",
    "diverged": "red",
}
PERIOD_S = 0.25  # between updates of the live table


class TrialDisplay:
    """A live table of trials on a terminal, a line a report elsewhere."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self.sweep, self.console = sweep, console
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.shown: dict[str, Record] = {}
        self.drawn_at = 0.0

    def update(self, records: Sequence[Record]) -> None:
        if not self.console.is_terminal:
            for record in records:
                line = _line(record, self.shown.get(record.name), self.sweep.metric)
                if line is not None:
                    self.console.print(line, soft_wrap=True, markup=False)
            self.shown = {record.name: record for record in records}
        elif time.monotonic() - self.drawn_at > PERIOD_S:
            max_rows = max(3, self.console.height - 5)
            self.live.update(trial_table(self.sweep, records, max_rows), refresh=True)
            self.drawn_at = time.monotonic()

    def print(self, text: str) -> None:
        # As Text: markup=False would apply to the live table too, which is redrawn below it.
        self.console.print(Text(text), soft_wrap=True)


def trial_table(sweep: Sweep, records: Sequence[Record], max_rows: int | None = None) -> Table:
    """The trials as a table; at most `max_rows` rows, running ones and the best of the others."""
    names = [dimension.name for dimension in sweep.space.dimensions]
    table = Table("trial", *short_names(names), "iteration", sweep.metric, "state", box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    best = best_of(records, sweep)
    for record in _chosen(sweep, records, max_rows):
        colour = COLOURS.get(record.state, "dim")
        table.add_row(
            record.name,
            *(in_words(record.parameters[name]) for name in names),
            f"{record.iterations}/{sweep.iterations}",
            "" if record.value is None else f"{record.value:.5g}",
            f"[{colour}]{record.state}[/]" + (f" {escape(record.fault)}" if record.fault else ""),
            style="bold" if record is best else None,
        )
    over = sum(record.over for record in records)
    table.caption = f"{over} of {sweep.settings.trials} trials over"
    table.caption_justify = "left"
    return table


def _chosen(sweep: Sweep, records: Sequence[Record], max_rows: int | None) -> list[Record]:
    if max_rows is None or len(records) <= max_rows:
        return list(records)
    wanted = sorted(records, key=lambda r: (r.state != "running", *_rank(sweep, r)))[:max_rows]
    return [record for record in records if record in wanted]


def _rank(sweep: Sweep, record: Record) -> tuple[bool, float]:
    """Sort key: the best first, those without a value last."""
    sign = 1 if sweep.settings.mode == "min" else -1
    return (record.value is None, sign * (record.value or 0.0))


def short_names(names: Sequence[str]) -> list[str]:
    """Names without their outermost group, if they stay distinct."""
    short = [name.split(".", 1)[-1] for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _line(record: Record, before: Record | None, metric: str) -> str | None:
    """A line on what changed in a trial, or None."""
    shown = (before.iterations, before.state) if before else (0, "waiting")
    if record.state == "waiting" or (record.iterations, record.state) == shown:
        return None
    if record.state == "running" and record.iterations == 0:
        return f"{record.name}: started with {record.settings}"
    parts = []
    if record.iterations != shown[0]:
        parts.append(f"iteration {record.iterations}")
        if record.value is not None:
            parts.append(f"{metric} {record.value:.5g} at best")
    if record.over:
        parts.append(record.state + (f": {record.fault}" if record.fault else ""))
    return f"{record.name}: {', '.join(parts)}" if parts else None
