"""Shows a sweep while it runs: a live table on a terminal, a line a report elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadmaster.platform.sweeps.records import Record
from loadmaster.platform.sweeps.space import in_words
from loadmaster.platform.sweeps.sweep import Sweep

COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "diverged": "red"}
PERIOD_S = 0.25  # between two looks of the live table


class TrialDisplay:
    """What the person who started the sweep sees."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self.sweep, self.console = sweep, console
        self.live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )
        self.shown: dict[str, Record] = {}
        self.drawn_at = 0.0

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.live.stop()

    def update(self, records: Sequence[Record]) -> None:
        """Show the trials as they are now."""
        if not self.live:
            for record in records:
                if (
                    line := _line(record, self.shown.get(record.name), self.sweep.metric)
                ) is not None:
                    self.console.print(line, soft_wrap=True, markup=False)
        self.shown = {record.name: record for record in records}
        if self.live and time.monotonic() - self.drawn_at > PERIOD_S:
            self._draw(records)

    def say(self, text: str) -> None:
        # As Text: markup=False would hold for the live table too, which is drawn anew below it.
        self.console.print(Text(text), soft_wrap=True)

    def _draw(self, records: Sequence[Record]) -> None:
        if self.live:
            room = max(3, self.console.height - 5)
            self.live.update(trial_table(self.sweep, records, room), refresh=True)
            self.drawn_at = time.monotonic()


def trial_table(sweep: Sweep, records: Sequence[Record], room: int | None = None) -> Table:
    """The trials as a table; with little room, those that run and the best of the others."""
    names = [dimension.name for dimension in sweep.space.dimensions]
    table = Table("trial", *_short(names), "iteration", sweep.metric, "state", box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    best = min(
        (record for record in records if record.value is not None),
        key=lambda record: _rank(sweep, record),
        default=None,
    )
    for record in _chosen(sweep, records, room):
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


def _chosen(sweep: Sweep, records: Sequence[Record], room: int | None) -> list[Record]:
    if room is None or len(records) <= room:
        return list(records)
    wanted = sorted(records, key=lambda r: (r.state != "running", *_rank(sweep, r)))[:room]
    return [record for record in records if record in wanted]


def _rank(sweep: Sweep, record: Record) -> tuple[bool, float]:
    """Sorts the best first, and last those never judged."""
    sign = 1 if sweep.settings.mode == "min" else -1
    return (record.value is None, sign * (record.value or 0.0))


def _short(names: Sequence[str]) -> list[str]:
    """Names without their outermost group, where that leaves them different."""
    short = [name.split(".", 1)[-1] for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _line(record: Record, before: Record | None, metric: str) -> str | None:
    """News of a trial, if there is any."""
    told = (before.iterations, before.state) if before else (0, "waiting")
    if record.state == "waiting" or (record.iterations, record.state) == told:
        return None
    if record.state == "running" and record.iterations == 0:
        parameters = ", ".join(f"{name}={in_words(v)}" for name, v in record.parameters.items())
        return f"{record.name}: started with {parameters}"
    parts = []
    if record.iterations != told[0]:
        parts.append(f"iteration {record.iterations}")
        if record.value is not None:
            parts.append(f"{metric} {record.value:.5g} at best")
    if record.over:
        parts.append(record.state + (f": {record.fault}" if record.fault else ""))
    return f"{record.name}: {', '.join(parts)}" if parts else None
