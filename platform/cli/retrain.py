"""`loadmaster retrain`: what the service asks for when a workload has left its policy behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli.options import Assignments
from loadmaster.platform.ray.session import in_a_job, lower_priority, set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.training.config import Recipe, TrainingConfig
    from loadmaster.platform.training.retraining import RetrainingFolder
    from loadmaster.serving.policies.comparison import ComparisonResult

INTERRUPTED = 130  # as a shell says of a command that Ctrl-C ended


def retrain(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="What the policy decides for.")],
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="BUNDLE", help="The policy that serves: its name or folder."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="For run, bundle and verdict; the same one goes on."),
    ],
    assignments: Assignments = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="At most (training.iterations). [default: 200]")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="At most (training.minutes). [default: 20]")
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Unseen sequences to judge both policies on.")
    ] = 32,
    address: Annotated[
        str | None,
        typer.Option(
            help="A running Ray cluster: auto, or host:port. [default: the cluster's own in a "
            "job, else a Ray of its own]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Train a bundle further on a changed workload, and judge it.

    It goes on the way the policy was trained, with the settings of --set over that, and compares
    the best it found with the policy it began with, on sequences that neither has met. Leaves a
    bundle and verdict.json. Stopped or killed, the same command goes on. As a job it leaves the
    processor to the service that may have asked for it.

    Example:

        loadmaster retrain decima --from decima-stream --output retrained \\
            --set environment.interarrival_s=12 --minutes 10
    """
    if in_a_job():
        lower_priority()
    set_ray_env(address)
    from loadmaster.envs.errors import InputError
    from loadmaster.envs.settings import parse_assignments
    from loadmaster.platform.cli.train import built
    from loadmaster.platform.evaluation.improvement import compare_policies
    from loadmaster.platform.evaluation.run import choose_seeds
    from loadmaster.platform.systems.bundle_ref import find_policy
    from loadmaster.platform.systems.registry import find_system
    from loadmaster.platform.training.export import export_bundle
    from loadmaster.platform.training.retraining import RetrainingFolder, finetune_config
    from loadmaster.platform.training.run_folder import merged

    recipe, serving = find_system(system).recipe, find_policy(start)
    if serving.system.name != system:
        raise InputError(f"--from {start!r} is a policy of {serving.system.name!r}, not {system!r}")
    bounds = {"iterations": iterations, "minutes": minutes}
    told = {"training": {name: value for name, value in bounds.items() if value is not None}}
    given = merged(parse_assignments(assignments or []), told)
    settings = built(recipe, finetune_config(serving.manifest, serving.folder, given))
    environment = getattr(settings, "environment", None)
    if environment is None:
        raise InputError(f"system {system!r} has no environment to judge policies in")
    # Past those that chose the best policy of the run, which training never draws either.
    first = settings.validation.first_seed + settings.validation.sequences
    unseen = choose_seeds(first, seeds)
    folder = RetrainingFolder(output)
    folder.open({
        "system": system,
        "serving": serving.manifest.sha256,
        "sequences": seeds,
        "settings": settings.model_dump(mode="json"),
    })  # fmt: skip
    verdict = folder.verdict
    if verdict is None:
        train_in(folder, recipe, settings, address)
        if not folder.bundle.exists():
            name = f"{serving.manifest.name.removesuffix('-retrained')}-retrained"
            export_bundle(folder.run, folder.bundle, "best", name, [])
        verdict = compare_policies(
            find_policy(str(folder.bundle.absolute())), serving, environment, unseen
        )
        folder.close(verdict)
    report(verdict, as_json)


def train_in(
    folder: RetrainingFolder, recipe: Recipe, settings: TrainingConfig, address: str | None
) -> None:
    """To the end, from wherever an earlier attempt came to."""
    from loadmaster.platform.cli.train import create
    from loadmaster.platform.training.launch import launch
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
        print("Stopped before the end; the same command goes on.")
        raise typer.Exit(INTERRUPTED)


def report(verdict: ComparisonResult, as_json: bool) -> None:
    if as_json:
        print(verdict.model_dump_json(indent=2))
        return
    new, old = verdict.candidate, verdict.serving
    word = "better" if verdict.better else "not proven better"
    print(
        f"{verdict.metric} on {verdict.sequences} unseen sequences: {old.name} "
        f"{figure(old.mean)}, {new.name} {figure(new.mean)}: "
        f"{figure(verdict.difference_percent)}% "
        f"[{figure(verdict.ci95[0])}, {figure(verdict.ci95[1])}], {word}"
    )
    print(f"Bundle: {new.folder}")


def figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
