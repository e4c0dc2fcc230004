"""Stands beside Tune while it runs a sweep: its limits, its display, its signals, its habits."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from loadmaster.platform.sweeps.records import Record, TrialDisplay, record_of
from loadmaster.platform.sweeps.settings import Sweep

ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a sweep file are from where it was started
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one greets even when it is told to be silent
}


class Limits(tune.Stopper):
    """When a trial, and when the sweep, has had enough."""

    def __init__(self, sweep: Sweep, clock: Callable[[], float] = time.monotonic) -> None:
        stop = sweep.settings.stop
        self.iterations, self.below = sweep.iterations, stop.validation_below
        self.seconds = None if stop.minutes is None else 60 * stop.minutes
        self.clock = clock
        self.began: float | None = None
        self.reached = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self.below is not None and result.get("validation", self.below) < self.below:
            self.reached = True
        return bool(result["iteration"] >= self.iterations)

    def stop_all(self) -> bool:
        if self.began is None:
            self.began = self.clock()
        late = self.seconds is not None and self.clock() - self.began >= self.seconds
        return late or self.reached

    def __getstate__(self) -> dict[str, Any]:
        """A sweep that is resumed has its minutes anew."""
        return {**self.__dict__, "began": None}


class Watch(tune.Callback):
    """Follows the trials for the display, and notices Ctrl-C."""

    def __init__(self, sweep: Sweep, scheduler: Any, display: TrialDisplay) -> None:
        self.sweep, self.scheduler, self.display = sweep, scheduler, display
        self.records: list[Record] = []
        self.interrupted = False

    def setup(self, **info: Any) -> None:
        """Tune has just put its own handler in place; it does the stopping, we do the talking."""
        if threading.current_thread() is not threading.main_thread():
            return
        stop: Any = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: Any) -> None:
            self.interrupted = True
            self.display.say("stopping; Ctrl-C again to leave at once")
            stop(number, frame)

        signal.signal(signal.SIGINT, interrupt)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._look_at(trials)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        if not self.interrupted:  # else all would seem to be over
            self._look_at(trials)

    def _look_at(self, trials: list[Any]) -> None:
        over = {record.name: record for record in self.records if record.over}
        found = [over.get(Path(t.path).name) or record_of(t, self.sweep) for t in trials]
        self.records = sorted(found, key=lambda record: record.name)
        self.display.update(self.records)

    def get_state(self) -> dict[str, Any] | None:
        """ASHA's rungs: resumed without them, it would compare late trials with no one."""
        if not isinstance(self.scheduler, ASHAScheduler):
            return None
        with tempfile.NamedTemporaryFile() as file:
            self.scheduler.save(file.name)
            return {"rungs": Path(file.name).read_bytes()}

    def set_state(self, state: dict[str, Any]) -> None:
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(state["rungs"])
            self.scheduler.restore(file.name)


@contextlib.contextmanager
def environment_set() -> Iterator[None]:
    """Tune takes some of its settings from there only."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def signals_restored() -> Iterator[None]:
    """Tune leaves its handlers behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
