"""`loadmaster calibrate`: tune the parameters of heuristics."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.platform.cli.options import AsJson, Assignments, Workers, WorkloadName


def calibrate(
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="Whose baselines.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A baseline to tune; may be repeated. [default: all]"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of job sequences.")] = 16,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the result. [default: the shipped file]"),
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Tune the baselines that have parameters.

    Tries every parametrisation on job sequences that no evaluation uses, and writes the best one
    for this workload, arrival process and load. Without --output it goes to the file that
    Loadmaster ships; a file of --output is used by --set calibration=FILE.

    Example:

        loadmaster calibrate dag_scheduling --set arrivals=poisson --set interarrival_s=25
    """
    from rich.console import Console
    from rich.progress import Progress

    from loadmaster.envs.dag_scheduling.baselines import BASELINES
    from loadmaster.envs.dag_scheduling.calibration import SHIPPED_PATH, merge_calibrations
    from loadmaster.envs.errors import InputError, unknown_name
    from loadmaster.models.files import atomic_text_file
    from loadmaster.platform.evaluation import calibration, run
    from loadmaster.platform.evaluation.adapters import find_adapter

    adapter = find_adapter(environment)
    if adapter.environment != "dag_scheduling":
        raise InputError(
            f"no baseline of {adapter.environment} has parameters; expected dag_scheduling"
        )
    tunable = [name for name, baseline in BASELINES.items() if baseline.calibrated]
    for name in policy or []:
        if name not in tunable:
            raise unknown_name("tunable baseline", name, tunable)
    chosen = policy or tunable
    run.choose_seeds(0, seeds)
    threads = run.choose_workers(workers)
    settings = run.choose_settings(adapter, assignments, workload)
    path = output or SHIPPED_PATH
    console = Console(stderr=True, highlight=False)
    results = []
    with atomic_text_file(path) as file:
        from loadmaster.envs.dag_scheduling.workloads import load_workload

        bank = load_workload(settings)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for name in chosen:
                total = calibration.episodes_needed(name, seeds)
                task = progress.add_task(f"tuning {name}", total=total)
                count = partial(progress.advance, task)
                results.append(calibration.calibrate(name, settings, bank, seeds, threads, count))
        file.write(merge_calibrations(path, [best for best, _ in results]))
    if as_json:
        print(json.dumps({"calibrations": [asdict(best) for best, _ in results]}, indent=2))
        return
    for best, scored in results:
        print(f"{best.baseline}, {bank.name}, load {best.load:g}, {seeds} sequences:")
        for cost, baseline in scored[:5]:
            kept = "released" if baseline.release else "kept"
            print(
                f"  alpha {baseline.alpha:4.1f}, threshold {baseline.threshold:g}, "
                f"executors beyond the share {kept}: {cost:.1f} s"
            )
    print(f"Kept in {path}")
