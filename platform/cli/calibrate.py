"""`loadmaster calibrate`: tune the parameters of heuristics."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, option


def calibrate(
    environment: Annotated[str, argument("ENVIRONMENT", "Whose baselines.")],
    policy: Annotated[
        list[str] | None, option("NAME", "A baseline to tune; may be repeated. [default: all]")
    ] = None,
    seeds: Annotated[int, option("N", "Number of job sequences.")] = 16,
    workload: options.WorkloadName = None,
    assignments: options.Assignments = None,
    output: Annotated[
        Path | None, option("FILE", "Where to write the result. [default: the shipped file]")
    ] = None,
    workers: options.Workers = None,
    as_json: options.AsJson = False,
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
    from loadmaster.envs.errors import unknown_name
    from loadmaster.models.files import atomic_text_file
    from loadmaster.platform.evaluation import adapters, calibration

    adapter = adapters.find_adapter(environment)
    if adapter.environment != "dag_scheduling":
        raise UsageError(
            f"no baseline of {adapter.environment} has parameters; expected dag_scheduling"
        )
    tunable = [name for name, baseline in BASELINES.items() if baseline.calibrated]
    for name in policy or []:
        if name not in tunable:
            raise unknown_name("tunable baseline", name, tunable)
    chosen = policy or tunable
    adapters.choose_seeds(0, seeds)
    threads = adapters.choose_workers(workers)
    settings = adapter.settings(adapters.given_values(assignments, workload))
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
        options.print_json({"calibrations": [asdict(best) for best, _ in results]})
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
