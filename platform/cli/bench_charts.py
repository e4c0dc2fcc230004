"""Benchmarks of `loadmaster bench` with files of their own: scaling, replicas, soak, faults."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import typer

from loadmaster.envs.errors import counted
from loadmaster.platform.cli import options
from loadmaster.platform.cli.bench_tables import hardware, numbers, print_faults, print_scaling
from loadmaster.platform.cli.options import UsageError

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.bench.replicas import ReplicaPoint
    from loadmaster.platform.bench.scaling import Point
    from loadmaster.platform.bench.soak import SoakResult
    from loadmaster.platform.bench.soak_kills import KillsResult

LONGEST_MINUTES = 24 * 60  # of a soak
MOST_KILLS = 1000
SHORTEST_KILLS_S = 5.0  # between two kills in a soak
WORKERS = (1, 2, 4, 8, 14)  # on 16 cores this leaves two to the learner and to Ray


@contextmanager
def progress() -> Iterator[Callable[..., None]]:
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

    default = [count for count in WORKERS if count <= (os.cpu_count() or 1)]
    sizes = default if workers is None else numbers("--workers", workers)
    recipe = find_system(system).load("training")
    config = new_config(recipe, given_values(None, [], None, gpus))
    folder = output or Path("results/bench/scaling")
    title = f"Training {system} with more rollout workers on {hardware(config.resources.gpus)}"
    points: list[Point] = []
    check_writable(folder)
    with progress() as show:

        def on_point(point: Point) -> None:
            points.append(point)
            show(scaling.in_words(point, points[0].workers), True)
            scaling.write_scaling(points, (), title, folder)

        _, larger = scaling.measure_scaling(recipe, sizes, config, show, on_point)
        scaling.write_scaling(points, larger, title, folder)
    files = [str(folder / name) for name in scaling.FILES]
    if as_json:
        results = [asdict(figure) for figure in scaling.figures_of(system, points)]
        options.print_json({"results": results, "files": files})
        return
    print_scaling(points, "measured")
    print_scaling(larger, "calculated, with as many rollouts for each worker")
    print(f"Files: {', '.join(files)}")


def bench_replicas(replicas: str, output: Path | None, as_json: bool) -> None:
    """Measure the service with several numbers of gateways and workers."""
    from loadmaster.platform.bench import replicas as bench
    from loadmaster.platform.evaluation.files import check_writable

    sizes, folder = numbers("--replicas", replicas), output or Path("results/bench/serve")
    title = f"The decision service with more gateways and workers on {hardware(0)}"
    points: list[ReplicaPoint] = []
    check_writable(folder)
    with progress() as show:
        for point in bench.measure_replicas(sizes, show):
            points.append(point)
            show(bench.in_words(point), True)
            bench.write_replicas(points, title, folder)
    files = [str(folder / name) for name in bench.FILES]
    if as_json:
        results = [asdict(figure) for figure in bench.figures_of(points)]
        options.print_json({"results": results, "files": files})
        return
    rows, right = bench.table_of(points), range(len(bench.HEADINGS))
    options.print_table(bench.HEADINGS, rows, right=right, piped_width=160)
    print(f"Files: {', '.join(files)}")


def bench_soak(minutes: float, kills: float | None, output: Path | None, as_json: bool) -> None:
    """Run a soak, with kills if they have an interval; exit with 1 if it fails."""
    from loadmaster.platform.bench import soak, soak_kills
    from loadmaster.platform.bench.bench_server import bench_server, served_systems
    from loadmaster.platform.evaluation.files import check_writable

    if not 0 < minutes <= LONGEST_MINUTES:
        raise UsageError(
            f"--minutes is {minutes:g}; expected more than 0, {LONGEST_MINUTES:,} at most"
        )
    if kills is not None and not SHORTEST_KILLS_S <= kills < 60 * minutes:
        raise UsageError(
            f"--kill-every is {kills:g}; expected seconds from {SHORTEST_KILLS_S:g} on, and less "
            "than --minutes"
        )
    folder = output or Path("results/bench/soak")
    check_writable(folder)
    result: SoakResult | KillsResult
    files: Sequence[str]
    if kills is None:
        with progress() as show, bench_server(served_systems(), show) as server:
            found = soak.run_soak(server, 60 * minutes, show)
        title = f"The decision service for {minutes:g} minutes at half its peak on {hardware(0)}"
        result = soak.write_soak(found, title, folder)
        summary, files = soak.summary_of(found, result), soak.FILES
    else:
        with (
            progress() as show,
            bench_server(served_systems(), show, soak_kills.REPLICAS) as server,
        ):
            survived = soak_kills.run_kill_soak(server, 60 * minutes, kills, show)
        title = f"A process killed every {kills:g} s for {minutes:g} minutes on {hardware(0)}"
        result = soak_kills.write_kill_soak(survived, title, folder)
        summary, files = soak_kills.summary_of(survived, result), soak_kills.FILES
    written = [str(folder / name) for name in files]
    if as_json:
        options.print_json({**summary, "files": written})
    else:
        print(result.line)
        print(f"Files: {', '.join(written)}")
    if not result.holds:
        raise typer.Exit(1)


def bench_faults(kills: int, seed: int, output: Path | None, as_json: bool) -> None:
    """Train under random kills; exit with 1 if a check fails."""
    from loadmaster.platform.bench.fault_injection import run_faults
    from loadmaster.platform.bench.faults import FILES, summary_of, write_faults
    from loadmaster.platform.evaluation.files import check_writable

    for name, value, least, most in (("kills", kills, 1, MOST_KILLS), ("seed", seed, 0, 2**31)):
        if not least <= value <= most:
            raise UsageError(f"--{name} is {value}; expected {least:,} to {most:,}")
    folder = output or Path("results/bench/faults")
    check_writable(folder)
    with ExitStack() as runs_deleted:
        runs = Path(mkdtemp(prefix="lm-faults-"))
        runs_deleted.callback(shutil.rmtree, runs, ignore_errors=True)
        with progress() as show:
            found, settings = run_faults(seed, kills, runs, show)
        title = f"A training with {counted(kills, 'random kill')} on {hardware(0)}"
        write_faults(found, settings, title, folder)
        summary = summary_of(found, settings)
        if not summary["holds"]:
            runs_deleted.pop_all()
    files = [str(folder / name) for name in FILES]
    if as_json:
        options.print_json({**summary, "files": files})
    else:
        print_faults(summary)
        print(f"Files: {', '.join(files)}")
    if not summary["holds"]:
        print(f"The runs are kept in {runs}", file=sys.stderr)
        raise typer.Exit(1)
