"""`loadmaster evaluate`: compare policies on the same job sequences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from rich.console import Console

PIPED_WIDTH = 120  # columns where stdout is no terminal


def evaluate(
    target: Annotated[str, argument("SYSTEM_OR_ENVIRONMENT", "What to evaluate.")],
    policy: Annotated[
        list[str] | None,
        option(
            "NAME|FOLDER",
            "A baseline, a pretrained policy, a bundle's or a run's folder or URL; may be "
            "repeated. 'optimal' searches tiny instances.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "all|NAME[,NAME]",
            "Baselines to compare with; all of them if no policy is named either.",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "Number of job sequences.")] = 20,
    first_seed: Annotated[int, option("K", "Seed of the first one.")] = 0,
    workload: options.WorkloadName = None,
    assignments: options.Assignments = None,
    output: Annotated[
        Path | None, option("FOLDER", "For tables and charts. [default: results/...]")
    ] = None,
    workers: options.Workers = None,
    explain: Annotated[
        int, option("N", "Show N decisions of every learned policy, with their reasons.")
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Compare policies on the same job sequences.

    Every policy runs on the same seeds, and results are paired by seed. Prints a table with 95%
    bootstrap intervals; writes CSV, JSON and charts to a folder. For a system, its pretrained
    policy that fits the settings best takes part, unless --policy names others.

    Example:

        loadmaster evaluate decima --against all --seeds 20

        loadmaster evaluate dag_scheduling --set arrivals=poisson --json

        loadmaster evaluate decima --policy RUN_OR_BUNDLE --against weighted-fair --explain 3
    """
    from rich.console import Console

    from loadmaster.envs.registry import systems
    from loadmaster.platform.evaluation import adapters, comparison, files, report
    from loadmaster.platform.evaluation.explanations import print_explanations

    adapter = adapters.find_adapter(target)
    chosen_seeds = adapters.choose_seeds(first_seed, seeds)
    threads = adapters.choose_workers(workers)
    settings = adapter.settings(adapters.given_values(assignments, workload))
    system = systems().get(target)
    names, learned = adapters.choose_learned(adapter, policy or [], system, settings)
    policies = adapters.choose_policies(adapter, names, against if policy else against or "all")
    if explain < 0:
        raise UsageError(f"--explain is {explain}; expected 0 or more")
    if explain and not learned:
        raise UsageError("--explain needs a learned policy; expected one by --policy")
    folder = output or Path("results") / adapter.folder_name(settings)
    progress = Console(stderr=True, highlight=False)
    with files.output_folder(folder) as scratch:
        with progress.status("loading the workload"):
            setup = adapter.prepare(settings)
        if not policy:
            for note in adapters.learned_notes(learned):
                progress.print(note, markup=False, soft_wrap=True)
        line = f"policies: {len(policies)}, seeds: {seeds}, threads: {threads}"
        checks = [adapter.is_compiled, *(each.policy.is_compiled for each in learned.values())]
        cold = not all(is_compiled() for is_compiled in checks)
        progressing = _episode_progress(progress, len(policies) * seeds, cold, line)
        with adapters.collect_warnings() as warnings, progressing as on_episode:
            episodes = adapters.run_episodes(
                setup, learned, policies, chosen_seeds, threads, on_episode
            )
        with progress.status("drawing charts"):
            explanations = {
                name: bundle.policy.explain(settings, first_seed, setup.bank, explain)
                for name, bundle in (learned if explain else {}).items()
            }
            result = comparison.compare(
                adapter, setup, chosen_seeds, episodes,
                learned=learned, warnings=warnings, explanations=explanations,
            )  # fmt: skip
            written = files.write_everything(result, episodes, scratch, folder)
    if as_json:
        options.print_json(files.as_json(result, written))
        return
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    report.print_report(result, console)
    for name, explained in explanations.items():
        print_explanations(name, first_seed, explained, adapter.choice, console)
    if explanations:
        console.print()
    print(f"Tables and charts: {folder}{os.sep}")


@contextmanager
def _episode_progress(
    console: Console, total: int, cold: bool, line: str
) -> Iterator[Callable[[], None]]:
    """Show a transient progress bar on a terminal, one line elsewhere."""
    from rich.progress import MofNCompleteColumn, Progress

    silent = not console.is_terminal
    if silent and cold:  # else the line follows the first episode, which may raise InputError
        console.print("compiling, first time only; then", line, soft_wrap=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        doing = "compiling, first time only" if cold else "running episodes"
        task = progress.add_task(doing, total=total)

        def on_episode() -> None:
            progress.update(task, advance=1, description="running episodes")
            if silent and not cold and progress.tasks[task].completed == 1:
                console.print(line, soft_wrap=True)

        yield on_episode
