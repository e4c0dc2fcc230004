"""Runs a sweep with Ray Tune, from its folder to its best configuration."""

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator
from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import RAY_LOG, cleanup_on_exit, ray_output_in
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.sweeps import records
from loadmaster.platform.sweeps.folder import TUNE, SweepFolder
from loadmaster.platform.sweeps.records import Outcome, Record, TrialDisplay
from loadmaster.platform.sweeps.report import write_report
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.trial import TRAINER, Trial

CHECKPOINTS = 4  # kept per trial
RETRIES = 1  # of a failed trial, from its last checkpoint
ENVIRONMENT = {  # what Tune reads from environment variables only
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a sweep file start at the working directory
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints a banner even with verbose=0
}


def launch(sweep: Sweep, folder: SweepFolder, resumed: bool, address: str | None) -> Outcome:
    """Start Ray and the display, and run the sweep. Progress goes to stderr."""
    with ExitStack() as stack:
        advice = f"go on with: loadmaster tune --resume {folder.place}"
        stack.enter_context(
            cleanup_on_exit(folder, resumed, lambda: print(advice, file=sys.stderr))
        )
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False)
        with console.status("starting Ray" if address is None else f"joining {address}"):
            stack.enter_context(ray_session(address, math.ceil(sweep.needs["CPU"])))
        if (lacking := shortage(sweep)) is not None:
            if address is None:
                raise InputError(f"{lacking}; expected a larger machine, or --address")
            console.print(f"{lacking}; waiting for the cluster to grow", soft_wrap=True)
        display = TrialDisplay(sweep, console)
        stack.enter_context(display.live)
        return run_sweep(sweep, folder, display)


def run_sweep(
    sweep: Sweep, folder: SweepFolder, display: TrialDisplay, trainer_at: str = TRAINER
) -> Outcome:
    """Run all trials on the current Ray, or continue the sweep whose state is in the folder."""
    trainable = tune.with_resources(
        tune.with_parameters(
            Trial, sweep=sweep, provenance=dict(folder.manifest), trainer_at=trainer_at
        ),
        lambda drawn: tune.PlacementGroupFactory(sweep.bundles(drawn)),
    )
    scheduler = scheduler_of(sweep)
    monitor = TrialMonitor(sweep, scheduler, display)
    concurrent = sweep.settings.resources.concurrent
    minutes = sweep.settings.stop.minutes
    numbers = count(folder.trials_made + 1)
    os.environ.update(ENVIRONMENT)

    def write_trials() -> None:
        records.write_trials(monitor.records, sweep, folder.path)

    with _signals_restored(), folder.storage_checked(write_trials):
        # Not tune.Tuner: a restored one unpickles the display and clock of the earlier session.
        analysis = tune.run(
            trainable,
            name=TUNE,
            **folder.tune_storage,
            resume_config=tune.ResumeConfig() if folder.begun else None,
            config=_domains(sweep),
            num_samples=1 if sweep.settings.searcher.grid else sweep.settings.trials,
            metric=sweep.metric,
            mode=sweep.settings.mode,
            scheduler=scheduler,
            search_alg=_searcher_of(sweep),
            max_concurrent_trials=concurrent if sweep.settings.searcher.optuna else None,
            stop=StopConditions(sweep),
            time_budget_s=60 * minutes if minutes else None,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=CHECKPOINTS, checkpoint_frequency=1
            ),
            max_failures=RETRIES,
            raise_on_failed_trial=False,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"trial-{next(numbers):03d}",
            callbacks=[monitor],
            verbose=0,
        )
    outcome = Outcome(tuple(monitor.records), monitor.interrupted)
    write_trials()
    if best := records.best_of(outcome.records, sweep):
        records.write_best(best, outcome, sweep, folder.path, folder.command, folder.place)
    write_report(folder, sweep, outcome.records, analysis)
    folder.publish()
    return outcome


def shortage(sweep: Sweep) -> str | None:
    """What this Ray lacks for a single trial; None if one fits."""
    have = ray.cluster_resources()
    for kind, need in sweep.needs.items():
        if need > have.get(kind, 0.0):
            return f"a trial takes {need:g} {kind}s and there are {have.get(kind, 0.0):g}"
    return None


class StopConditions(tune.Stopper):
    """Ends a trial after its iterations, and the sweep at a reached value."""

    def __init__(self, sweep: Sweep) -> None:
        self.iterations, self.below = sweep.iterations, sweep.settings.stop.validation_below
        self.reached = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self.below is not None and result.get("validation", self.below) < self.below:
            self.reached = True
        return bool(result["iteration"] >= self.iterations)

    def stop_all(self) -> bool:
        return self.reached


class TrialMonitor(tune.Callback):
    """Updates the display with the trials' records, ends hung trials, and notices Ctrl-C."""

    def __init__(self, sweep: Sweep, scheduler: Any, display: TrialDisplay) -> None:
        self.sweep, self.scheduler, self.display = sweep, scheduler, display
        self.records: list[Record] = []
        self.interrupted = False
        self.stall_s = 60 * (sweep.settings.stop.stall_minutes or math.inf)
        self.reported_at: dict[str, float] = {}  # by trial, while it runs
        self.hung: set[str] = set()

    def setup(self, **info: Any) -> None:
        """Wrap the SIGINT handler that Tune has just installed."""
        stop: Any = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: Any) -> None:
            self.interrupted = True
            self.display.print("stopping; Ctrl-C again to leave at once")
            stop(number, frame)

        signal.signal(signal.SIGINT, interrupt)

    def on_trial_start(self, trial: Any, **info: Any) -> None:
        self.reported_at[trial.trial_id] = time.monotonic()

    on_trial_restore = on_trial_save = on_trial_result = on_trial_start

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        for trial in trials:
            if trial.status == "RUNNING" and trial.trial_id not in self.hung:
                self._end_if_hung(trial)
        self._update(trials)

    def _end_if_hung(self, trial: Any) -> None:
        """Kill the process of a trial without a report for too long; it is not retried.

        Its rollout workers end with it. Tune notices as with a crash.
        """
        actor = trial.temporary_state.ray_actor
        silent_s = time.monotonic() - self.reported_at.get(trial.trial_id, math.inf)
        if actor is not None and silent_s > self.stall_s:
            self.hung.add(trial.trial_id)
            trial.max_failures = 0
            ray.kill(actor)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write the reason to the error file, where `record_of` finds it, also after a resume."""
        if trial.trial_id in self.hung:
            reached = int((trial.last_result or {}).get("iteration", 0))
            limit = f"{self.stall_s / 60:g} minutes (stop.stall_minutes)"
            with Path(trial.error_file).open("a", encoding="utf-8") as file:
                file.write(f"{records.HUNG}no report for {limit}, after iteration {reached}\n")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        if not self.interrupted:  # Tune marks all trials as terminated
            self._update(trials)

    def _update(self, trials: list[Any]) -> None:
        over = {record.name: record for record in self.records if record.over}
        found = [over.get(Path(t.path).name) or records.record_of(t, self.sweep) for t in trials]
        self.records = sorted(found, key=lambda record: record.name)
        self.display.update(self.records)

    def get_state(self) -> dict[str, Any] | None:
        """ASHA's rungs, which Tune does not save: later trials are compared with them."""
        return vars(self.scheduler) if isinstance(self.scheduler, ASHAScheduler) else None

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self.scheduler).update(state)


class SavesEndedTrials(TrialScheduler):
    """Has Tune save its state after the step in which a trial has ended.

    Tune 2.60 saves it every ten seconds; if it is killed before, `--resume` would run the trial
    again. Of a trial whose process died it may even keep the state from before:
    TuneController._schedule_trial_stop returns before it marks the trial.
    """

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        tune_controller._checkpoint_manager._should_force_sync_up = True

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)
        tune_controller._mark_trial_to_checkpoint(trial)
        tune_controller._checkpoint_manager._should_force_sync_up = True


class Asha(SavesEndedTrials, ASHAScheduler):
    pass


class Pbt(SavesEndedTrials, PopulationBasedTraining):
    pass


class Fifo(SavesEndedTrials, FIFOScheduler):
    pass


def scheduler_of(sweep: Sweep) -> Any:
    asha, pbt = sweep.settings.scheduler.asha, sweep.settings.scheduler.pbt
    if asha:
        return Asha(
            time_attr="iteration",
            max_t=asha.max_iterations or sweep.iterations,
            grace_period=asha.grace_iterations,
            reduction_factor=asha.reduction,
        )
    if pbt:
        return Pbt(
            time_attr="iteration",
            perturbation_interval=pbt.every_iterations,
            quantile_fraction=pbt.quantile,
            resample_probability=pbt.resample,
            hyperparam_mutations={
                d.name: d.domain() if d.numeric else list(d.arguments)
                for d in sweep.space.dimensions
            },
            custom_explore_fn=sweep.space.settle,  # back into the range, where it was left
            log_config=False,
        )
    return Fifo()


def _domains(sweep: Sweep) -> dict[str, Any]:
    """Tune's distribution of each dimension; in a grid all of its values."""
    if sweep.settings.searcher.grid:
        return {d.name: tune.grid_search(list(d.arguments)) for d in sweep.space.dimensions}
    return {d.name: d.domain() for d in sweep.space.dimensions}


def _searcher_of(sweep: Sweep) -> Any:
    searcher = sweep.settings.searcher
    if searcher.optuna is None:
        concurrent = sweep.settings.resources.concurrent or 0
        return BasicVariantGenerator(max_concurrent=concurrent, random_state=searcher.seed)
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=searcher.seed))


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers that Tune replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
