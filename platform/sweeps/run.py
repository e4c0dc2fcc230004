"""Runs a sweep with Ray Tune, from its folder to its best configuration."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from itertools import count
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator
from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import RAY_LOG, cleanup_on_exit, ray_output_in
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.sweeps.callbacks import Limits, Watch, environment_set, signals_restored
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.records import Outcome, TrialDisplay, write_best, write_trials
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.trial import TRAINER, Trial, TrialPlan

KEPT = 4  # checkpoints a trial
RETRIES = 1  # of a trial that fails, from its last checkpoint: machines come and go


def run_sweep(
    sweep: Sweep, folder: SweepFolder, display: TrialDisplay, trainer_at: str = TRAINER
) -> Outcome:
    """All trials, or as far as they come before somebody stops them; Ray must be there.

    A folder that holds the state of an interrupted sweep goes on from there.
    """
    plan = TrialPlan(
        system=sweep.system,
        space=sweep.space,
        metric=sweep.metric,
        mode=sweep.settings.mode,
        resources=sweep.settings.resources,
        trainer_at=trainer_at,
    )
    trainable = tune.with_resources(
        tune.with_parameters(Trial, plan=plan),
        lambda drawn: tune.PlacementGroupFactory(plan.bundles(drawn)),
    )
    scheduler = _scheduler(sweep)
    watch = Watch(sweep, scheduler, display)
    concurrent = sweep.settings.resources.concurrent
    numbers = count(folder.trials_made + 1)
    with environment_set(), signals_restored():
        # Not tune.Tuner: a restored one brings back yesterday's display and clock as pickles.
        tune.run(
            trainable,
            name=folder.tune.name,
            storage_path=str(folder.tune.parent.resolve()),
            resume_config=tune.ResumeConfig() if folder.begun else None,
            config={dimension.name: dimension.domain() for dimension in sweep.space.dimensions},
            num_samples=sweep.settings.trials,
            metric=sweep.metric,
            mode=sweep.settings.mode,
            scheduler=scheduler,
            search_alg=_searcher(sweep),
            max_concurrent_trials=concurrent if sweep.settings.searcher.optuna else None,
            stop=Limits(sweep),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=KEPT, checkpoint_frequency=1),
            max_failures=RETRIES,
            raise_on_failed_trial=False,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"trial-{next(numbers):03d}",
            callbacks=[watch],
            verbose=0,
        )
    outcome = Outcome(tuple(watch.records), watch.interrupted)
    write_trials(outcome.records, sweep, folder.path)
    if best := outcome.best(sweep):
        write_best(best, outcome, sweep, folder.path, folder.command)
    return outcome


def shortage(sweep: Sweep) -> str | None:
    """What this Ray lacks for a single trial of the sweep, in words; None if one fits."""
    have = ray.cluster_resources()
    for kind, need in sweep.needs.items():
        if need > have.get(kind, 0.0):
            return f"a trial takes {need:g} {kind}s and there are {have.get(kind, 0.0):g}"
    return None


def _scheduler(sweep: Sweep) -> Any:
    asha, pbt = sweep.settings.scheduler.asha, sweep.settings.scheduler.pbt
    if asha:
        return ASHAScheduler(
            time_attr="iteration",
            max_t=asha.max_iterations or sweep.iterations,
            grace_period=asha.grace_iterations,
            reduction_factor=asha.reduction,
        )
    if pbt:
        return PopulationBasedTraining(
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
    return FIFOScheduler()


def _searcher(sweep: Sweep) -> Any:
    searcher = sweep.settings.searcher
    if searcher.optuna is None:
        concurrent = sweep.settings.resources.concurrent or 0
        return BasicVariantGenerator(max_concurrent=concurrent, random_state=searcher.seed)
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=searcher.seed))


# A sweep's surroundings: Ray, its log and the display, each ended in its turn.


def launch(sweep: Sweep, folder: SweepFolder, resumed: bool, address: str | None) -> Outcome:
    """All trials, or as far as they come before somebody stops them. Progress goes to stderr."""
    with ExitStack() as stack:
        go_on = f"go on with: loadmaster tune --resume {folder.path}"
        stack.enter_context(cleanup_on_exit(folder, resumed, lambda: print(go_on, file=sys.stderr)))
        stderr = stack.enter_context(ray_output_in(folder.path / RAY_LOG))
        console = Console(file=stderr, highlight=False)
        with console.status("starting Ray" if address is None else f"joining {address}"):
            stack.enter_context(ray_session(address, math.ceil(sweep.needs["CPU"])))
            # Late: Tune takes seconds to import, and is to speak into the log from the start.
            from loadmaster.platform.sweeps.records import TrialDisplay

            lacking = shortage(sweep)
        if lacking is not None:
            if address is None:
                raise InputError(f"{lacking}; expected a larger machine, or --address")
            console.print(f"{lacking}; waiting for the cluster to grow", soft_wrap=True)
        display = stack.enter_context(TrialDisplay(sweep, console))
        return run_sweep(sweep, folder, display)
