"""`loadmaster replay`: episodes as a web page, or a decision log decided again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, argument, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.replay.decision_log import LogReplay

LOG_OPTIONS = ("log", "bundle", "since", "until")  # parameters of --log
PAGE = Path("replay.html")
WAIT = "loading the workload"
LONGEST = 300  # characters printed of a decision


def replay(
    context: typer.Context,
    target: Annotated[
        str | None, argument("TARGET", "An environment, or a policy: a run, a bundle, a system.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        option(
            "NAME|FOLDER",
            "A policy to show, and a second one to compare. [default: two baselines; with a "
            "policy as TARGET, the best baseline]",
        ),
    ] = None,
    seed: Annotated[int, option(None, "Which job sequence.")] = 0,
    workload: options.WorkloadName = None,
    assignments: options.Assignments = None,
    output: Annotated[Path, option(None, "The page to write.", "--output", "-o")] = PAGE,
    picture: Annotated[
        Path | None,
        option(
            "FILE",
            "Also draw a few successive decisions of a learned gpu_scheduling policy, or an "
            "episode of stream_scaling: .png, .svg or .pdf.",
        ),
    ] = None,
    log: Annotated[
        str | None, option("FOLDER", "Decide a log of the service, path or URL, again instead.")
    ] = None,
    bundle: Annotated[
        list[str] | None,
        option(
            "SYSTEM=FOLDER|NAME",
            "With --log: the policy that decides. [default: the logged versions]",
        ),
    ] = None,
    since: Annotated[
        str | None, option("TIME", "With --log: from 2026-05-01T12:30, or 6h.")
    ] = None,
    until: Annotated[str | None, option("TIME", "With --log: before.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Watch policies at work: one web page, no network needed.

    Runs one episode per policy on the same jobs and draws the schedule of every executor or
    machine. The page has a scrubber, zoom, the number of jobs in the system, and every job under
    either policy. In stream_scaling it has load, latency, lag and the instances of every task. A
    run or a bundle is shown with its training settings and the best baseline; one of
    gpu_scheduling or stream_scaling also decision by decision.

    Example:

        loadmaster replay dag_scheduling --policy fair --policy fifo --seed 3

        loadmaster replay dag_scheduling --policy sjf-cp --set arrivals=poisson

        loadmaster replay gpu_scheduling --policy las-consolidate --policy fifo-first-fit

        loadmaster replay stream_scaling --policy flink --policy hpa --set job=medium-1

        loadmaster replay RUN_OR_BUNDLE -o replay.html --picture decisions.png

    With --log, every logged decision of the service is made again by the same bundle or rule, or
    by another bundle, and compared. The exit code is 1 if the same version decides otherwise.

        loadmaster replay --log LOG_FOLDER --since 6h --bundle decima=bundles/decima-mine
    """
    _check_options(context, logged=log is not None)
    if log is not None:
        _replay_log(log, bundle or [], since, until, as_json)
        return
    assert target is not None  # checked

    from contextlib import nullcontext

    from loadmaster.models.files import atomic_binary_file, atomic_text_file, image_format
    from loadmaster.platform.evaluation.adapters import given_values
    from loadmaster.platform.replay.adapters import none_for_nan
    from loadmaster.platform.replay.page import build_page
    from loadmaster.platform.replay.recording import check_picture, plan_recording, record

    plan = plan_recording(target, policy or [], seed, given_values(assignments, workload))
    kind = "" if picture is None else image_format(picture, "--picture")
    if picture is not None:
        check_picture(plan)
    drawn = nullcontext() if picture is None else atomic_binary_file(picture, "--picture")
    with atomic_text_file(output) as file, drawn as drawing, options.shown_steps(WAIT) as show:
        recording = record(plan, lambda name: show(f"running {name}{_compile_note()}"))
        adapter, results = recording.adapter, recording.results
        show("building the page")
        file.write(build_page(results, recording.item_names, recording.title, adapter.environment))
        if drawing is not None and adapter.picture is not None:
            show("drawing the picture")
            adapter.picture(results, recording.title, drawing, kind)
    if as_json:
        figures = {
            each.policy: {name: none_for_nan(v) for name, v in adapter.figures(each).items()}
            for each in results
        }
        made = {"page": str(output)} | ({} if picture is None else {"picture": str(picture)})
        options.print_json({**made, "policies": figures})
        return
    print(adapter.summary(results))
    print(f"Page: {output} ({output.stat().st_size / 1e6:.1f} MB); open it in any browser")
    if picture is not None:
        print(f"Picture: {picture}")


def _compile_note() -> str:
    from loadmaster.envs.compiled import cache_folder

    cold = not any(cache_folder().rglob("*.nbi"))
    return " (after compiling, first time only)" if cold else ""


def _check_options(context: typer.Context, logged: bool) -> None:
    """Reject options of the other kind of replay, which would be ignored."""
    given = [
        each
        for each in context.command.params
        if getattr(context.get_parameter_source(each.name or ""), "name", "") == "COMMANDLINE"
    ]
    for each in given:
        name = each.opts[0] if each.opts[0].startswith("-") else "TARGET"
        if logged and each.name not in (*LOG_OPTIONS, "as_json"):
            raise UsageError(
                f"{name} cannot be used with --log; expected --bundle, --since, --until or --json"
            )
        if not logged and each.name in LOG_OPTIONS:
            raise UsageError(f"{name} cannot be used without --log; expected --log FOLDER")
    if not logged and all(each.name != "target" for each in given):
        raise UsageError("Missing argument 'TARGET'; expected it, or --log FOLDER")


def _replay_log(
    folder: str, bundles: list[str], since: str | None, until: str | None, as_json: bool
) -> None:
    """Print how the log compares; the exit code is 1 if a version differs from itself."""
    from rich.console import Console

    from loadmaster.models.storage import parse_place
    from loadmaster.platform.replay.decision_log import given_bundles, replay_log
    from loadmaster.serving.monitoring.log_files import parse_timestamp, read_log

    now = time.time()
    first = None if since is None else parse_timestamp(since, "--since", now)
    last = None if until is None else parse_timestamp(until, "--until", now)
    if first is not None and last is not None and first >= last:
        raise UsageError(f"--since {since} is not before --until {until}; expected it to be")
    given = given_bundles(bundles)
    place, warn = parse_place(folder), lambda line: print(f"warning: {line}", file=sys.stderr)
    rows = read_log(place, first, last, warn)
    with Console(stderr=True, highlight=False).status("reading the log") as status:
        replayed = replay_log(rows, given, lambda count: status.update(f"{count:,} decisions"))
    if as_json:
        options.print_json(replayed.record())
    else:
        _print_log_replay(replayed)
    if replayed.broken:
        raise typer.Exit(1)


def _print_log_replay(replayed: LogReplay) -> None:
    from loadmaster.models.manifest import visible

    print(
        f"{replayed.replayed:,} decisions replayed: {replayed.identical:,} identical, "
        f"{replayed.different:,} different"
    )
    if replayed.broken:
        print(f"{replayed.broken:,} of the different ones by the same version: look into it")
    for each in replayed.shown:
        by = "same version" if each.same_version else f"now {each.by}"
        print(f"  {visible(each.id)}, {each.time}, {each.system}, {each.policy} ({by})")
        print(f"    then: {visible(each.then, LONGEST)}")
        print(f"    now:  {visible(each.now, LONGEST)}")
    if replayed.different > len(replayed.shown):
        print(f"  and {replayed.different - len(replayed.shown):,} more")
    if skipped := replayed.not_replayable:
        print(f"{sum(skipped.values()):,} not replayable:")
        for reason, count in skipped.items():
            print(f"  {count:,}: {reason}")
