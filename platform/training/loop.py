"""A training run: Ray and the trainer are started, iterations run, and everything is saved.

A run can be stopped or killed at any time and resumed from its last checkpoint. A run at a URL is
published there with every validation and every checkpoint.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import (
    RAY_LOG,
    cleanup_on_exit,
    handled,
    ray_output_in,
    reraise_sigint,
)
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.training.config import BaseConfig, Recipe
from loadmaster.platform.training.display import Progress, display
from loadmaster.platform.training.history import describe_metric
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import Tracker, trackers_for
from loadmaster.platform.training.trainer import Trainer


@dataclass(frozen=True)
class Outcome:
    progress: Progress
    interrupted: bool


def launch(
    recipe: Recipe,
    config: BaseConfig,
    folder: RunFolder,
    resumed: bool,
    address: str | None,
    mlflow: str | None,
) -> Outcome:
    """Start Ray, trainer, trackers and display, and train. Progress goes to stderr."""
    checkpoint = folder.latest_checkpoint() if resumed else None
    workers, resources = config.rollouts.workers, config.resources
    with ExitStack() as stack:
        advice = f"Stopped at once. Go on: loadmaster train --resume {folder.place}"
        stack.enter_context(cleanup_on_exit(folder, resumed, lambda: print(advice)))
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False, markup=False)
        with console.status("starting Ray" if address is None else f"joining {address}"):
            stack.enter_context(ray_session(address, workers + resources.learners + 1))
        cluster = ray.cluster_resources()
        if (gpus := cluster.get("GPU", 0)) < resources.gpus:
            raise InputError(
                f"resources.gpus is {resources.gpus}; expected at most {gpus:.0f}, as many as the "
                "cluster has"
            )
        if (cpus := cluster.get("CPU", 0)) < (needed := workers + resources.learners):
            console.print(
                f"{needed} workers and learners need a CPU each, the cluster has {cpus:.0f}: "
                "waiting"
            )
        with (
            reraise_sigint(),
            console.status(f"compiling (first time only), starting {workers} rollout workers"),
        ):
            trainer = Trainer(recipe, config, resumed, folder.path)
            stack.callback(trainer.stop)
            if checkpoint is not None:
                trainer.restore(checkpoint)
                folder.resume(config, trainer.iteration)
        after = trainer.iteration if resumed else None
        trackers = trackers_for(folder, config, after, mlflow, console.print)
        for tracker in trackers:
            stack.callback(tracker.close)
        title = f"training {recipe.system} in {folder.place}"
        show = stack.enter_context(display(console, title))
        return run(trainer, folder, trackers, show)


def run(
    trainer: Trainer,
    folder: RunFolder,
    trackers: Sequence[Tracker],
    show: Callable[[Progress], None],
) -> Outcome:
    """Train to the end or until a stop is requested; both leave a checkpoint."""
    config, progress = trainer.config, _initial_progress(trainer, folder)

    def over() -> bool:
        return trainer.iteration >= progress.iterations or time.monotonic() >= progress.ends

    def log(figures: dict[str, float]) -> None:
        progress.update(figures)
        for tracker in trackers:
            tracker.log(int(figures["iteration"]), figures)
        show(progress)

    with _stop_requests(progress):
        show(progress)
        progress.baselines = trainer.recipe.baselines(config, trainer.validation_seeds)
        # Now, so that the curve can be drawn during the run.
        folder.update_manifest(
            **describe_metric(progress.metric), baselines=dict(progress.baselines)
        )
        if not progress.curve:
            log({"iteration": float(trainer.iteration), "validation": trainer.validate()})
            save_policy(trainer, folder, progress)
            checkpoint(trainer, folder)
        folder.publish()
        saved, done = trainer.iteration, over()
        while not done and not progress.stopping:
            figures = trainer.step()
            done = over()
            if done and "validation" not in figures:
                figures["validation"] = trainer.validate()
            log(figures)
            if "validation" in figures:
                save_policy(trainer, folder, progress)
            if trainer.iteration % config.checkpoints.every == 0:
                checkpoint(trainer, folder)
                saved = trainer.iteration
            if "validation" in figures or saved == trainer.iteration:
                folder.publish()
        interrupted = progress.stopping and not done
        if saved < trainer.iteration:
            checkpoint(trainer, folder)
        save_policy(trainer, folder, progress)
        progress.ended = True
        show(progress)
    iteration, validation = progress.best
    folder.update_manifest(
        status="interrupted" if interrupted else "finished",
        iterations=trainer.iteration,
        decisions=trainer.decisions,
        best={"iteration": iteration, "validation": validation},
    )
    folder.publish()
    return Outcome(progress, interrupted)


def checkpoint(trainer: Trainer, folder: RunFolder) -> None:
    """Write a checkpoint and remove the oldest beyond `checkpoints.last`."""
    trainer.save(folder.checkpoint_of(trainer.iteration))
    for old in folder.checkpoints()[: -trainer.config.checkpoints.last]:
        shutil.rmtree(old, ignore_errors=True)


def save_policy(trainer: Trainer, folder: RunFolder, progress: Progress) -> None:
    """Save the policy as the bundle `last`, and as `best` if it validated best so far."""
    results: dict[str, Any] = {
        "metric": progress.metric.name,
        "validation": dict(progress.curve).get(trainer.iteration),
        "validation_sequences": progress.sequences,
    }
    if progress.best_baseline is not None:
        baseline, reached = progress.best_baseline
        results |= {"best_baseline": baseline, "best_baseline_validation": reached}
    is_best = progress.best[0] == trainer.iteration
    for which in ("last", "best") if is_best else ("last",):
        trainer.save_policy(folder.path / which, folder.path.name, folder.manifest, results=results)


def _initial_progress(trainer: Trainer, folder: RunFolder) -> Progress:
    """Progress before the first iteration, with the rows of a resumed run."""
    config, now = trainer.config, time.monotonic()
    minutes = config.training.minutes
    progress = Progress(
        metric=trainer.recipe.metric(config),
        iterations=config.training.iterations,
        began=now,
        ends=now + 60 * minutes if minutes else math.inf,
        workers=config.rollouts.workers,
        sequences=len(trainer.validation_seeds),
        first_iteration=trainer.iteration,
    )
    for row in folder.rows():
        progress.update(row)
    return progress


@contextmanager
def _stop_requests(progress: Progress) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run after its iteration, a second one at once."""

    def stop(number: int, frame: Any) -> None:
        if progress.stopping:
            raise KeyboardInterrupt
        progress.stopping = True

    with handled(stop, signal.SIGINT, signal.SIGTERM):
        yield
