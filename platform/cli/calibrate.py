"""`loadmaster calibrate`: tune the parameters of heuristics."""

from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, flag, option


def calibrate(
    environment: Annotated[str, argument("ENVIRONMENT", "Whose baselines.")],
    policy: Annotated[
        list[str] | None, option("NAME", "A baseline to tune; may be repeated. [default: all]")
    ] = None,
    seeds: Annotated[int, option("N", "Number of episodes.")] = 16,
    workload: options.WorkloadName = None,
    assignments: options.Assignments = None,
    output: Annotated[
        Path | None, option("FILE", "Where to write the result. [default: the shipped file]")
    ] = None,
    each: Annotated[
        bool, flag("--each", "Tune for each application of a set alone; expects --output.")
    ] = False,
    workers: options.Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Tune the baselines that have parameters.

    Tries every parametrisation on episodes that no evaluation uses, and writes the best one for
    these settings. Without --output it goes to the file that Loadmaster ships; a file of --output
    is used by --set calibration=FILE.

    Example:

        loadmaster calibrate dag_scheduling --set arrivals=poisson --set interarrival_s=25

        loadmaster calibrate gpu_scheduling --set cluster=medium

        loadmaster calibrate stream_scaling --set job=medium-1

        loadmaster calibrate pod_scaling --set application=test --each -o test.json
    """
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from loadmaster.envs.calibration import merge_entries
    from loadmaster.envs.errors import unknown_name
    from loadmaster.envs.registry import environments
    from loadmaster.envs.settings import build_settings
    from loadmaster.models.files import atomic_text_file
    from loadmaster.platform.evaluation import adapters, calibration

    spec = environments()[adapters.environment_name(environment)]
    tuning = spec.tuning
    for name in policy or []:
        if name not in tuning.tunable:
            raise unknown_name("tunable baseline", name, tuning.tunable)
    adapters.choose_seeds(0, seeds)
    threads = adapters.choose_workers(workers)
    settings = build_settings(spec.settings, adapters.given_values(assignments, workload))
    path = output or tuning.path
    members = [settings]
    if each:
        if tuning.each is None:
            raise UsageError(f"--each: {spec.name} has no sets; expected pod_scaling")
        if output is None:
            raise UsageError("--each without --output; expected a file of its own")
        members = list(tuning.each(settings))
    console = Console(stderr=True, highlight=False)
    results = []
    with atomic_text_file(path) as file:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for problem, name in product(map(tuning.prepare, members), policy or tuning.tunable):
                task = progress.add_task(f"tuning {name}, {problem.conditions}")

                def show(run: int, planned: int, task: TaskID = task) -> None:
                    progress.update(task, completed=run, total=planned)

                found = calibration.calibrate(name, problem, seeds, threads, show)
                results.append((problem, *found))
                progress.remove_task(task)
        file.write(merge_entries(path, [best for _, best, _ in results]))
    if as_json:
        options.print_json({"calibrations": [asdict(best) for _, best, _ in results]})
        return
    for problem, best, scored in results:
        print(f"{best.baseline}, {problem.conditions}, {seeds} {problem.episodes}:")
        for score, baseline in scored[: 1 if each else 5]:
            print(f"  {problem.describe(baseline, score)}")
    print(f"Kept in {path}")
