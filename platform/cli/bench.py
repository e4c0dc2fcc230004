"""`loadmaster bench`: measured speed beside figures of peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import AsJson, UsageError, argument, option
from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.bench.measurements import Figure
    from loadmaster.platform.bench.scaling import Point

GROUPS = {"simulators": "simulators", "rollouts": "measurements", "encoder": "encoder"}  # modules
SERVE, SCALING, SOAK = "serve", "scaling", "soak"  # not part of `all`: minutes, or many cores
SYSTEM = "decima"  # default of scaling
LONGEST_MINUTES = 24 * 60  # of a soak
WORKERS = (1, 2, 4, 8, 14)  # on 16 cores this leaves two to the learner and to Ray


def bench(
    group: Annotated[
        str, argument("GROUP", f"{', '.join((*GROUPS, SERVE, SCALING, SOAK))}, or all.")
    ] = "all",
    system: Annotated[
        str | None, argument("SYSTEM", "For rollouts and scaling. [default: all; decima]")
    ] = None,
    workers: Annotated[
        str | None, option("N,N", "For scaling. [default: of 1,2,4,8,14 up to the cores]")
    ] = None,
    gpus: Annotated[int | None, option("N", "For scaling: GPUs for the learner.")] = None,
    minutes: Annotated[float | None, option("N", "For soak. [default: 10]")] = None,
    output: Annotated[
        Path | None, option("FOLDER", "For scaling and soak. [default: results/bench/GROUP]")
    ] = None,
    as_json: AsJson = False,
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
    from loadmaster.envs.errors import unknown_name

    names = (*GROUPS, SERVE, SCALING, SOAK, "all")
    if group not in names:
        raise unknown_name("benchmark", group, names)
    if system is not None and group not in ("rollouts", SCALING):
        raise UsageError(f"{group} takes no system; expected `loadmaster bench rollouts {system}`")
    for name, value, takers in (
        ("--workers", workers, (SCALING,)),
        ("--gpus", gpus, (SCALING,)),
        ("--minutes", minutes, (SOAK,)),
        ("--output", output, (SCALING, SOAK)),
    ):
        if value is not None and group not in takers:
            where = " or ".join(f"`bench {taker}`" for taker in takers)
            raise UsageError(f"{group} takes no {name}; expected it with {where} only")
    if group == SCALING:
        bench_scaling(system or SYSTEM, workers, gpus, output, as_json)
        return
    if group == SOAK:
        bench_soak(10.0 if minutes is None else minutes, output, as_json)
        return
    figures: list[Figure] = []
    with _progress() as show:
        for name in GROUPS if group == "all" else (group,):
            module = import_module(f"loadmaster.platform.bench.{GROUPS.get(name, name)}")
            figures += module.measure(show, *([] if system is None else [system]))
    if as_json:
        options.print_json({"results": [asdict(figure) for figure in figures]})
    else:
        print_figures(figures)


@contextmanager
def _progress() -> Iterator[Callable[..., None]]:
    """Discard Ray's output; show steps on stderr."""
    from loadmaster.platform.ray.cleanup import ray_output_in

    with ray_output_in(Path(os.devnull)) as stderr, options.shown_steps("start", stderr) as show:
        yield show


def bench_scaling(
    system: str, workers: str | None, gpus: int | None, output: Path | None, as_json: bool
) -> None:
    from loadmaster.envs.registry import find_system
    from loadmaster.platform.bench import scaling
    from loadmaster.platform.cli.train import given_values, new_config
    from loadmaster.platform.evaluation.files import check_writable

    sizes, recipe = numbers_of_workers(workers), find_system(system).load("training")
    config = new_config(recipe, given_values(None, [], None, gpus))
    folder = output or Path("results/bench/scaling")
    title = f"Training {system} with more rollout workers on {hardware(config.resources.gpus)}"
    points: list[Point] = []
    check_writable(folder)
    with _progress() as show:

        def on_point(point: Point) -> None:
            points.append(point)
            show(scaling.in_words(point, points[0].workers), True)
            scaling.write_scaling(points, title, folder)

        scaling.measure_scaling(recipe, sizes, config, show, on_point)
    files = [str(folder / name) for name in scaling.FILES]
    if as_json:
        results = [asdict(figure) for figure in scaling.figures_of(system, points)]
        options.print_json({"results": results, "files": files})
        return
    print_scaling(points)
    print(f"Files: {', '.join(files)}")


def bench_soak(minutes: float, output: Path | None, as_json: bool) -> None:
    """Run a soak; exit with 1 if it fails."""
    from loadmaster.platform.bench.bench_server import bench_server, served_systems
    from loadmaster.platform.bench.soak import FILES, run_soak, summary_of, write_soak
    from loadmaster.platform.evaluation.files import check_writable

    if not 0 < minutes <= LONGEST_MINUTES:
        raise UsageError(
            f"--minutes is {minutes:g}; expected more than 0, {LONGEST_MINUTES:,} at most"
        )
    folder = output or Path("results/bench/soak")
    check_writable(folder)
    with _progress() as show, bench_server(served_systems(), show) as server:
        soak = run_soak(server, 60 * minutes, show)
    title = f"The decision service for {minutes:g} minutes at half its peak on {hardware(0)}"
    result = write_soak(soak, title, folder)
    files = [str(folder / name) for name in FILES]
    if as_json:
        options.print_json({**summary_of(soak, result), "files": files})
    else:
        print(result.line)
        print(f"Files: {', '.join(files)}")
    if not result.holds:
        raise typer.Exit(1)


def hardware(gpus: int) -> str:
    learner = f" and {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    return f"{os.cpu_count()} cores{learner}"


def numbers_of_workers(given: str | None) -> list[int]:
    """Numbers of --workers, fewest first."""
    if given is None:
        return [count for count in WORKERS if count <= (os.cpu_count() or 1)]
    try:
        found = sorted({int(part) for part in given.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UsageError(
            f"--workers is {given!r}; expected numbers from 1 on with commas between, as in 1,2,4"
        )
    return found


def print_figures(figures: Sequence[Figure]) -> None:
    from loadmaster.platform.evaluation.report import short_number

    rows = (
        (
            figure.name,
            short_number(figure.value),
            figure.unit,
            "" if figure.peer is None else short_number(figure.peer),
            "" if figure.ratio is None else f"{figure.ratio:,.0f}x",
            figure.peer_name,
        )
        for figure in figures
    )
    headings = ("benchmark", "measured", "unit", "peer", "ratio", "peer is")
    options.print_table(headings, rows, right=(1, 3, 4), piped_width=140)


def print_scaling(points: Sequence[Point]) -> None:
    from loadmaster.platform.evaluation.report import short_number

    rollouts = ("workers", "rollouts, decisions/s", "efficiency")
    iterations = ("iteration, s", "of it rollouts, s", "speed-up")
    rows = (
        (
            str(point.workers),
            short_number(point.rollout_decisions_per_s),
            f"{100 * point.rollout_efficiency:.0f}%",
            f"{point.iteration_seconds:.2f}",
            f"{point.iteration_rollout_seconds:.2f}",
            f"{point.iteration_speedup:.2f}x",
        )
        for point in points
    )
    options.print_table((*rollouts, *iterations), rows, right=range(6), piped_width=140)
