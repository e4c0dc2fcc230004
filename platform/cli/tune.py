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
    from loadmaster.models.storage import Place
    from loadmaster.platform.sweeps.records import Outcome, Record
    from loadmaster.platform.sweeps.settings import Sweep

TRIALS_FAILED = 3  # exit code of a sweep with a best trial and others that failed or hung


def tune(
    file: Annotated[
        Path | None, argument("FILE", "A sweep: tune_configs/<system>/<name>.yaml.")
    ] = None,
    trials: Annotated[int | None, option("N", "Number of trials. [default: the file's]")] = None,
    assignments: options.Assignments = None,
    address: options.RayAddress = None,
    resume: Annotated[str | None, option("FOLDER", "Continue an interrupted sweep.")] = None,
    report: Annotated[
        str | None, option("FOLDER", "Write the report of a sweep anew, also under way.")
    ] = None,
    output: Annotated[
        str | None, option("FOLDER", "For results, or a URL. [default: sweeps/...]")
    ] = None,
    check: Annotated[bool, flag("--check", "Check the file; run nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Search a system's settings with a sweep file.

    Trains many trials in parallel on Ray, stops the bad ones early, and writes the best
    configuration as best.yaml, which `loadmaster train SYSTEM --config` takes, and charts of all
    trials as report.html. Ctrl-C leaves a sweep that --resume continues. --set changes settings of
    all trials; a searched setting that is set is no longer searched. Exit code 3: some trials
    failed or hung.

    Example:

        loadmaster tune tune_configs/decima/asha.yaml

        loadmaster tune tune_configs/decima/asha.yaml --trials 8 --set training.iterations=100

        loadmaster tune --resume sweeps/decima-asha-20260301-120000

        loadmaster tune --report sweeps/decima-asha-20260301-120000
    """
    set_ray_env(address)
    from loadmaster.models.storage import parse_place
    from loadmaster.platform.sweeps.file import load_sweep
    from loadmaster.platform.sweeps.folder import SweepFolder, check_is_new
    from loadmaster.platform.training.run_folder import provenance

    changes = file or assignments or trials is not None or output
    if report is not None:
        if changes or resume or check:
            raise UsageError("--report only reads a sweep; expected no FILE or other option")
        from loadmaster.platform.sweeps.report import REPORT, rewrite_report

        folder, sweep = SweepFolder.open(parse_place(report), "--report")
        with folder.released():
            rewrite_report(folder, sweep)
        path = str(folder.place / REPORT)
        if as_json:
            options.print_json({"report": path})
        else:
            print(f"Report: {path}")
        return
    if resume is not None:
        if changes:
            raise UsageError(
                "--resume goes on as it was started; expected no FILE or option that changes "
                "the sweep"
            )
        folder, sweep = SweepFolder.open(parse_place(resume))
    else:
        if file is None:
            raise UsageError("no sweep given; expected FILE, or --resume FOLDER")
        sweep = load_sweep(file, assignments or [], trials)
        now = datetime.datetime.now()
        default = Path("sweeps") / f"{sweep.name}-{now:%Y%m%d-%H%M%S}"
        place = default if output is None else parse_place(output)
        check_is_new(place)
    if check:
        print_plan(sweep, as_json)
        if resume is not None:
            folder.close()
        return
    if resume is None:
        folder = SweepFolder.create(place, sweep, provenance())
    from loadmaster.platform.sweeps.run import launch

    with folder.released():
        outcome = launch(sweep, folder, resume is not None, address)
    print_outcome(sweep, outcome, folder.place, as_json)


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


def print_outcome(sweep: Sweep, outcome: Outcome, folder: Place, as_json: bool) -> None:
    """Print the result and the next command; raise the exit code."""
    from loadmaster.platform.sweeps.records import BEST, best_of, trial_table
    from loadmaster.platform.sweeps.report import REPORT

    best = best_of(outcome.records, sweep)
    failed = [record for record in outcome.records if record.state in ("failed", "hung")]
    if as_json:
        options.print_json({
            "sweep": sweep.name,
            "system": sweep.system.name,
            "folder": str(folder),
            "report": str(folder / REPORT),
            "metric": sweep.metric,
            "interrupted": outcome.interrupted,
            "best": None if best is None else {**_as_json(best), "config": str(folder / BEST)},
            "trials": [_as_json(record) for record in outcome.records],
        })  # fmt: skip
    else:
        options.stdout_console(160).print(trial_table(sweep, outcome.records))
        if best is not None:
            print(f"Best: {best.name}, {sweep.metric} {best.value:.5g}, with {best.settings}")
            print(f"Train with it: loadmaster train {sweep.system.name} --config {folder / BEST}")
        print(f"Report: {folder / REPORT}")
        print(f"Trials and state: {folder}")
    for record in failed:
        reason = f"{record.name}: {record.state}: {record.fault}"
        print(f"{reason}; with {record.settings}", file=sys.stderr)
    if outcome.interrupted:
        print(f"go on with: loadmaster tune --resume {folder}", file=sys.stderr)
        raise typer.Exit(options.INTERRUPTED)
    if best is None:
        print("no trial has a result", file=sys.stderr)
        raise typer.Exit(1)
    if failed:
        raise typer.Exit(TRIALS_FAILED)


def _as_json(record: Record) -> dict[str, Any]:
    found = asdict(record)
    if record.value is not None and not math.isfinite(record.value):
        found["value"] = None
    return found
