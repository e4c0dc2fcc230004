"""Progress of a run on the console: a live panel on a terminal, occasional lines elsewhere."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadmaster.envs.metrics import Measure

BARS = "▁▂▃▄▅▆▇█"
WIDTH, CURVE_WIDTH = 76, 40
LEARNING = ("entropy", "q_mean", "noise")  # metrics to show, of those that a run has
LINE_EVERY_S = 10.0  # without a terminal


@dataclass
class Progress:
    """The latest metrics of a run and its validations so far."""

    metric: Measure
    iterations: int  # total
    began: float
    ends: float = math.inf  # time limit, on the clock of `began`
    workers: int = 0  # configured
    sequences: int = 0  # validated on
    first_iteration: int = 0  # of this session: a resumed run begins later
    stopping: bool = False  # a stop was requested; the current iteration is finished first
    ended: bool = False
    updated: float = 0.0  # time of the latest metrics
    baselines: Mapping[str, float] = field(default_factory=dict)  # the metric, same sequences
    figures: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)  # iteration, validation

    def update(self, figures: Mapping[str, float]) -> None:
        self.figures = {**self.figures, **figures}
        self.updated = time.monotonic()
        if "validation" in figures:
            self.curve.append((int(figures["iteration"]), figures["validation"]))

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        rank = self.metric.rank
        return min(self.baselines.items(), key=lambda pair: rank(pair[1]), default=None)

    @property
    def best(self) -> tuple[int, float]:
        return min(self.curve, key=lambda point: self.metric.rank(point[1]))


@contextmanager
def display(console: Console, title: str) -> Iterator[Callable[[Progress], None]]:
    """Yields a function to call after every update."""
    if console.is_terminal:
        with _live(console, title) as show:
            yield show
        return
    printed_at, printed_validations = -LINE_EVERY_S, -1

    def print_line(progress: Progress) -> None:
        nonlocal printed_at, printed_validations
        now, validations = time.monotonic(), len(progress.curve)
        due = validations != printed_validations or now - printed_at > LINE_EVERY_S
        if progress.figures and due:
            printed_at, printed_validations = now, validations
            console.print(line(progress, now), soft_wrap=True, highlight=False)

    yield print_line


@contextmanager
def _live(console: Console, title: str) -> Iterator[Callable[[Progress], None]]:
    """A panel redrawn four times a second, so that its clock runs during long iterations."""
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
    if "decisions_per_s" in figures:
        parts.append(f"{figures['decisions_per_s']:,.0f} decisions/s")
    if "return_mean" in figures:
        parts.append(f"return {figures['return_mean']:,.0f} ±{figures['return_spread']:,.0f}")
        parts += [f"{name} {value}" for name, value in learning_figures(progress)]
    if "cost_mean" in figures:
        parts.append(f"candidates {figures['cost_mean']:,.1f}, best {figures['cost_best']:,.1f}")
    if progress.curve:
        parts.append(against_baseline(progress))
    parts += [part for part in (missing_workers(progress), time_left(progress, now)) if part]
    return "  ".join(parts)


def learning_figures(progress: Progress) -> list[tuple[str, str]]:
    """Names and values of the metrics of learning that the run has."""
    figures = progress.figures
    return [(name, f"{figures[name]:.2f}") for name in LEARNING if name in figures]


def against_baseline(progress: Progress) -> str:
    """The latest validation beside the best baseline."""
    value, metric = progress.curve[-1][1], progress.metric
    text = f"{metric.label} {metric.text(value)}"
    if progress.best_baseline is None:
        return text
    name, baseline = progress.best_baseline
    return f"{text} ({name} {metric.figure(baseline)}, {metric.change(value, baseline)})"


def missing_workers(progress: Progress) -> str:
    """Note on workers that died and are not replaced yet."""
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
    pace = (progress.updated - progress.began) / done
    left = pace * (progress.iterations - iteration) - (now - progress.updated)
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
    speed = f"{figures.get('decisions_per_s', 0):,.0f} decisions/s"
    if "return_mean" in figures:
        table.add_row("rollouts", f"{speed}, {figures['decisions_in_all']:,.0f} in all")
        table.add_row("return", f"{figures['return_mean']:,.0f} ±{figures['return_spread']:,.0f}")
        for name, value in learning_figures(progress):
            table.add_row(name, value)
    if "cost_mean" in figures:
        table.add_row("trials", speed)
        costs = f"{figures['cost_mean']:,.1f} in the mean, {figures['cost_best']:,.1f} at best"
        table.add_row("candidates", costs)
    if progress.curve:
        table.add_row("validation", against_baseline(progress))
        values, figure = [value for _, value in progress.curve], progress.metric.figure
        curve = Text(sparkline(values), style="cyan")
        curve.append(f"  {figure(values[0])} to {figure(progress.best[1])}", style="dim")
        table.add_row("", curve)
    table.add_row("time", time_left(progress, now) or "starting")
    return Panel(table, title=Text(title), title_align="left", width=WIDTH)
