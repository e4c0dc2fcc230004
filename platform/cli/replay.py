"""`loadmaster replay`: episodes as a page to look at, or logged decisions taken again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.platform.cli.options import Assignments, WorkloadName, values_from


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
            help="A policy to watch, and a second one to compare. [default: two baselines; beside "
            "a policy as TARGET, the best baseline]",
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
        typer.Option(metavar="FOLDER", help="Instead: decide again what the service has logged."),
    ] = None,
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM=FOLDER|NAME",
            help="With --log: the policy to ask. [default: those that decided, by their version]",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --log: from 2026-05-01T12:30, or 6h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="With --log: before.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Watch a schedule: one web page, no network needed.

    Runs one episode a policy on the same jobs and draws what every executor, or every machine,
    did when. The page has a scrubber, zoom, the jobs in the system, and every job's fate under
    either policy. A run or a bundle is shown on what it was trained on, beside the baseline that
    does best there; one of gpu_scheduling, decision by decision too.

    Example:

        loadmaster replay dag_scheduling --policy fair --policy fifo --seed 3

        loadmaster replay dag_scheduling --policy sjf-cp --set arrivals=poisson

        loadmaster replay gpu_scheduling --policy las-consolidate --policy fifo-first-fit

        loadmaster replay RUN_OR_BUNDLE -o replay.html --picture decisions.png

    With --log, every decision that the service logged is taken again by the bundle or rule that
    took it then, or by another bundle, and compared. The exit code is 1 if the same version
    decides otherwise.

        loadmaster replay --log LOG_FOLDER --since 6h --bundle decima=bundles/decima-mine
    """
    from loadmaster.platform.cli.replay_log import check_options, replay_decisions

    check_options(context, logged=log is not None)
    if log is not None:
        replay_decisions(log, bundle or [], since, until, as_json)
        return
    assert target is not None  # checked

    from contextlib import nullcontext

    from loadmaster.models.files import atomic_binary_file, atomic_text_file, image_format
    from loadmaster.platform.replay.adapters import summary_line
    from loadmaster.platform.replay.page import build_page, none_for_nan
    from loadmaster.platform.replay.recording import check_picture, plan_recording, record

    plan = plan_recording(target, policy or [], seed, values_from(assignments or [], workload))
    kind = "" if picture is None else image_format(picture, "--picture")
    if picture is not None:
        check_picture(plan)
    drawn = nullcontext() if picture is None else atomic_binary_file(picture, "--picture")
    with atomic_text_file(output) as file, drawn as drawing, _progress() as say:
        recording = record(plan, lambda name: say(f"running {name}"))
        scene, results = recording.scene, recording.results
        say("building the page")
        file.write(build_page(results, recording.job_names, recording.title, scene.environment))
        if drawing is not None and scene.picture is not None:
            say("drawing the picture")
            scene.picture(results, recording.title, drawing, kind)
    if as_json:
        figures = {
            result.policy: {
                name: none_for_nan(value) for name, value in scene.figures(result).items()
            }
            for result in results
        }
        made = {"page": str(output)} | ({} if picture is None else {"picture": str(picture)})
        print(json.dumps({**made, "policies": figures}, indent=2))
        return
    beside = [scene.beside(result) for result in results]
    print(summary_line(results, unit=scene.unit(results), beside=beside))
    print(f"Page: {output} ({output.stat().st_size / 1e6:.1f} MB); open it in any browser")
    if picture is not None:
        print(f"Picture: {picture}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, plain lines elsewhere; both on stderr."""
    from rich.console import Console

    from loadmaster.envs.compiled import cache_folder

    cold = not any(cache_folder().rglob("*.nbi"))
    console = Console(stderr=True, highlight=False)
    with console.status("loading the workload") as status:

        def say(step: str) -> None:
            nonlocal cold
            if cold:  # the first episode compiles, the next one finds it done
                step, cold = f"{step} (after compiling, first time only)", False
            if console.is_terminal:
                status.update(step)
            else:
                console.print(step, soft_wrap=True)

        yield say
