"""`loadmaster train`: train a policy on Ray."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, option
from loadmaster.platform.ray.session import cluster_address, set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.models.storage import Place
    from loadmaster.platform.training.config import BaseConfig, Recipe
    from loadmaster.platform.training.loop import Outcome
    from loadmaster.platform.training.run_folder import RunFolder


def train(
    system: Annotated[str | None, argument("SYSTEM", "What to train; see loadmaster list.")] = None,
    config: Annotated[str | None, option("FILE", "Settings in YAML; --set overrides them.")] = None,
    assignments: options.Assignments = None,
    workers: Annotated[int | None, option("N", "Rollout workers (rollouts.workers).")] = None,
    gpus: Annotated[int | None, option("N", "GPUs to learn on (resources.gpus).")] = None,
    address: options.RayAddress = None,
    resume: Annotated[str | None, option("RUN", "Continue a stopped run.")] = None,
    output: Annotated[
        str | None, option("FOLDER", "The run's folder, or a URL. [default: runs/...]")
    ] = None,
    mlflow: Annotated[str | None, option("URI", "Also track the run in MLflow there.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a policy in parallel rollout workers on Ray.

    Writes a run folder: config, metrics (CSV and TensorBoard), checkpoints, and the best policy
    as a bundle. Ctrl-C ends the iteration, saves a checkpoint and prints the command to resume; a
    second Ctrl-C stops at once. Exit codes: 0 trained to the end, 2 bad input, 130 stopped early.

    Example:

        loadmaster train decima --set training.iterations=200 --workers 8

        loadmaster train decima --set environment.arrivals=poisson --gpus 1

        loadmaster train --resume runs/decima-20260101-120000

        loadmaster train decima --output s3://bucket/runs/decima-1
    """
    set_ray_env(address)
    from loadmaster.envs.errors import InputError
    from loadmaster.envs.registry import find_system
    from loadmaster.models.storage import parse_place
    from loadmaster.platform.training.config import check_same_run, merged
    from loadmaster.platform.training.run_folder import RunFolder
    from loadmaster.platform.training.tracking import mlflow_client

    if mlflow is not None:
        mlflow_client()
    values = given_values(config, assignments or [], workers, gpus)
    if resume is not None:
        for option, value in (("--config", config), ("--output", output)):
            if value is not None:
                raise UsageError(f"{option} and --resume exclude each other; a run keeps its own")
        folder = RunFolder.open(parse_place(resume))
    else:
        if system is None:
            raise UsageError("no system given; expected `loadmaster train SYSTEM` or --resume RUN")
        recipe = find_system(system).load("training")
        settings = new_config(recipe, values, address)
        folder = create(None if output is None else parse_place(output), system, settings)
    from loadmaster.platform.training.loop import launch

    with folder.released():
        if resume is not None:
            named = folder.manifest["system"]
            if system not in (None, named):
                raise InputError(f"{resume!r} is a run of {named!r}, not of {system!r}")
            folder.latest_checkpoint()
            recipe = find_system(named).load("training")
            # More iterations or other workers may be set; what makes it another run may not.
            own = folder.config(recipe.config_class)
            settings = built(recipe, merged(own.model_dump(mode="json"), values), address)
            check_same_run(own, settings, folder.place)
        outcome = launch(recipe, settings, folder, resume is not None, address, mlflow)
        report(outcome, folder, as_json)
    if outcome.interrupted:
        raise typer.Exit(options.INTERRUPTED)


def given_values(
    config: str | None, assignments: list[str], workers: int | None, gpus: int | None
) -> dict[str, Any]:
    """Merge --config, --set, --workers and --gpus; the later one wins."""
    from loadmaster.envs.settings import parse_assignments
    from loadmaster.models.storage import parse_place
    from loadmaster.platform.training.config import merged
    from loadmaster.platform.training.run_folder import read_config

    values: Mapping[str, Any] = read_config(parse_place(config)) if config is not None else {}
    values = merged(values, parse_assignments(assignments))
    for section, key, value in (("rollouts", "workers", workers), ("resources", "gpus", gpus)):
        if value is not None:
            values = merged(values, {section: {key: value}})
    return dict(values)


def built(recipe: Recipe, values: Mapping[str, Any], address: str | None = None) -> BaseConfig:
    import torch

    from loadmaster.envs.settings import build_settings, over_defaults

    settings = build_settings(recipe.config_class, over_defaults(recipe.config_class(), values))
    gpus, here = settings.resources.gpus, torch.cuda.device_count()
    # A cluster's own GPUs are counted once it is joined.
    if cluster_address(address) is None and gpus > here:
        raise UsageError(
            f"resources.gpus is {gpus}; expected {here} at most, as many as torch sees here"
        )
    recipe.check(settings)
    return settings


def new_config(recipe: Recipe, values: Mapping[str, Any], address: str | None = None) -> BaseConfig:
    from loadmaster.platform.training.trainer import starting_weights

    settings = built(recipe, values, address)
    starting_weights(recipe, settings)  # a fault is raised before Ray starts
    return settings


def create(output: Place | None, system: str, settings: BaseConfig) -> RunFolder:
    from loadmaster.platform.training.run_folder import RunFolder, provenance

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = output or Path("runs") / f"{system}-{stamp}"
    manifest = {"system": system, "seed": settings.seed, "status": "running", **provenance()}
    return RunFolder.create(path, settings, manifest)


def report(outcome: Outcome, folder: RunFolder, as_json: bool) -> None:
    from loadmaster.platform.training.curve import draw_curve

    progress = outcome.progress
    picture = folder.place / draw_curve(folder).name
    iteration, best = progress.best
    if as_json:
        options.print_json({
            "run": str(folder.place),
            "interrupted": outcome.interrupted,
            "iterations": int(progress.figures["iteration"]),
            "metric": progress.metric.name,
            "untrained": progress.curve[0][1],
            "best": {"iteration": iteration, "value": best},
            "baselines": dict(progress.baselines),
            "curve": str(picture),
        })  # fmt: skip
        return
    from loadmaster.envs.errors import counted

    metric = progress.metric
    print(
        f"{metric.label} on {counted(progress.sequences, 'unseen sequence')}: "
        f"{metric.text(progress.curve[0][1])} at first, {metric.text(best)} at best "
        f"(iteration {iteration})"
    )
    if progress.best_baseline is not None:
        name, baseline = progress.best_baseline
        against = metric.change(best, baseline)
        print(f"{name}, the best baseline: {metric.text(baseline)}; the policy {against}")
    print(f"Run: {folder.place}; learning curve: {picture}")
    if outcome.interrupted:
        print(f"Stopped before the end. Go on: loadmaster train --resume {folder.place}")
    print(f"Next: loadmaster export {folder.place} bundles/NAME")
