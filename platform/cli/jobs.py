"""`loadmaster jobs`: the jobs that were submitted to a cluster."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loadmaster.platform.cli.submit import Address
from loadmaster.platform.cli.submit import follow as follow_job

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.serving.jobs.client import Jobs
    from loadmaster.serving.jobs.job import Job

STOPPING_S = 20.0  # how long a job may take to end: Ray kills one that does not within a few


def jobs(
    action: Annotated[
        Literal["list", "logs", "stop"],
        typer.Argument(metavar="list|logs|stop", help="What to do."),
    ],
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Its id, or a part of it that no other has."),
    ] = None,
    address: Address = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what it writes until it ends.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option(metavar="N", help="Only the last lines. [default: all]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """List the jobs of a cluster, show their logs, stop them.

    A stopped training run has saved its last checkpoints; `loadmaster submit -- train --resume`
    with the run's absolute path goes on with it.

    Example:

        loadmaster jobs list

        loadmaster jobs logs loadmaster-train-decima-20260101-120000-ab12 --follow

        loadmaster jobs stop ab12
    """
    from loadmaster.envs.errors import InputError
    from loadmaster.serving.jobs.client import Jobs

    cluster = Jobs(address)
    if action == "list":
        if job is not None:
            raise InputError(f"`jobs list` takes no job; expected `jobs logs {job}`")
        show_list(cluster.list(), cluster.address, as_json)
        return
    if job is None:
        raise InputError(f"which job? expected `jobs {action} JOB`; `jobs list` has their ids")
    if lines is not None and lines < 1:
        raise InputError(f"--lines is {lines}; expected 1 or more")
    found = cluster.find(job)
    if action == "stop":
        stop(cluster, found, as_json)
    elif follow:
        follow_job(cluster, found.id, as_json)
    else:
        written = cluster.logs(found.id).splitlines()
        shown = written if lines is None else written[-lines:]
        if as_json:
            record = {"job": found.id, "status": found.status, "logs": shown}
            print(json.dumps(record, indent=2))
        elif shown:
            print("\n".join(shown))


def stop(cluster: Jobs, job: Job, as_json: bool) -> None:
    """Also of a job that had ended: what was asked for is the case."""
    was_running = cluster.stop(job.id) if not job.ended else False
    ended = cluster.wait(job.id, STOPPING_S)
    if as_json:
        record = {"job": job.id, "status": ended.status, "was_running": was_running}
        print(json.dumps(record, indent=2))
    elif not was_running:
        print(f"{job.id} had ended before: {ended.ending}")
    else:
        print(f"{job.id} {ended.ending}; what it wrote is in {ended.folder} on the cluster")
    if not ended.ended:
        raise typer.Exit(1)


def show_list(found: list[Job], address: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"address": address, "jobs": [as_record(job) for job in found]}, indent=2))
        return
    if not found:
        print(
            f"No jobs of loadmaster's at {address}. Submit one: loadmaster submit -- train decima"
        )
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("job", "status", "submitted", "took", "command", box=None, header_style="dim")
    colours = {"succeeded": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}
    for job in found:
        colour = colours.get(job.status, "dim")
        table.add_row(
            job.id, f"[{colour}]{job.status}[/]", when(job.submitted_at), took(job),
            escape(job.command),
        )  # fmt: skip
    table.columns[-1].no_wrap = True
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # nobody's terminal: ids stay whole
    console.print(table)


def as_record(job: Job) -> dict[str, object]:
    """Without Ray's message, which may hold pages of logs."""
    return {
        "job": job.id,
        "status": job.status,
        "command": job.command,
        "folder": job.folder,
        "submitted_at": iso(job.submitted_at),
        "ended_at": iso(job.ended_at),
        "exit_code": job.exit_code,
    }


def iso(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="seconds")


def when(time_s: float | None) -> str:
    if time_s is None:
        return ""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")


def took(job: Job) -> str:
    if job.submitted_at is None or job.ended_at is None:
        return ""
    return str(datetime.timedelta(seconds=round(job.ended_at - job.submitted_at)))
