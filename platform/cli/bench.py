"""`loadmaster bench`: measured speed beside figures of peers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.envs.errors import counted
from loadmaster.platform.cli import options
from loadmaster.platform.cli.bench_tables import (
    hardware,
    numbers,
    print_faults,
    print_figures,
    print_scaling,
)
from loadmaster.platform.cli.options import AsJson, UsageError, argument, option
from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.bench.measurements import Figure
    from loadmaster.platform.bench.replicas import ReplicaPoint
    from loadmaster.platform.bench.scaling import Point
    from loadmaster.platform.bench.soak import SoakResult
    from loadmaster.platform.bench.soak_kills import KillsResult

GROUPS = {  # modules
    "simulators": "simulators",
    "rollouts": "measurements",
    "encoder": "encoder",
    "off-policy": "off_policy",
    "offline": "offline",
}
# Not part of `all`: they need the extra `serve`, minutes, or many cores.
READING, SERVE, TENANTS, SCALING = "reading", "serve", "tenants", "scaling"
SOAK, FAULTS, ADAPTATION, EMBEDDING = "soak", "faults", "adaptation", "embedding"
OTHERS = (READING, SERVE, TENANTS, SCALING, SOAK, FAULTS, ADAPTATION, EMBEDDING)
SYSTEM = "decima"  # default of scaling
LONGEST_MINUTES = 24 * 60  # of a soak
MOST_KILLS = 1000
SHORTEST_KILLS_S = 5.0  # between two kills in a soak
WORKERS = (1, 2, 4, 8, 14)  # on 16 cores this leaves two to the learner and to Ray


def bench(
    group: Annotated[str, argument("GROUP", f"{', '.join((*GROUPS, *OTHERS))}, or all.")] = "all",
    system: Annotated[
        str | None,
        argument(
            "SYSTEM",
            "For rollouts, adaptation, scaling, embedding. [default: all; all; decima; aware]",
        ),
    ] = None,
    workers: Annotated[
        str | None, option("N,N", "For scaling. [default: of 1,2,4,8,14 up to the cores]")
    ] = None,
    gpus: Annotated[int | None, option("N", "For scaling: GPUs for the learner.")] = None,
    minutes: Annotated[float | None, option("N", "For soak. [default: 10]")] = None,
    names: Annotated[int | None, option("N", "For tenants. [default: 20000]")] = None,
    kills: Annotated[int | None, option("N", "For faults. [default: 20]")] = None,
    seed: Annotated[
        int | None, option("N", "For faults: of the kills and of the training. [default: 1]")
    ] = None,
    kill_every: Annotated[
        float | None, option("SECONDS", "For soak: kill a process of the service so often.")
    ] = None,
    replicas: Annotated[
        str | None, option("N,N", "For serve: measure these numbers of gateways and workers.")
    ] = None,
    applications: Annotated[
        int | None, option("N", "For adaptation, embedding. [default: 3; 40]")
    ] = None,
    seeds: Annotated[int | None, option("N", "For adaptation: trainings. [default: 1]")] = None,
    episodes: Annotated[
        int | None, option("N", "For adaptation: of a training. [default: 20]")
    ] = None,
    policy: Annotated[
        list[str] | None,
        option("NAME=BUNDLE", "For adaptation: a bundle of a rival; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "FOLDER",
            "For scaling, soak, faults, embedding, serve --replicas. "
            "[default: results/bench/GROUP]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed against published figures.

    Runs one benchmark at a time and prints each figure beside that of a peer. `scaling` measures
    training with more and more rollout workers and draws a chart; every point is printed and
    written at once. `reading` measures how long the service's worker takes to read a state, from
    JSON and from MessagePack. `serve` measures the decision service beside a no-op endpoint, with
    --replicas by the number of gateways and workers; `tenants` measures its memory and disk after
    one decision for each of many tenants. `soak` loads it at half its peak for some minutes, and
    exits with 1 if a request fails or memory grows; with --kill-every, its processes are killed,
    and it exits with 1 if a request of its client fails or a process is not replaced. `faults`
    trains on a cluster of three nodes of this machine, kills workers, nodes and the driver at
    random, and exits with 1 if an iteration is lost. `adaptation` trains a policy and its rivals
    further on applications that none of them was trained on, and counts episodes, processor time
    and violations. `embedding` compares AWARE's embeddings of unseen
    applications with what these have in common, counts how many known and unknown applications
    are flagged as unknown, and draws a projection. These eight are not part of `all`.

    Example:

        loadmaster bench simulators --json

        loadmaster bench rollouts decima

        loadmaster bench off-policy

        loadmaster bench offline

        loadmaster bench scaling --workers 1,2,4,8,14 --output results/scaling

        loadmaster bench serve --replicas 1,2,4,8 --output results/replicas

        loadmaster bench soak --minutes 10 --output results/soak

        loadmaster bench soak --minutes 10 --kill-every 30

        loadmaster bench faults --kills 20 --seed 1 --output results/faults

        loadmaster bench adaptation aware --applications 20 --seeds 5

        loadmaster bench embedding aware --output results/embedding
    """
    set_ray_env(address=None)  # as `loadmaster train`
    from loadmaster.envs.errors import unknown_name

    groups = (*GROUPS, *OTHERS, "all")
    if group not in groups:
        raise unknown_name("benchmark", group, groups)
    if system is not None and group not in ("rollouts", SCALING, ADAPTATION, EMBEDDING):
        raise UsageError(f"{group} takes no system; expected `loadmaster bench rollouts {system}`")
    for name, value, takers in (
        ("--workers", workers, (SCALING,)),
        ("--gpus", gpus, (SCALING,)),
        ("--minutes", minutes, (SOAK,)),
        ("--names", names, (TENANTS,)),
        ("--kills", kills, (FAULTS,)),
        ("--seed", seed, (FAULTS,)),
        ("--kill-every", kill_every, (SOAK,)),
        ("--replicas", replicas, (SERVE,)),
        ("--applications", applications, (ADAPTATION, EMBEDDING)),
        ("--seeds", seeds, (ADAPTATION,)),
        ("--episodes", episodes, (ADAPTATION,)),
        ("--policy", policy, (ADAPTATION,)),
        ("--output", output, (EMBEDDING, SCALING, SOAK, FAULTS, SERVE)),
    ):
        if value is not None and group not in takers:
            where = " or ".join(f"`bench {taker}`" for taker in takers)
            raise UsageError(f"{group} takes no {name}; expected it with {where} only")
    counts = {"names": names, "applications": applications, "seeds": seeds, "episodes": episodes}
    for name, number in counts.items():
        if number is not None and number < 1:
            raise UsageError(f"--{name} is {number}; expected a positive number")
    if group == SCALING:
        bench_scaling(system or SYSTEM, workers, gpus, output, as_json)
        return
    if group == SOAK:
        bench_soak(10.0 if minutes is None else minutes, kill_every, output, as_json)
        return
    if group == FAULTS:
        bench_faults(20 if kills is None else kills, 1 if seed is None else seed, output, as_json)
        return
    if replicas is not None:
        bench_replicas(replicas, output, as_json)
        return
    if group == SERVE and output is not None:
        raise UsageError("serve takes no --output without --replicas; expected both or neither")
    given: tuple[Any, ...] = tuple(one for one in (system, names) if one is not None)
    if group == EMBEDDING:
        given = system, applications, output or Path("results/bench/embedding")
    figures: list[Figure] = []
    if group == ADAPTATION:
        from loadmaster.platform.bench.adaptation import effort_of

        given = system, effort_of(applications, seeds, episodes, policy or ())
    with _progress() as show:
        for name in GROUPS if group == "all" else (group,):
            module = import_module(f"loadmaster.platform.bench.{GROUPS.get(name, name)}")
            figures += module.measure(show, *given)
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

    default = [count for count in WORKERS if count <= (os.cpu_count() or 1)]
    sizes = default if workers is None else numbers("--workers", workers)
    recipe = find_system(system).load("training")
    config = new_config(recipe, given_values(None, [], None, gpus))
    folder = output or Path("results/bench/scaling")
    title = f"Training {system} with more rollout workers on {hardware(config.resources.gpus)}"
    points: list[Point] = []
    check_writable(folder)
    with _progress() as show:

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
    with _progress() as show:
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
        with _progress() as show, bench_server(served_systems(), show) as server:
            found = soak.run_soak(server, 60 * minutes, show)
        title = f"The decision service for {minutes:g} minutes at half its peak on {hardware(0)}"
        result = soak.write_soak(found, title, folder)
        summary, files = soak.summary_of(found, result), soak.FILES
    else:
        with (
            _progress() as show,
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
        with _progress() as show:
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
