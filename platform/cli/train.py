"""`loadmaster train`: a policy learns, in parallel rollout workers."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.platform.cli.options import Assignments

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.training.config import TrainingConfig
    from loadmaster.platform.training.loop import Outcome
    from loadmaster.platform.training.recipe import Recipe
    from loadmaster.platform.training.run_folder import RunFolder


def train(
    system: Annotated[
        str | None, typer.Argument(metavar="SYSTEM", help="What to train; see loadmaster list.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in YAML, under those of --set.")
    ] = None,
    assignments: Assignments = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Rollout workers (rollouts.workers).")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs for the learner (resources.gpus).")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster: auto, or host:port. [default: a Ray of its own]"),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run's folder. [default: runs/...]")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Also track the run in MLflow there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Train a policy in parallel rollout workers on Ray.

    Leaves a run folder: config, metrics (CSV and TensorBoard), checkpoints, and the best policy
    as a bundle. Ctrl-C saves a checkpoint and says how to go on.

    Example:

        loadmaster train decima --set training.iterations=200 --workers 8

        loadmaster train decima --set environment.arrivals=poisson --gpus 1

        loadmaster train --resume runs/decima-20260101-120000
    """
    # Before torch is loaded. Its threads would otherwise spin while they wait, on the cores that
    # the rollout workers need: updates took twenty times as long on two busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rich.console import Console

    from loadmaster.envs.errors import InputError
    from loadmaster.platform.systems import find_system
    from loadmaster.platform.training.run_folder import RunFolder

    if resume is not None:
        refused = {"--config": config, "--output": output}
        for option, value in refused.items():
            if value is not None:
                raise InputError(f"{option} and --resume exclude each other; a run keeps its own")
        folder = RunFolder.open(resume)
        named = folder.manifest["system"]
        if system not in (None, named):
            raise InputError(f"{str(resume)!r} is a run of {named!r}, not of {system!r}")
        recipe = find_system(named).recipe
        settings = resumed_config(folder, recipe, assignments or [], workers, gpus)
    else:
        if system is None:
            raise InputError("no system given; expected `loadmaster train SYSTEM` or --resume RUN")
        recipe = find_system(system).recipe
        values = given_values(config, assignments or [], workers, gpus)
        settings = built(recipe, values)
        folder = create(output, system, settings)
    console = Console(stderr=True, highlight=False)
    outcome = run_training(recipe, settings, folder, resume is not None, address, mlflow, console)
    report(outcome, folder, as_json)


def given_values(
    config: Path | None, assignments: list[str], workers: int | None, gpus: int | None
) -> dict[str, Any]:
    """--config, then --set over it, then the two options that have names of their own."""
    from loadmaster.envs.settings import parse_assignments
    from loadmaster.platform.training.files import merged, read_config

    values: Mapping[str, Any] = read_config(config) if config is not None else {}
    values = merged(values, parse_assignments(assignments))
    if workers is not None:
        values = merged(values, {"rollouts": {"workers": workers}})
    if gpus is not None:
        values = merged(values, {"resources": {"gpus": gpus}})
    return dict(values)


def built(recipe: Recipe, values: Mapping[str, Any]) -> TrainingConfig:
    import torch

    from loadmaster.envs.errors import InputError
    from loadmaster.envs.settings import build_settings, over_defaults

    settings = build_settings(recipe.config_class, over_defaults(recipe.config_class(), values))
    if settings.resources.gpus and not torch.cuda.is_available():
        raise InputError(
            f"resources.gpus is {settings.resources.gpus} but torch sees no GPU here; expected 0"
        )
    recipe.check(settings)
    return settings


def resumed_config(
    folder: RunFolder,
    recipe: Recipe,
    assignments: list[str],
    workers: int | None,
    gpus: int | None,
) -> TrainingConfig:
    """The run's own config; what is set now goes over it (more iterations, other workers)."""
    from loadmaster.platform.training.files import merged

    own = folder.config(recipe.config_class).model_dump(mode="json")
    return built(recipe, merged(own, given_values(None, assignments, workers, gpus)))


def create(output: Path | None, system: str, settings: TrainingConfig) -> RunFolder:
    from loadmaster.platform.training.provenance import provenance
    from loadmaster.platform.training.run_folder import RunFolder

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = output or Path("runs") / f"{system}-{stamp}"
    manifest = {"system": system, "seed": settings.seed, "status": "running", **provenance()}
    return RunFolder.create(path, settings, manifest)


def run_training(
    recipe: Recipe,
    settings: TrainingConfig,
    folder: RunFolder,
    resumed: bool,
    address: str | None,
    mlflow: str | None,
    console: Any,
) -> Outcome:
    from loadmaster.platform.ray_session import ray_session
    from loadmaster.platform.training.display import display
    from loadmaster.platform.training.loop import run
    from loadmaster.platform.training.tracking import trackers_for
    from loadmaster.platform.training.trainer import Trainer

    if resumed:
        folder.latest_checkpoint()  # refuse before Ray starts
    with console.status(f"starting Ray with {settings.rollouts.workers} rollout workers"):
        session = ray_session(address, settings.rollouts.workers + 1)
        session.__enter__()
    try:
        with console.status("compiling (first time only) and building the learner"):
            trainer = Trainer(recipe, settings)
        try:
            if resumed:
                trainer.restore(folder.latest_checkpoint())
                folder.rewind(trainer.iteration)
            trackers = trackers_for(folder, settings, trainer.iteration, mlflow)
            with display(console, f"training {recipe.system} in {folder.path}") as show:
                outcome = run(trainer, folder, trackers, show)
            for tracker in trackers:
                tracker.close()
            return outcome
        finally:
            trainer.stop()
    finally:
        session.__exit__(None, None, None)


def report(outcome: Outcome, folder: RunFolder, as_json: bool) -> None:
    from loadmaster.platform.training.curve import draw_curve
    from loadmaster.platform.training.display import WORDS, percent

    progress = outcome.progress
    picture = draw_curve(folder)
    iteration, best = progress.best
    name, baseline = progress.best_baseline
    if as_json:
        print(json.dumps({
            "run": str(folder.path),
            "interrupted": outcome.interrupted,
            "metric": progress.metric,
            "untrained": progress.curve[0][1],
            "best": {"iteration": iteration, "value": best},
            "baselines": dict(progress.baselines),
            "curve": str(picture),
        }, indent=2))  # fmt: skip
        return
    word = WORDS.get(progress.metric, progress.metric)
    print(
        f"{word} on {len(progress.curve)} validations: {progress.curve[0][1]:.1f} s untrained, "
        f"{best:.1f} s best (iteration {iteration}); {name} {baseline:.1f} s, "
        f"{percent(best, baseline)}"
    )
    print(f"Run: {folder.path}; learning curve: {picture}")
    if outcome.interrupted:
        print(f"Stopped before the end. Go on: loadmaster train --resume {folder.path}")
    print(f"Next: loadmaster export {folder.path} bundles/NAME")
