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

PIPED_WIDTH, WIDE = 120, 240  # columns where stdout is no terminal; WIDE: of a sweep


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
    sweep: Annotated[
        str | None,
        option("FOLDER", "Evaluate the last policy of every trial of a sweep, by its settings."),
    ] = None,
    matrix: Annotated[
        Path | None,
        option(
            "FILE|shipped",
            "Judge one policy against the best rule in every setting of a YAML file.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, option("N", "Number of job sequences. [default: 20, or those of --matrix]")
    ] = None,
    first_seed: Annotated[
        int | None, option("K", "Seed of the first one. [default: 0, or that of --matrix]")
    ] = None,
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
    policy that fits the settings best takes part, unless --policy names others. With --sweep, the
    trials of a sweep are compared with each other: trials that differ in their training seed are
    one group, and environment settings that were searched hold in their evaluation too; --against
    names a rule whose results are 100%, which trials of a mixture of settings need. With
    --matrix, a policy wins, ties or loses against the best rule of each setting by the paired
    interval; the same command continues after an interruption.

    Example:

        loadmaster evaluate decima --against all --seeds 20

        loadmaster evaluate dag_scheduling --set arrivals=poisson --json

        loadmaster evaluate decima --policy RUN_OR_BUNDLE --against weighted-fair --explain 3

        loadmaster evaluate sure --sweep sweeps/sure-ablations-20260301-120000

        loadmaster evaluate decima --matrix shipped
    """
    if matrix is not None:
        if sweep is not None or explain or len(policy or []) > 1:
            raise UsageError(
                "--matrix judges one policy; expected one --policy at most, and no --sweep or "
                "--explain"
            )
        from loadmaster.platform.cli.evaluate_matrix import evaluate_matrix
        from loadmaster.platform.evaluation.adapters import given_values

        judged = policy[0] if policy else None
        given_settings = given_values(assignments, workload)
        evaluate_matrix(
            target, matrix, judged, against, (first_seed, seeds), given_settings, output, workers,
            as_json,
        )  # fmt: skip
        return
    seeds, first_seed = 20 if seeds is None else seeds, first_seed or 0
    if sweep is not None:
        if policy or explain:
            raise UsageError(
                "--sweep compares its trials with each other; expected no --policy or --explain"
            )
        given = (assignments, workload)
        evaluate_sweep(target, sweep, against, (first_seed, seeds), given, output, workers, as_json)
        return
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
    console = _table_console(PIPED_WIDTH)
    report.print_report(result, console)
    for name, explained in explanations.items():
        print_explanations(name, first_seed, explained, adapter.choice, console)
    if explanations:
        console.print()
    print(f"Tables and charts: {folder}{os.sep}")


def evaluate_sweep(
    target: str,
    sweep_folder: str,
    rule: str | None,
    seeds: tuple[int, int],
    given: tuple[list[str] | None, str | None],
    output: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Compare the trials of a sweep; `seeds`: first and number, `given`: --set and --workload.

    With a `rule`, in % of its results.
    """
    from rich.console import Console

    from loadmaster.envs.errors import InputError, unknown_name
    from loadmaster.models.storage import parse_place
    from loadmaster.platform.evaluation import adapters
    from loadmaster.platform.evaluation.files import output_folder
    from loadmaster.platform.sweeps import evaluation, evaluation_files
    from loadmaster.platform.sweeps.folder import SweepFolder

    chosen_seeds, processes = adapters.choose_seeds(*seeds), adapters.choose_workers(workers)
    rules = adapters.find_adapter(target).baselines
    if rule is not None and rule not in rules:
        raise unknown_name("rule of --against with --sweep", rule, rules)
    folder, sweep = SweepFolder.open(parse_place(sweep_folder), "--sweep")
    progress = Console(stderr=True, highlight=False)
    try:
        if target not in (sweep.system.name, sweep.system.environment):
            raise InputError(
                f"--sweep {sweep_folder} is a sweep of {sweep.system.name!r}, not of {target!r}"
            )
        policies = evaluation.policies_of(folder, sweep, adapters.given_values(*given))
    finally:
        folder.close()
    made = output or Path("results") / folder.place.name
    with output_folder(made) as scratch:
        line = f"trials: {len(policies)}, seeds: {len(chosen_seeds)}, processes: {processes}"
        cold = not policies[0].bundle.policy.is_compiled()
        total = len(policies) * len(chosen_seeds)
        with _episode_progress(progress, total, cold, line) as on_episode:
            found = evaluation.evaluate_trials(
                sweep, policies, chosen_seeds, processes, on_episode, rule
            )
        with progress.status("drawing charts"):
            written = evaluation_files.write_everything(found, scratch, made)
    if as_json:
        options.print_json(evaluation_files.as_json(found, written))
        return
    console = _table_console(WIDE)
    console.print(evaluation_files.title(found), markup=False, soft_wrap=True)
    console.print()
    console.print(evaluation_files.result_table(found))
    console.print()
    print(f"Tables and charts: {made}{os.sep}")


def _table_console(width: int) -> Console:
    """Stdout, `width` columns wide where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = width
    return console


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
