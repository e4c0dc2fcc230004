"""A run as it goes: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadmaster.platform.training.loop import Progress
from loadmaster.platform.training.wording import percent, unit, word

BARS = "▁▂▃▄▅▆▇█"
WIDTH, CURVE_WIDTH = 76, 40
LINE_EVERY_S = 10.0  # where nobody watches a terminal


@contextmanager
def display(console: Console, title: str) -> Iterator[Callable[[Progress], None]]:
    """Gives a function to call whenever there is news."""
    if console.is_terminal:
        with _live(console, title) as show:
            yield show
        return
    said = [-LINE_EVERY_S, -1]

    def say(progress: Progress) -> None:
        now, judged = time.monotonic(), len(progress.curve)
        if progress.figures and (judged != said[1] or now - said[0] > LINE_EVERY_S):
            said[:] = [now, judged]
            console.print(line(progress, now), soft_wrap=True, highlight=False)

    yield say


@contextmanager
def _live(console: Console, title: str) -> Iterator[Callable[[Progress], None]]:
    """A panel that is drawn anew four times a second: its clock runs, also in long iterations."""
    shown: list[Progress] = []

    def draw() -> RenderableType:
        return panel(shown[-1], title, time.monotonic()) if shown else ""

    with Live(get_renderable=draw, console=console, refresh_per_second=4) as live:

        def show(progress: Progress) -> None:
            shown[:] = [progress]
            live.refresh()

        yield show


def line(progress: Progress, now: float) -> str:
    """One iteration in one line."""
    figures = progress.figures
    parts = [f"iteration {int(figures['iteration'])}/{progress.iterations}"]
    if "return_mean" in figures:
        parts += [
            f"{figures['decisions_per_s']:,.0f} decisions/s",
            f"return {figures['return_mean']:,.0f} ±{figures['return_spread']:,.0f}",
            f"entropy {figures['entropy']:.2f}",
        ]
    if "cost_mean" in figures:
        parts += [
            f"{figures['decisions_per_s']:,.0f} decisions/s",
            f"candidates {figures['cost_mean']:,.1f}, best {figures['cost_best']:,.1f}",
        ]
    if progress.curve:
        parts.append(against_baseline(progress))
    parts += [part for part in (missing_workers(progress), time_left(progress, now)) if part]
    return "  ".join(parts)


def against_baseline(progress: Progress) -> str:
    value = progress.curve[-1][1]
    told = f"{word(progress.metric)} {value:.1f}{unit(progress.metric)}"
    if progress.best_baseline is None:
        return told
    name, baseline = progress.best_baseline
    return f"{told} ({name} {baseline:.1f}, {percent(value, baseline)})"


def missing_workers(progress: Progress) -> str:
    """Of those that died and are not back yet."""
    working = int(progress.figures.get("workers", progress.workers))
    if working >= progress.workers:
        return ""
    return f"{working} of {progress.workers} workers, replacing the others"


def time_left(progress: Progress, now: float) -> str:
    iteration = int(progress.figures.get("iteration", 0))
    if progress.ended or iteration >= progress.iterations:
        return f"{clock(now - progress.began)} in all"
    if progress.stopping:
        return "stopping after this iteration (Ctrl-C again: at once)"
    done = iteration - progress.first_iteration
    if done <= 0:
        return ""
    pace = (progress.noted - progress.began) / done
    left = pace * (progress.iterations - iteration) - (now - progress.noted)
    return f"{clock(max(0.0, min(left, progress.ends - now)))} left"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """The curve in one line of text; its lowest point is the shortest bar."""
    if len(values) > width:
        places = [round(i * (len(values) - 1) / (width - 1)) for i in range(width)]
        values = [values[place] for place in places]
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def panel(progress: Progress, title: str, now: float) -> Panel:
    figures = progress.figures
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column()
    iteration = f"{int(figures.get('iteration', 0))} of {progress.iterations}"
    if "return_mean" in figures:
        iteration += (
            f", {figures['rollout_seconds']:.2f} s rolling out "
            f"and {figures['update_seconds']:.2f} s learning"
        )
    table.add_row("iteration", iteration)
    if missing_workers(progress):
        table.add_row("workers", missing_workers(progress))
    if "return_mean" in figures:
        table.add_row(
            "rollouts",
            f"{figures['decisions_per_s']:,.0f} decisions/s, "
            f"{figures['decisions_in_all']:,.0f} in all",
        )
        table.add_row("return", f"{figures['return_mean']:,.0f} ±{figures['return_spread']:,.0f}")
        table.add_row("entropy", f"{figures['entropy']:.2f}")
    if "cost_mean" in figures:
        table.add_row("trials", f"{figures['decisions_per_s']:,.0f} decisions/s")
        told = f"{figures['cost_mean']:,.1f} in the mean, {figures['cost_best']:,.1f} at best"
        table.add_row("candidates", told)
    if progress.curve:
        table.add_row("validation", against_baseline(progress))
        values = [value for _, value in progress.curve]
        curve = Text(sparkline(values), style="cyan")
        curve.append(f"  {values[0]:.1f} to {min(values):.1f}", style="dim")
        table.add_row("", curve)
    table.add_row("time", time_left(progress, now) or "starting")
    return Panel(table, title=Text(title), title_align="left", width=WIDTH)
