"""A run as it goes: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadmaster.platform.training.loop import Progress

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40
LINE_EVERY_S = 10.0  # where nobody watches a terminal
WORDS = {"jct_s": "mean JCT", "makespan_s": "makespan"}


@contextmanager
def display(console: Console, title: str) -> Iterator[Callable[[Progress], None]]:
    """Gives a function to call whenever there is news."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=False) as live:

            def refresh(progress: Progress) -> None:
                live.update(panel(progress, title, time.monotonic()))

            yield refresh
        return
    said = [-LINE_EVERY_S, -1]

    def say(progress: Progress) -> None:
        now, judged = time.monotonic(), len(progress.curve)
        if progress.figures and (judged != said[1] or now - said[0] > LINE_EVERY_S):
            said[:] = [now, judged]
            console.print(line(progress, now), soft_wrap=True, highlight=False)

    yield say


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
    if progress.curve:
        parts.append(against_baseline(progress))
    left = time_left(progress, now)
    return "  ".join([*parts, left] if left else parts)


def against_baseline(progress: Progress) -> str:
    name, baseline = progress.best_baseline
    value = progress.curve[-1][1]
    word = WORDS.get(progress.metric, progress.metric)
    return f"{word} {value:.1f} s ({name} {baseline:.1f}, {percent(value, baseline)})"


def percent(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.1f}%"


def time_left(progress: Progress, now: float) -> str:
    done = int(progress.figures.get("iteration", 0)) - progress.first_iteration
    if done <= 0:
        return ""
    left = progress.iterations - done - progress.first_iteration
    seconds = (now - progress.began) / done * left
    return f"{clock(seconds)} left" if left else f"{clock(now - progress.began)} in all"


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
    table.add_row("iteration", f"{int(figures.get('iteration', 0))} of {progress.iterations}")
    if "return_mean" in figures:
        table.add_row(
            "rollouts",
            f"{figures['decisions_per_s']:,.0f} decisions/s, {figures['decisions_in_all']:,.0f} "
            f"in all ({figures['rollout_seconds']:.2f} s rolling out, "
            f"{figures['update_seconds']:.2f} s learning)",
        )
        table.add_row("return", f"{figures['return_mean']:,.0f} ±{figures['return_spread']:,.0f}")
        table.add_row("entropy", f"{figures['entropy']:.2f}")
    if progress.curve:
        table.add_row("validation", against_baseline(progress))
        values = [value for _, value in progress.curve]
        curve = Text(sparkline(values), style="cyan")
        curve.append(f"  {values[0]:.1f} to {min(values):.1f}", style="dim")
        table.add_row("", curve)
    table.add_row("time", time_left(progress, now) or "starting")
    return Panel(Group(table), title=title, title_align="left", expand=False)
