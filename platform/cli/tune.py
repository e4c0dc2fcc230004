"""`loadmaster tune`: search a system's settings with a sweep file."""

from __future__ import annotations

import datetime
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, flag, option
from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.sweeps.records import Outcome, Record
    from loadmaster.platform.sweeps.settings import Sweep


def tune(
    file: Annotated[
        Path | None, argument("FILE", "A sweep: tune_configs/<system>/<name>.yaml.")
    ] = None,
    trials: Annotated[int | None, option("N", "Number of trials. [default: the file's]")] = None,
    assignments: options.Assignments = None,
    address: options.RayAddress = None,
    resume: Annotated[Path | None, option("FOLDER", "Continue an interrupted sweep.")] = None,
    output: Annotated[Path | None, option("FOLDER", "For results. [default: sweeps/...]")] = None,
    check: Annotated[bool, flag("--check", "Check the file; run nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Search a system's settings with a sweep file.

    Trains many trials in parallel on Ray, stops the bad ones early, and writes the best
    configuration as best.yaml, which `loadmaster train SYSTEM --config` takes. Ctrl-C leaves a
    sweep that --resume continues. --set changes settings of all trials; a searched setting that
    is set is no longer searched.

    Example:

        loadmaster tune tune_configs/decima/asha.yaml

        loadmaster tune tune_configs/decima/asha.yaml --trials 8 --set training.iterations=100

        loadmaster tune --resume sweeps/decima-asha-20260301-120000
    """
    set_ray_env(address)
    from loadmaster.platform.sweeps.file import load_sweep
    from loadmaster.platform.sweeps.folder import SweepFolder, check_is_new
    from loadmaster.platform.training.run_folder import provenance

    if resume is not None:
        if file or assignments or trials is not None or output:
            raise UsageError(
                "--resume goes on as it was started; expected no FILE or option that changes "
                "the sweep"
            )
        folder, sweep = SweepFolder.open(resume)
        path = folder.path
    else:
        if file is None:
            raise UsageError("no sweep given; expected FILE, or --resume FOLDER")
        sweep = load_sweep(file, assignments or [], trials)
        now = datetime.datetime.now()
        path = output or Path("sweeps") / f"{sweep.name}-{now:%Y%m%d-%H%M%S}"
        check_is_new(path)
    if check:
        print_plan(sweep, as_json)
        return
    if resume is None:
        folder = SweepFolder.create(path, sweep, provenance())
    from loadmaster.platform.sweeps.run import launch

    outcome = launch(sweep, folder, resume is not None, address)
    print_outcome(sweep, outcome, path, as_json)


def print_plan(sweep: Sweep, as_json: bool) -> None:
    searched = [dimension.name for dimension in sweep.space.dimensions]
    if as_json:
        options.print_json({
            "sweep": sweep.name,
            "system": sweep.system.name,
            "trials": sweep.settings.trials,
            "iterations": sweep.iterations,
            "searched": searched,
            "needs": sweep.needs,
        })  # fmt: skip
        return
    print(
        f"{sweep.name} is sound: {sweep.settings.trials} trials of up to {sweep.iterations} "
        f"iterations, searching {', '.join(searched)}"
    )


def print_outcome(sweep: Sweep, outcome: Outcome, folder: Path, as_json: bool) -> None:
    """Print the result and the next command; raise the exit code."""
    from loadmaster.platform.sweeps.records import BEST, best_of, trial_table
    from loadmaster.platform.sweeps.space import in_words

    best = best_of(outcome.records, sweep)
    if as_json:
        options.print_json({
            "sweep": sweep.name,
            "system": sweep.system.name,
            "folder": str(folder),
            "metric": sweep.metric,
            "interrupted": outcome.interrupted,
            "best": None if best is None else {**_as_json(best), "config": str(folder / BEST)},
            "trials": [_as_json(record) for record in outcome.records],
        })  # fmt: skip
    else:
        options.stdout_console(160).print(trial_table(sweep, outcome.records))
        if best is not None:
            drawn = ", ".join(f"{name}={in_words(v)}" for name, v in best.parameters.items())
            print(f"Best: {best.name}, {sweep.metric} {best.value:.5g}, with {drawn}")
            print(f"Train with it: loadmaster train {sweep.system.name} --config {folder / BEST}")
        print(f"Trials and state: {folder}")
    if outcome.interrupted:
        print(f"go on with: loadmaster tune --resume {folder}", file=sys.stderr)
        raise typer.Exit(options.INTERRUPTED)
    if best is None:
        failed = next((record for record in outcome.records if record.fault), None)
        reason = f"; {failed.name}: {failed.fault}" if failed else ""
        print(f"no trial was judged{reason}", file=sys.stderr)
        raise typer.Exit(1)


def _as_json(record: Record) -> dict[str, Any]:
    found = asdict(record)
    if record.value is not None and not math.isfinite(record.value):
        found["value"] = None
    return found
