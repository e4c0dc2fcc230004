"""`loadmaster calibrate`: tune the parameters of heuristics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, flag, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.envs.calibration import Tuning
    from loadmaster.envs.registry import EnvironmentSpec


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
    matrix: Annotated[
        Path | None,
        option("FILE|shipped", "Tune for every setting of a YAML file of evaluate --matrix."),
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
    is used by --set calibration=FILE. With --matrix the file is written after each setting.

    Example:

        loadmaster calibrate dag_scheduling --set arrivals=poisson --set interarrival_s=25

        loadmaster calibrate gpu_scheduling --set cluster=medium

        loadmaster calibrate stream_scaling --set job=medium-1

        loadmaster calibrate pod_scaling --set application=test --each --output test.json

        loadmaster calibrate dag_scheduling --matrix shipped
    """
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from loadmaster.envs.calibration import merge_entries
    from loadmaster.envs.errors import unknown_name
    from loadmaster.envs.registry import environments
    from loadmaster.models.files import atomic_text_file
    from loadmaster.platform.evaluation import adapters, calibration
    from loadmaster.platform.evaluation.matrix_file import missing_traces

    spec = environments()[adapters.environment_name(environment)]
    tuning = spec.tuning
    for name in policy or []:
        if name not in tuning.tunable:
            raise unknown_name("tunable baseline", name, tuning.tunable)
    if matrix is not None and each:
        raise UsageError("--matrix and --each both name what is tuned for; expected one of them")
    adapters.choose_seeds(0, seeds)
    threads = adapters.choose_workers(workers)
    given = adapters.given_values(assignments, workload)
    path = output or tuning.path
    batches = _batches(spec, tuning, given, matrix, each, output)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    entries: list[Any] = []
    tuned: dict[tuple[Any, ...], str] = {}  # what an entry is tuned for -> the setting
    for setting, members in batches.items():
        if setting and (reason := missing_traces(spec.name, members[0])):
            console.print(f"{setting}: not tuned: {reason}", markup=False)
            continue
        results = []
        with (
            atomic_text_file(path) as file,
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            for problem, name in product(map(tuning.prepare, members), policy or tuning.tunable):
                key = calibration.entry_setting(name, problem, seeds)
                if setting and tuned.setdefault(key, setting) != setting:
                    line = f"{setting}: {name} shares its entry with {tuned[key]}"
                    progress.console.print(line, markup=False)
                    continue
                task = progress.add_task(f"tuning {name}, {problem.conditions}")

                def show(run: int, planned: int, task: TaskID = task) -> None:
                    progress.update(task, completed=run, total=planned)

                found = calibration.calibrate(name, problem, seeds, threads, show)
                results.append((problem, *found))
                progress.remove_task(task)
            entries += (fresh := [best for _, best, _ in results])
            file.write(merge_entries(path, fresh) if fresh else path.read_text(encoding="utf-8"))
        for problem, best, scored in [] if as_json else results:
            of = f"{setting}: " if setting else ""
            print(f"{of}{best.baseline}, {problem.conditions}, {seeds} {problem.episodes}:")
            for score, baseline in scored[: 1 if each or setting else 5]:
                print(f"  {problem.describe(baseline, score)}")
    if as_json:
        options.print_json({"calibrations": [asdict(best) for best in entries]})
        return
    print(f"Kept in {path}" if entries else "nothing was tuned")


def _batches(
    spec: EnvironmentSpec,
    tuning: Tuning,
    given: Mapping[str, Any],
    matrix: Path | None,
    each: bool,
    output: Path | None,
) -> dict[str, Sequence[Any]]:
    """Settings to tune for, by the name in the matrix; those of a batch are written together."""
    from loadmaster.envs.settings import build_settings
    from loadmaster.platform.evaluation.matrix_file import read_matrix

    build = partial(build_settings, spec.settings)
    if matrix is not None:
        entries = read_matrix(matrix, spec.name, build, given=given).entries
        return {entry.name: [entry.settings] for entry in entries}
    settings = build(given)
    if not each:
        return {"": [settings]}
    if tuning.each is None:
        raise UsageError(f"--each: {spec.name} has no sets; expected pod_scaling")
    if output is None:
        raise UsageError("--each without --output; expected a file of its own")
    return {"": list(tuning.each(settings))}
