"""A training run from its folder to its last iteration, in a way that survives being stopped."""

from __future__ import annotations

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loadmaster.envs.settings import Settings
from loadmaster.models.bundle import save_bundle
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import Tracker
from loadmaster.platform.training.trainer import Trainer


@dataclass
class Progress:
    """What a display needs: the latest figures, and the curve so far."""

    metric: str
    iterations: int  # in all
    began: float
    ends: float = math.inf  # when its minutes are over, on the clock of `began`
    workers: int = 0  # that should roll out
    sequences: int = 0  # validated on
    first_iteration: int = 0  # of this session: a resumed run begins later
    stopping: bool = False  # somebody asked for it; the iteration under way is finished first
    ended: bool = False
    noted: float = 0.0  # when the latest figures came
    baselines: Mapping[str, float] = field(default_factory=dict)  # the metric, same sequences
    figures: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)  # iteration, validation

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        return min(self.baselines.items(), key=lambda pair: pair[1], default=None)

    @property
    def best(self) -> tuple[int, float]:
        return min(self.curve, key=lambda point: point[1])


@dataclass(frozen=True)
class Outcome:
    progress: Progress
    interrupted: bool


def run(
    trainer: Trainer,
    folder: RunFolder,
    trackers: Sequence[Tracker],
    show: Callable[[Progress], None],
) -> Outcome:
    """Train to the end, or until somebody asks to stop; either leaves a checkpoint."""
    config = trainer.config
    now, minutes = time.monotonic(), config.training.minutes
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
        _note(progress, row)

    def over() -> bool:
        return trainer.iteration >= progress.iterations or time.monotonic() >= progress.ends

    with _stop_requests(progress):
        show(progress)
        progress.baselines = trainer.recipe.baselines(config, trainer.validation_seeds)
        _add_to_manifest(folder, _measured(progress))  # so that its curve can be drawn meanwhile
        if not progress.curve:
            first = {"iteration": float(trainer.iteration), "validation": trainer.validate()}
            _log(trackers, progress, first)
            keep_policy(trainer, folder, progress)
            checkpoint(trainer, folder)  # from here on, a run that is killed can be resumed
        show(progress)
        saved, done = trainer.iteration, over()
        while not done and not progress.stopping:
            figures = trainer.step()
            done = over()
            if done and "validation" not in figures:
                figures["validation"] = trainer.validate()
            _log(trackers, progress, figures)
            show(progress)
            if "validation" in figures:
                keep_policy(trainer, folder, progress)
            if trainer.iteration % config.checkpoints.every == 0:
                checkpoint(trainer, folder)
                saved = trainer.iteration
        interrupted = progress.stopping and not done
        if saved < trainer.iteration:
            checkpoint(trainer, folder)
        keep_policy(trainer, folder, progress)
        progress.ended = True
        show(progress)
    status = "interrupted" if interrupted else "finished"
    _update_manifest(folder, status, trainer, progress)
    return Outcome(progress, interrupted)


def checkpoint(trainer: Trainer, folder: RunFolder) -> None:
    trainer.save(folder.checkpoint_of(trainer.iteration))
    for old in folder.checkpoints()[: -trainer.config.checkpoints.last]:
        shutil.rmtree(old, ignore_errors=True)


def keep_policy(trainer: Trainer, folder: RunFolder, progress: Progress) -> None:
    """The policy as a bundle: the latest, and where it is the best so far, that as well."""
    _save(trainer, folder, progress, "last")
    if progress.best[0] == trainer.iteration:
        _save(trainer, folder, progress, "best")


def _trained_on(config: TrainingConfig) -> dict[str, Any]:
    """Beside the environment's own defaults, which need not be those a system is trained with."""
    environment = getattr(config, "environment", None)
    if not isinstance(environment, Settings):
        return {}
    return environment.model_dump(mode="json", exclude_defaults=True)


def _save(trainer: Trainer, folder: RunFolder, progress: Progress, which: str) -> None:
    manifest, config = folder.manifest, trainer.config
    dumped = config.model_dump(mode="json")
    found = dict(progress.curve).get(trainer.iteration)
    results: dict[str, Any] = {
        "metric": progress.metric,
        "validation": found,
        "validation_sequences": progress.sequences,
    }
    if progress.best_baseline is not None:
        baseline, reached = progress.best_baseline
        results |= {"best_baseline": baseline, "best_baseline_validation": reached}
    save_bundle(
        folder.path / which,
        name=folder.path.name,
        system=trainer.recipe.system,
        network=trainer.recipe.network(config),
        weights=trainer.weights(),
        trained={
            "environment": _trained_on(config),
            "config": dumped,
            "seed": config.seed,
            "iterations": trainer.iteration,
            "decisions": trainer.decisions,
            **{name: manifest.get(name) for name in ("command", "machine", "revision")},
            "date": manifest.get("started"),
        },
        results=results,
        replace=True,
    )


def _note(progress: Progress, figures: Mapping[str, float]) -> None:
    progress.figures = {**progress.figures, **figures}
    progress.noted = time.monotonic()
    if "validation" in figures:
        progress.curve.append((int(figures["iteration"]), figures["validation"]))


def _log(trackers: Sequence[Tracker], progress: Progress, figures: Mapping[str, float]) -> None:
    _note(progress, figures)
    for tracker in trackers:
        tracker.log(int(figures["iteration"]), figures)


def _update_manifest(folder: RunFolder, status: str, trainer: Trainer, progress: Progress) -> None:
    iteration, value = progress.best
    reached = {
        "status": status,
        "iterations": trainer.iteration,
        "decisions": trainer.decisions,
        "best": {"iteration": iteration, "validation": value},
    }
    _add_to_manifest(folder, reached | _measured(progress))


def _measured(progress: Progress) -> dict[str, Any]:
    return {"metric": progress.metric, "baselines": dict(progress.baselines)}


def _add_to_manifest(folder: RunFolder, known: Mapping[str, Any]) -> None:
    folder.write_manifest(json.loads(json.dumps({**folder.manifest, **known})))


@contextmanager
def _stop_requests(progress: Progress) -> Iterator[None]:
    """The first Ctrl-C or TERM ends the run after its iteration; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return

    def ask(number: int, frame: Any) -> None:
        if progress.stopping:
            raise KeyboardInterrupt
        progress.stopping = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
