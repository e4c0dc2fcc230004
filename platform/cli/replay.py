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
    from collections.abc import Callable

    from loadmaster.platform.replay.decision_log import LogReplay
    from loadmaster.platform.replay.recording import Recording

LOG_OPTIONS = ("log", "bundle", "since", "until", "tenant")  # parameters of --log
SHARED_OPTIONS = ("output", "picture", "as_json")  # of both kinds of replay
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
            "episode of stream_scaling or pod_scaling: .png, .svg or .pdf.",
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
    tenant: Annotated[
        str | None,
        option(
            "NAME",
            "With --log and --output or --picture: the application to show. [default: that with "
            "the most decisions]",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Watch policies at work: one web page, no network needed.

    Runs one episode per policy on the same jobs and draws the schedule of every executor or
    machine. The page has a scrubber, zoom, the number of jobs in the system, and every job under
    either policy. In stream_scaling it has load, latency, lag and the instances of every task, in
    pod_scaling load, p99, replicas and the use of CPU and memory. A run or a bundle is shown with
    its training settings and the best baseline, and decision by decision, except in
    dag_scheduling.

    Example:

        loadmaster replay dag_scheduling --policy fair --policy fifo --seed 3

        loadmaster replay dag_scheduling --policy sjf-cp --set arrivals=poisson

        loadmaster replay gpu_scheduling --policy las-consolidate --policy fifo-first-fit

        loadmaster replay stream_scaling --policy flink --policy hpa --set job=medium-1

        loadmaster replay pod_scaling --policy mpa --policy clairvoyant --set application=test

        loadmaster replay RUN_OR_BUNDLE -o replay.html --picture decisions.png

    With --log, every logged decision of the service is made again by the same bundle or rule, or
    by another bundle, and compared. The exit code is 1 if the same version decides otherwise.

        loadmaster replay --log LOG_FOLDER --since 6h --bundle decima=bundles/decima-mine

    With --output, the log of an application of aware is also a page: what was decided, by policy
    or rule, and the state of its lifecycle.

        loadmaster replay --log LOG_FOLDER -o log.html --tenant cart
    """
    _check_options(context, logged=log is not None)
    if log is not None:
        page = output if _is_given(context, "output") else None
        _replay_log(log, bundle or [], (since, until), (page, picture), tenant, as_json)
        return
    assert target is not None  # checked

    from loadmaster.models.files import image_format
    from loadmaster.platform.evaluation.adapters import given_values
    from loadmaster.platform.replay.adapters import none_for_nan
    from loadmaster.platform.replay.recording import check_picture, plan_recording, record

    if picture is not None:
        image_format(picture, "--picture")  # a wrong name is refused before anything else
    plan = plan_recording(target, policy or [], seed, given_values(assignments, workload))
    if picture is not None:
        check_picture(plan)

    def run(show: Callable[[str], None]) -> Recording:
        return record(plan, lambda name: show(f"running {name}{_compile_note()}"))

    recording = _write_files(run, output, picture)
    adapter, results = recording.adapter, recording.results
    if as_json:
        figures = {
            each.policy: {name: none_for_nan(v) for name, v in adapter.figures(each).items()}
            for each in results
        }
        options.print_json({**_file_names(output, picture), "policies": figures})
        return
    _print_files(recording, output, picture)


def _write_files(
    run: Callable[[Callable[[str], None]], Recording], page: Path | None, picture: Path | None
) -> Recording:
    """Record, and write the page and the picture that are wanted.

    `run` records; its argument shows a step of it. Files are opened first, so that one that cannot
    be written is refused at once.
    """
    from contextlib import ExitStack

    from loadmaster.models.files import atomic_binary_file, atomic_text_file, image_format
    from loadmaster.platform.replay.page import build_page

    kind = "" if picture is None else image_format(picture, "--picture")
    with ExitStack() as files:
        file = drawing = None
        if page is not None:
            file = files.enter_context(atomic_text_file(page))
        if picture is not None:
            drawing = files.enter_context(atomic_binary_file(picture, "--picture"))
        show = files.enter_context(options.shown_steps(WAIT))
        made = run(show)
        if file is not None:
            show("building the page")
            file.write(
                build_page(made.results, made.item_names, made.title, made.adapter.environment)
            )
        if drawing is not None and made.adapter.picture is not None:
            show("drawing the picture")
            made.adapter.picture(made.results, made.title, drawing, kind)
    return made


def _file_names(page: Path | None, picture: Path | None) -> dict[str, str]:
    """For --json."""
    files = {"page": page, "picture": picture}
    return {name: str(file) for name, file in files.items() if file is not None}


def _print_files(recording: Recording, page: Path | None, picture: Path | None) -> None:
    print(recording.adapter.summary(recording.results))
    if page is not None:
        print(f"Page: {page} ({page.stat().st_size / 1e6:.1f} MB); open it in any browser")
    if picture is not None:
        print(f"Picture: {picture}")


def _compile_note() -> str:
    from loadmaster.envs.compiled import cache_folder

    cold = not any(cache_folder().rglob("*.nbi"))
    return " (after compiling, first time only)" if cold else ""


def _is_given(context: typer.Context, parameter: str) -> bool:
    """Whether it is on the command line, also with its default."""
    return getattr(context.get_parameter_source(parameter), "name", "") == "COMMANDLINE"


def _check_options(context: typer.Context, logged: bool) -> None:
    """Reject options of the other kind of replay, which would be ignored."""
    given = [each for each in context.command.params if _is_given(context, each.name or "")]
    for each in given:
        name = each.opts[0] if each.opts[0].startswith("-") else "TARGET"
        if logged and each.name not in (*LOG_OPTIONS, *SHARED_OPTIONS):
            raise UsageError(
                f"{name} cannot be used with --log; expected --bundle, --since, --until, "
                "--tenant, --output, --picture or --json"
            )
        if not logged and each.name in LOG_OPTIONS:
            raise UsageError(f"{name} cannot be used without --log; expected --log FOLDER")
    if not logged and all(each.name != "target" for each in given):
        raise UsageError("Missing argument 'TARGET'; expected it, or --log FOLDER")


def _replay_log(
    folder: str,
    bundles: list[str],
    period: tuple[str | None, str | None],
    files: tuple[Path | None, Path | None],
    tenant: str | None,
    as_json: bool,
) -> None:
    """Print how the log compares; the exit code is 1 if a version differs from itself.

    `period`: since and until. `files`: page and picture of the tenant's decisions.
    """
    from rich.console import Console

    from loadmaster.models.storage import parse_place
    from loadmaster.platform.replay.decision_log import given_bundles, replay_log
    from loadmaster.platform.replay.log_page import record_log
    from loadmaster.serving.monitoring.log_files import parse_timestamp, read_log

    now, (since, until) = time.time(), period
    first = None if since is None else parse_timestamp(since, "--since", now)
    last = None if until is None else parse_timestamp(until, "--until", now)
    if first is not None and last is not None and first >= last:
        raise UsageError(f"--since {since} is not before --until {until}; expected it to be")
    if tenant is not None and files == (None, None):
        raise UsageError("--tenant names the application of a page; expected --output or --picture")
    given = given_bundles(bundles)
    place, warn = parse_place(folder), lambda line: print(f"warning: {line}", file=sys.stderr)
    recording = None
    if files != (None, None):
        recording = _write_files(
            lambda show: record_log(lambda: read_log(place, first, last, str), tenant), *files
        )
    rows = read_log(place, first, last, warn)
    with Console(stderr=True, highlight=False).status("reading the log") as status:
        replayed = replay_log(rows, given, lambda count: status.update(f"{count:,} decisions"))
    if as_json:
        options.print_json({**_file_names(*files), **replayed.record()})
    else:
        if recording is not None:
            _print_files(recording, *files)
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
