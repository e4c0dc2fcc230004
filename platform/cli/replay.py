"""`loadmaster replay`: episodes as a web page, or a decision log decided again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli.options import AsJson, Assignments, WorkloadName

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.replay.decision_log import LogReplay

LOG_OPTIONS = ("log", "bundle", "since", "until")  # parameters of --log
LONGEST = 300  # characters printed of a decision


def replay(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="An environment, or a policy: a run, a bundle, a system."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="A policy to show, and a second one to compare. [default: two baselines; with a "
            "policy as TARGET, the best baseline]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which job sequence.")] = 0,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "replay.html"
    ),
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw a few successive decisions of a learned gpu_scheduling policy: .png, "
            ".svg or .pdf.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Decide a log of the service again instead."),
    ] = None,
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM=FOLDER|NAME",
            help="With --log: the policy that decides. [default: the logged versions]",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --log: from 2026-05-01T12:30, or 6h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="With --log: before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a schedule: one web page, no network needed.

    Runs one episode per policy on the same jobs and draws the schedule of every executor or
    machine. The page has a scrubber, zoom, the number of jobs in the system, and every job under
    either policy. A run or a bundle is shown with its training settings and the best baseline;
    one of gpu_scheduling also decision by decision.

    Example:

        loadmaster replay dag_scheduling --policy fair --policy fifo --seed 3

        loadmaster replay dag_scheduling --policy sjf-cp --set arrivals=poisson

        loadmaster replay gpu_scheduling --policy las-consolidate --policy fifo-first-fit

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
    from loadmaster.platform.evaluation.run import given_values
    from loadmaster.platform.replay.adapters import summary_line
    from loadmaster.platform.replay.page import build_page, none_for_nan
    from loadmaster.platform.replay.recording import check_picture, plan_recording, record

    plan = plan_recording(target, policy or [], seed, given_values(assignments, workload))
    kind = "" if picture is None else image_format(picture, "--picture")
    if picture is not None:
        check_picture(plan)
    drawn = nullcontext() if picture is None else atomic_binary_file(picture, "--picture")
    with atomic_text_file(output) as file, drawn as drawing, _progress() as show_step:
        recording = record(plan, lambda name: show_step(f"running {name}"))
        adapter, results = recording.adapter, recording.results
        show_step("building the page")
        file.write(build_page(results, recording.job_names, recording.title, adapter.environment))
        if drawing is not None and adapter.picture is not None:
            show_step("drawing the picture")
            adapter.picture(results, recording.title, drawing, kind)
    if as_json:
        figures = {
            result.policy: {
                name: none_for_nan(value) for name, value in adapter.figures(result).items()
            }
            for result in results
        }
        made = {"page": str(output)} | ({} if picture is None else {"picture": str(picture)})
        print(json.dumps({**made, "policies": figures}, indent=2))
        return
    suffixes = [adapter.summary_suffix(result) for result in results]
    print(summary_line(results, unit=adapter.unit(results), suffixes=suffixes))
    print(f"Page: {output} ({output.stat().st_size / 1e6:.1f} MB); open it in any browser")
    if picture is not None:
        print(f"Picture: {picture}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show steps on stderr: a spinner on a terminal, lines elsewhere."""
    from rich.console import Console

    from loadmaster.envs.compiled import cache_folder

    cold = not any(cache_folder().rglob("*.nbi"))
    console = Console(stderr=True, highlight=False)
    with console.status("loading the workload") as status:

        def show_step(step: str) -> None:
            nonlocal cold
            if cold:  # the first episode compiles
                step, cold = f"{step} (after compiling, first time only)", False
            if console.is_terminal:
                status.update(step)
            else:
                console.print(step, soft_wrap=True)

        yield show_step


def _check_options(context: typer.Context, logged: bool) -> None:
    """Reject options of the other kind of replay, which would be ignored."""
    from loadmaster.envs.errors import InputError

    given = [
        option
        for option in context.command.params
        if getattr(context.get_parameter_source(option.name or ""), "name", "") == "COMMANDLINE"
    ]
    for option in given:
        name = option.opts[0] if option.opts[0].startswith("-") else "TARGET"
        if logged and option.name not in (*LOG_OPTIONS, "as_json"):
            raise InputError(
                f"{name} cannot be used with --log; expected --bundle, --since, --until or --json"
            )
        if not logged and option.name in LOG_OPTIONS:
            raise InputError(f"{name} cannot be used without --log; expected --log FOLDER")
    if not logged and all(option.name != "target" for option in given):
        raise InputError("Missing argument 'TARGET'; expected it, or --log FOLDER")


def _replay_log(
    folder: Path, bundles: list[str], since: str | None, until: str | None, as_json: bool
) -> None:
    """Print how the log compares; the exit code is 1 if a version differs from itself."""
    from rich.console import Console

    from loadmaster.envs.errors import InputError
    from loadmaster.platform.replay.decision_log import given_bundles, replay_log
    from loadmaster.serving.monitoring.log_files import parse_timestamp, read_log

    now = time.time()
    first = None if since is None else parse_timestamp(since, "--since", now)
    last = None if until is None else parse_timestamp(until, "--until", now)
    if first is not None and last is not None and first >= last:
        raise InputError(f"--since {since} is not before --until {until}; expected it to be")
    given = given_bundles(bundles)
    rows = read_log(folder, first, last, lambda line: print(f"warning: {line}", file=sys.stderr))
    with Console(stderr=True, highlight=False).status("reading the log") as status:
        replayed = replay_log(rows, given, lambda count: status.update(f"{count:,} decisions"))
    if as_json:
        print(json.dumps(replayed.record(), indent=2))
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
