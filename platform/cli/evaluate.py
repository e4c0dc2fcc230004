"""`loadmaster evaluate`: the same job sequences for every policy, and an honest verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli.options import Assignments, Workers, WorkloadName, values_from

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from rich.console import Console

PIPED_WIDTH = 120  # columns when nobody said how wide the reader is


def evaluate(
    environment: Annotated[
        str, typer.Argument(metavar="SYSTEM_OR_ENVIRONMENT", help="What to evaluate.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A policy to compare; may be repeated. 'optimal' searches tiny instances.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="all|NAME[,NAME]",
            help="Baselines to compare with; all of them if no policy is named either.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="How many job sequences.")] = 20,
    first_seed: Annotated[int, typer.Option(metavar="K", help="Seed of the first one.")] = 0,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For tables and charts. [default: results/...]"),
    ] = None,
    workers: Workers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare policies on the same job sequences.

    Every policy meets the same seeds, and results are paired by seed. Prints a table with 95%
    bootstrap intervals; leaves CSV, JSON and charts in a folder.

    Example:

        loadmaster evaluate dag_scheduling --against all --seeds 20

        loadmaster evaluate dag_scheduling --set arrivals=poisson --json
    """
    from rich.console import Console

    from loadmaster.platform.evaluation import files, report, run
    from loadmaster.platform.evaluation.comparison import as_json as comparison_as_json
    from loadmaster.platform.evaluation.comparison import compare
    from loadmaster.platform.evaluation.subjects import find_subject

    subject = find_subject(environment)
    policies = run.choose_policies(subject, policy or [], against)
    chosen_seeds = run.choose_seeds(first_seed, seeds)
    threads = run.choose_workers(workers)
    settings = subject.settings(values_from(assignments or [], workload))
    folder = output or Path("results") / subject.folder_name(settings)
    progress = Console(stderr=True)
    with files.written_at_once(folder) as scratch:
        with progress.status("loading the workload"):
            trial = subject.prepare(settings)
        line = f"policies: {len(policies)}, seeds: {seeds}, threads: {threads}"
        total, cold = len(policies) * seeds, not subject.is_compiled()
        with _episode_progress(progress, total, cold, line) as on_episode:
            episodes = run.run_episodes(trial, policies, chosen_seeds, threads, on_episode)
        with progress.status("drawing charts"):
            comparison = compare(subject, trial, chosen_seeds, episodes)
            written = files.write_everything(comparison, episodes, scratch, folder)
    if as_json:
        print(json.dumps(comparison_as_json(comparison, written), indent=2))
        return
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    report.print_report(comparison, console)
    print(f"Tables and charts: {folder}{os.sep}")


@contextmanager
def _episode_progress(
    console: Console, total: int, cold: bool, line: str
) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, which goes when it is done; elsewhere one line."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    silent = not console.is_terminal
    if silent and cold:  # else the line waits for the first episode, which may be refused
        console.print("compiling, first time only; then", line, soft_wrap=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        doing = "compiling, first time only" if cold else "running episodes"
        task = progress.add_task(doing, total=total)

        def on_episode() -> None:
            progress.update(task, advance=1, description="running episodes")
            if silent and not cold and progress.tasks[task].completed == 1:
                console.print(line, soft_wrap=True)

        yield on_episode
