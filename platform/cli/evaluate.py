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
    target: Annotated[
        str, typer.Argument(metavar="SYSTEM_OR_ENVIRONMENT", help="What to evaluate.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="A baseline, a pretrained policy, a bundle's or a run's folder; may be repeated. "
            "'optimal' searches tiny instances.",
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
    explain: Annotated[
        int,
        typer.Option(
            metavar="N", help="Show N decisions of every learned policy, with their reasons."
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare policies on the same job sequences.

    Every policy meets the same seeds, and results are paired by seed. Prints a table with 95%
    bootstrap intervals; leaves CSV, JSON and charts in a folder. A system is judged by its
    pretrained policy that fits the settings best, unless --policy says otherwise.

    Example:

        loadmaster evaluate decima --against all --seeds 20

        loadmaster evaluate dag_scheduling --set arrivals=poisson --json

        loadmaster evaluate decima --policy RUN_OR_BUNDLE --against weighted-fair --explain 3
    """
    from dataclasses import replace

    from rich.console import Console

    from loadmaster.platform.evaluation import files, report, run
    from loadmaster.platform.evaluation.adapters import find_adapter
    from loadmaster.platform.evaluation.comparison import as_json as comparison_as_json
    from loadmaster.platform.evaluation.comparison import compare
    from loadmaster.platform.evaluation.explanations import (
        choose_moments,
        explain_learned,
        print_explanations,
    )
    from loadmaster.platform.evaluation.learned import choose_learned, with_learned, words
    from loadmaster.platform.systems.registry import systems

    subject = find_adapter(target)
    chosen_seeds = run.choose_seeds(first_seed, seeds)
    threads = run.choose_workers(workers)
    settings = subject.settings(values_from(assignments or [], workload))
    names, learned = choose_learned(subject, policy or [], systems().get(target), settings)
    policies = run.choose_policies(subject, names, against if policy else against or "all")
    moments = choose_moments(explain, learned)
    folder = output or Path("results") / subject.folder_name(settings)
    progress = Console(stderr=True, highlight=False)
    with files.written_at_once(folder) as scratch:
        with progress.status("loading the workload"):
            trial = with_learned(subject.prepare(settings), learned)
        for name in learned if not policy else ():
            progress.print(f"{name}: {words(learned[name])}", markup=False, soft_wrap=True)
        line = f"policies: {len(policies)}, seeds: {seeds}, threads: {threads}"
        total = len(policies) * seeds
        compiled = [
            subject.is_compiled,
            *(found.policies.is_compiled for found in learned.values()),
        ]
        cold = not all(done() for done in compiled)
        progressing = _episode_progress(progress, total, cold, line)
        with run.warnings_heard() as heard, progressing as on_episode:
            episodes = run.run_episodes(trial, policies, chosen_seeds, threads, on_episode)
        trial = replace(trial, notes=(*trial.notes, *heard))
        with progress.status("drawing charts"):
            comparison = replace(
                compare(subject, trial, chosen_seeds, episodes),
                learned=learned,
                explanations=explain_learned(trial, learned, first_seed, moments),
            )
            written = files.write_everything(comparison, episodes, scratch, folder)
    if as_json:
        print(json.dumps(comparison_as_json(comparison, written), indent=2))
        return
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    report.print_report(comparison, console)
    for name, explanations in comparison.explanations.items():
        print_explanations(name, first_seed, explanations, subject.choice, console)
    if comparison.explanations:
        console.print()
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
