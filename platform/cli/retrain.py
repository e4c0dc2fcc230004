"""`loadmaster retrain`: fine-tune a bundle on a changed workload and compare the two."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.envs.errors import counted
from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, option
from loadmaster.platform.ray.session import in_a_job, lower_priority, set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.training.config import BaseConfig, Recipe
    from loadmaster.platform.training.request_folder import RequestFolder
    from loadmaster.serving.policies.comparison import ComparisonResult


def retrain(
    system: options.SystemName,
    start: Annotated[str, option("BUNDLE", "The serving policy: name or folder.", "--from")],
    output: Annotated[Path, option("FOLDER", "For run, bundle and verdict.json; rerun to resume.")],
    assignments: options.Assignments = None,
    iterations: Annotated[
        int | None, option("N", "At most (training.iterations). [default: 200]")
    ] = None,
    minutes: Annotated[
        float | None, option("M", "At most (training.minutes). [default: 20]")
    ] = None,
    seeds: Annotated[int, option("N", "Unseen sequences to compare both policies on.")] = 32,
    address: options.RayAddress = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a bundle further on a changed workload, and compare.

    Trains with the settings of the bundle, changed by --set, and compares the best policy found
    with the serving one on sequences that neither was trained on. Writes a bundle and
    verdict.json. After an interruption the same command resumes. In a job it lowers its priority,
    so that the service keeps the processor.

    Example:

        loadmaster retrain decima --from decima-stream --output retrained \\
            --set environment.interarrival_s=12 --minutes 10
    """
    if in_a_job():
        lower_priority()
    set_ray_env(address)
    from loadmaster.envs.registry import find_system
    from loadmaster.envs.settings import parse_assignments
    from loadmaster.models.storage import check_local
    from loadmaster.platform.cli.train import built
    from loadmaster.platform.evaluation.adapters import choose_seeds
    from loadmaster.platform.evaluation.comparison import compare_bundles
    from loadmaster.platform.systems.bundle_ref import find_policy
    from loadmaster.platform.training.config import merged
    from loadmaster.platform.training.export import export_bundle
    from loadmaster.platform.training.retraining import RetrainingFolder, finetune_config

    check_local(output, "--output")
    recipe, serving = find_system(system).load("training"), find_policy(start)
    if serving.system.name != system:
        raise UsageError(f"--from {start!r} is a policy of {serving.system.name!r}, not {system!r}")
    bounds = {"iterations": iterations, "minutes": minutes}
    training = {name: value for name, value in bounds.items() if value is not None}
    given = merged(parse_assignments(assignments or []), {"training": training})
    settings = built(recipe, finetune_config(recipe, serving.manifest, serving.folder, given))
    environment = getattr(settings, "environment", None)
    if environment is None:
        raise UsageError(f"system {system!r} has no environment to compare policies in")
    # Beyond the validation sequences, which chose the best policy; training draws neither.
    first = settings.validation.first_seed + settings.validation.sequences
    unseen = choose_seeds(first, seeds)
    folder = RetrainingFolder(output)
    folder.open({
        "system": system,
        "serving": serving.manifest.sha256,
        "sequences": seeds,
        "settings": settings.model_dump(mode="json"),
    })  # fmt: skip
    result = folder.comparison
    if result is None:
        train_in(folder, recipe, settings, address)
        if not folder.bundle.exists():
            name = f"{serving.manifest.name.removesuffix('-retrained')}-retrained"
            export_bundle(folder.run, folder.bundle, "best", name, [])
        result = compare_bundles(
            find_policy(str(folder.bundle.absolute())), serving, environment, unseen
        )
        folder.close(result)
    report(result, as_json)


def train_in(
    folder: RequestFolder, recipe: Recipe, settings: BaseConfig, address: str | None
) -> None:
    """Train to the end, resuming an earlier attempt."""
    from loadmaster.platform.cli.train import create
    from loadmaster.platform.training.loop import launch
    from loadmaster.platform.training.run_folder import RunFolder

    if folder.is_trained:
        return
    resumed = folder.can_resume
    if resumed:
        run = RunFolder.open(folder.run)
    else:
        shutil.rmtree(folder.run, ignore_errors=True)
        run = create(folder.run, recipe.system, settings)
    if launch(recipe, settings, run, resumed, address, mlflow=None).interrupted:
        print("Stopped before the end; the same command resumes.")
        raise typer.Exit(options.INTERRUPTED)


def report(result: ComparisonResult, as_json: bool) -> None:
    if as_json:
        print(result.model_dump_json(indent=2))
        return
    new, old = result.candidate, result.serving
    word = "better" if result.better else "not proven better"
    print(
        f"{result.metric} on {counted(result.sequences, 'unseen sequence')}: {old.name} "
        f"{figure(old.mean)}, {new.name} {figure(new.mean)}: "
        f"{result.difference_text or 'unknown'} "
        f"[{figure(result.ci95[0])}, {figure(result.ci95[1])}], {word}"
    )
    print(f"Bundle: {new.folder}")


def figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
