"""A run's surroundings: Ray, the trainer, the trackers and the display, each ended in its turn."""

from __future__ import annotations

from contextlib import ExitStack

import ray
from rich.console import Console

from loadmaster.platform.ray.cleanup import RAY_LOG, cleanup_on_exit, ray_output_in, reraise_sigint
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.training.config import Recipe, TrainingConfig
from loadmaster.platform.training.display import display
from loadmaster.platform.training.loop import Outcome, run
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import trackers_for
from loadmaster.platform.training.trainer import Trainer


def launch(
    recipe: Recipe,
    config: TrainingConfig,
    folder: RunFolder,
    resumed: bool,
    address: str | None,
    mlflow: str | None,
) -> Outcome:
    """Train, to the end or until somebody asks to stop. Progress goes to stderr."""
    checkpoint = folder.latest_checkpoint() if resumed else None
    workers = config.rollouts.workers
    with ExitStack() as stack:
        go_on = f"Stopped at once. Go on: loadmaster train --resume {folder.path}"
        stack.enter_context(cleanup_on_exit(folder, resumed, lambda: print(go_on)))
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False, markup=False)
        with console.status("starting Ray" if address is None else f"joining {address}"):
            stack.enter_context(ray_session(address, workers + 1))
        if (there := ray.cluster_resources().get("CPU", 0)) < workers:
            console.print(
                f"{workers} workers need a CPU each, the cluster has {there:.0f}: waiting"
            )
        with (
            reraise_sigint(),
            console.status(f"compiling (first time only), starting {workers} rollout workers"),
        ):
            trainer = Trainer(recipe, config, resumed)
            stack.callback(trainer.stop)
            if checkpoint is not None:
                trainer.restore(checkpoint)
                folder.go_on(config, trainer.iteration)
        after = trainer.iteration if resumed else None
        trackers = trackers_for(folder, config, after, mlflow, console.print)
        for tracker in trackers:
            stack.callback(tracker.close)
        title = f"training {recipe.system} in {folder.path}"
        show = stack.enter_context(display(console, title))
        return run(trainer, folder, trackers, show)
