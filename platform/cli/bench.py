"""`loadmaster bench`: measured speed beside figures of peers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from rich.console import Console
    from rich.status import Status

    from loadmaster.platform.bench.measurements import Figure
    from loadmaster.platform.bench.scaling import Point

GROUPS = {
    "simulators": "loadmaster.platform.bench.simulators",
    "rollouts": "loadmaster.platform.bench.measurements",
    "encoder": "loadmaster.platform.bench.encoder",
}
# These take minutes or many cores, and are not part of `all`.
SERVE = {"serve": "loadmaster.platform.bench.serve"}
SCALING, SOAK = "scaling", "soak"
SYSTEM = "decima"  # default of scaling
LONGEST_MINUTES = 24 * 60  # of a soak
WORKERS = (1, 2, 4, 8, 14)  # on 16 cores this leaves two to the learner and to Ray


def bench(
    group: Annotated[
        str,
        typer.Argument(
            metavar="GROUP", help=f"{', '.join((*GROUPS, *SERVE, SCALING, SOAK))}, or all."
        ),
    ] = "all",
    system: Annotated[
        str | None,
        typer.Argument(metavar="SYSTEM", help="For rollouts and scaling. [default: all; decima]"),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="For scaling. [default: of 1,2,4,8,14 up to the cores]"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="For scaling: GPUs for the learner.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="For soak. [default: 10]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For scaling and soak. [default: results/bench/GROUP]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Measure speed against published figures.

    Runs one benchmark at a time and prints each figure beside that of a peer. `scaling` measures
    training with more and more rollout workers and draws a chart; every point is printed and
    written at once. `serve` measures the decision service beside a no-op endpoint. `soak` loads it
    at half its peak for some minutes, and exits with 1 if a request fails or memory grows. These
    three are not part of `all`.

    Example:

        loadmaster bench simulators --json

        loadmaster bench rollouts decima

        loadmaster bench scaling --workers 1,2,4,8,14 --output results/scaling

        loadmaster bench soak --minutes 10 --output results/soak
    """
    set_ray_env(address=None)  # as `loadmaster train`
    from loadmaster.envs.errors import InputError, unknown_name

    names = (*GROUPS, *SERVE, SCALING, SOAK, "all")
    if group not in names:
        raise unknown_name("benchmark", group, names)
    if system is not None and group not in ("rollouts", SCALING):
        raise InputError(f"{group} takes no system; expected `loadmaster bench rollouts {system}`")
    for option, value, takers in (
        ("--workers", workers, (SCALING,)),
        ("--gpus", gpus, (SCALING,)),
        ("--minutes", minutes, (SOAK,)),
        ("--output", output, (SCALING, SOAK)),
    ):
        if value is not None and group not in takers:
            where = " or ".join(f"`bench {taker}`" for taker in takers)
            raise InputError(f"{group} takes no {option}; expected it with {where} only")
    if group == SCALING:
        bench_scaling(system or SYSTEM, workers, gpus, output, as_json)
        return
    if group == SOAK:
        bench_soak(10.0 if minutes is None else minutes, output, as_json)
        return
    figures = measured(group, system)
    if as_json:
        print(json.dumps({"results": [asdict(figure) for figure in figures]}, indent=2))
    else:
        print_figures(figures)


def measured(group: str, system: str | None) -> list[Figure]:
    from importlib import import_module

    from loadmaster.platform.ray.cleanup import ray_output_in

    figures: list[Figure] = []
    modules = {**GROUPS, **SERVE}
    with ray_output_in(Path(os.devnull)) as stderr, progress_on(stderr) as progress:
        for name in GROUPS if group == "all" else (group,):
            measure = import_module(modules[name]).measure
            figures += (
                measure(progress.report_step)
                if system is None
                else measure(progress.report_step, system)
            )
    return figures


class Progress:
    """Steps and results on stderr."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status

    def report_step(self, step: str) -> None:
        """Show the current step; on a terminal until the next."""
        self._status.update(step)
        if not self._console.is_terminal:
            self._console.print(step)

    def report_result(self, result: str) -> None:
        self._console.print(result)


@contextmanager
def progress_on(stderr: TextIO | None = None) -> Iterator[Progress]:
    """Progress display on the given stream, or on stderr."""
    from rich.console import Console

    console = Console(file=stderr, stderr=True, highlight=False, soft_wrap=True)
    with console.status("start") as status:
        yield Progress(console, status)


def bench_scaling(
    system: str, workers: str | None, gpus: int | None, output: Path | None, as_json: bool
) -> None:
    from loadmaster.envs.registry import find_system
    from loadmaster.platform.bench.scaling import figures_of, measure_scaling
    from loadmaster.platform.bench.scaling_report import FILES, check_writable, write_scaling
    from loadmaster.platform.cli.train import given_values, new_config
    from loadmaster.platform.ray.cleanup import ray_output_in

    sizes, recipe = numbers_of_workers(workers), find_system(system).load("training")
    config = new_config(recipe, given_values(None, [], None, gpus))
    folder = output or Path("results/bench/scaling")
    title = f"Training {system} with more rollout workers on {hardware(config.resources.gpus)}"
    points: list[Point] = []
    check_writable(folder)
    with ray_output_in(Path(os.devnull)) as stderr, progress_on(stderr) as progress:

        def on_point(point: Point) -> None:
            points.append(point)
            progress.report_result(in_words(point, points[0].workers))
            write_scaling(points, title, folder)

        measure_scaling(recipe, sizes, config, progress.report_step, on_point)
    files = [str(folder / name) for name in FILES]
    if as_json:
        results = [asdict(figure) for figure in figures_of(system, points)]
        print(json.dumps({"results": results, "files": files}, indent=2))
        return
    print_scaling(points)
    print(f"Files: {', '.join(files)}")


def bench_soak(minutes: float, output: Path | None, as_json: bool) -> None:
    """Run a soak; exit with 1 if it fails."""
    from loadmaster.envs.errors import InputError
    from loadmaster.platform.bench.bench_server import served_systems
    from loadmaster.platform.bench.scaling_report import check_writable
    from loadmaster.platform.bench.soak import measure_soak
    from loadmaster.platform.bench.soak_report import FILES, soak_result, summary_of, write_soak
    from loadmaster.platform.ray.cleanup import ray_output_in

    if not 0 < minutes <= LONGEST_MINUTES:
        raise InputError(
            f"--minutes is {minutes:g}; expected more than 0, {LONGEST_MINUTES:,} at most"
        )
    folder = output or Path("results/bench/soak")
    check_writable(folder)
    with ray_output_in(Path(os.devnull)) as stderr, progress_on(stderr) as progress:
        soak = measure_soak(60 * minutes, served_systems(), progress.report_step)
    result = soak_result(soak)
    title = f"The decision service for {minutes:g} minutes at half its peak on {hardware(0)}"
    write_soak(soak, result, title, folder)
    files = [str(folder / name) for name in FILES]
    if as_json:
        print(json.dumps({**summary_of(soak, result), "files": files}, indent=2))
    else:
        print(result.line)
        print(f"Files: {', '.join(files)}")
    if not result.holds:
        raise typer.Exit(1)


def hardware(gpus: int) -> str:
    from loadmaster.envs.errors import counted

    learner = f" and {counted(gpus, 'GPU')}" if gpus else ""
    return f"{os.cpu_count()} cores{learner}"


def in_words(point: Point, fewest: int) -> str:
    from loadmaster.envs.errors import counted

    rollouts = f"{_number(point.rollout_decisions_per_s)} decisions/s in rollouts"
    iteration = f"{point.iteration_seconds:.2f} s an iteration"
    if point.workers > fewest:
        rollouts += f" ({100 * point.rollout_efficiency:.0f}% of the ideal)"
        iteration += f" ({point.iteration_speedup:.2f}x as fast as with {fewest})"
    return f"{counted(point.workers, 'worker')}: {rollouts}, {iteration}"


def numbers_of_workers(given: str | None) -> list[int]:
    """Numbers of --workers, fewest first."""
    from loadmaster.envs.errors import InputError

    if given is None:
        return [count for count in WORKERS if count <= (os.cpu_count() or 1)]
    try:
        found = sorted({int(part) for part in given.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise InputError(
            f"--workers is {given!r}; expected numbers from 1 on with commas between, as in 1,2,4"
        )
    return found


def print_figures(figures: Sequence[Figure]) -> None:
    from rich.table import Table

    table = Table("benchmark", "measured", "unit", "peer", "ratio", "peer is", box=None)
    for column in (1, 3, 4):
        table.columns[column].justify = "right"
    for figure in figures:
        table.add_row(
            figure.name,
            _number(figure.value),
            figure.unit,
            _number(figure.peer) if figure.peer is not None else "",
            f"{figure.ratio:,.0f}x" if figure.ratio is not None else "",
            figure.peer_name,
        )
    _print(table)


def print_scaling(points: Sequence[Point]) -> None:
    from rich.table import Table

    table = Table("workers", "rollouts, decisions/s", "efficiency", box=None)
    for heading in ("iteration, s", "of it rollouts, s", "speed-up"):
        table.add_column(heading)
    for column in table.columns:
        column.justify = "right"
    for point in points:
        table.add_row(
            str(point.workers),
            _number(point.rollout_decisions_per_s),
            f"{100 * point.rollout_efficiency:.0f}%",
            f"{point.iteration_seconds:.2f}",
            f"{point.iteration_rollout_seconds:.2f}",
            f"{point.iteration_speedup:.2f}x",
        )
    _print(table)


def _print(table: object) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def _number(value: float) -> str:
    """Three significant digits below 1000, whole numbers above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
