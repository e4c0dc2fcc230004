"""A run's surroundings: Ray, the trainer, the trackers and the display, each ended in its turn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import ray
from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray_output import RAY_LOG, ray_output_in
from loadmaster.platform.ray_session import ray_session
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.display import display
from loadmaster.platform.training.loop import Outcome, run
from loadmaster.platform.training.recipe import Recipe
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
        stack.enter_context(_ending(folder, resumed))
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False, markup=False)
        with (
            interrupts_heeded(),
            console.status("starting Ray" if address is None else f"joining {address}"),
        ):
            stack.enter_context(ray_session(address, workers + 1))
        if (there := ray.cluster_resources().get("CPU", 0)) < workers:
            console.print(
                f"{workers} workers need a CPU each, the cluster has {there:.0f}: waiting"
            )
        with (
            interrupts_heeded(),
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


@contextmanager
def interrupts_heeded() -> Iterator[None]:
    """Ctrl-C ends what is inside at the latest with its end.

    What Ray runs while it starts swallows a KeyboardInterrupt now and then, wherever it happens to
    be raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


@contextmanager
def _ending(folder: RunFolder, resumed: bool) -> Iterator[None]:
    """What is left of a run that could not go on, and what its user is told."""
    try:
        yield
    except (InputError, KeyboardInterrupt) as end:
        if not resumed:
            folder.discard()
        if isinstance(end, KeyboardInterrupt) and folder.path.exists():
            print(f"Stopped at once. Go on: loadmaster train --resume {folder.path}")
        raise
    except Exception as fault:
        fault.add_note(f"What Ray printed is in {folder.path / RAY_LOG}")
        raise
