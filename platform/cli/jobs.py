"""`loadmaster submit` and `loadmaster jobs`: commands as jobs on a Ray cluster."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import AsJson, UsageError, argument, flag, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.serving.jobs.client import Jobs
    from loadmaster.serving.jobs.job import Job

NOT_AS_A_JOB = ("submit", "jobs")
RESTART_S = 600.0  # wait for a cluster's head to restart
STOPPING_S = 20.0  # wait for a job to end; Ray kills it after a few seconds

Address = Annotated[
    str | None,
    option(
        "URL",
        "The cluster's dashboard. [default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265]",
    ),
]


def submit(
    command: Annotated[list[str], argument("-- COMMAND...", "The command to run.")],
    address: Address = None,
    name: Annotated[
        str | None, option(None, "Part of the job's id. [default: from the command]")
    ] = None,
    storage: Annotated[
        str | None,
        option(
            "FOLDER",
            "Absolute path on the cluster, shared by its machines, for the job's working "
            "folder. [default: loadmaster-jobs in the home folder there]",
        ),
    ] = None,
    env: Annotated[
        list[str] | None, option("NAME=VALUE", "A variable for the job; may be repeated.")
    ] = None,
    cpus: Annotated[float, option("N", "CPUs for the command itself, without its workers.")] = 0,
    gpus: Annotated[float, option("N", "GPUs for the command itself.")] = 0,
    retries: Annotated[
        int, option("N", "Start a training that died again, from its last checkpoint.")
    ] = 0,
    wait: Annotated[
        bool, flag("--wait/--no-wait", "Follow the job to its end, or only submit it.")
    ] = True,
    as_json: Annotated[
        bool, flag("--json", "Print JSON for scripts; logs then go to stderr.")
    ] = False,
) -> None:
    """Run a command as a job on a Ray cluster.

    Uploads this installation as a wheel; the libraries it needs must be on the cluster. Ctrl-C
    leaves the job running and prints how to stop it. The token of a cluster is read from
    RAY_AUTH_TOKEN or ~/.ray/auth_token. With --retries, a training whose process is killed goes on
    from its last checkpoint, and one whose node is lost is submitted again while it is followed.
    Exit codes: 0 done, 1 the job failed or was stopped, 2 bad input, 130 no longer followed.

    Example:

        loadmaster submit -- train das --set rollouts.workers=64

        loadmaster submit --address http://head:8265 --storage /mnt/runs --retries 3 -- train decima

        loadmaster submit --no-wait --json -- tune /mnt/sweeps/asha.yaml
    """
    check_command(command)
    if retries < 0:
        raise UsageError(f"--retries is {retries}; expected 0 or more")
    if retries:
        from loadmaster.platform.cli.retries import repeatable

        command = repeatable(command, datetime.datetime.now())
    variables = given_variables(env or [])
    from loadmaster.serving.jobs.client import Jobs

    jobs = Jobs(address)

    def begin(folder: str | None = None) -> Job:
        """Submit the command; `folder` is that of a lost job, which it continues."""
        job = jobs.submit(
            command, name=name, storage=storage, env=variables, cpus=cpus, gpus=gpus,
            retries=retries, folder=folder,
        )  # fmt: skip
        return jobs.get(job)

    job = begin()
    if not wait:
        if as_json:
            options.print_json({"job": job.id, "address": jobs.address, "folder": job.folder})
        else:
            print(f"Job: {job.id}, in {job.folder} on the cluster")
            print(f"Logs: loadmaster jobs logs {job.id} --follow")
        return
    print(f"Job: {job.id}, in {job.folder} on the cluster", file=_log_stream(as_json), flush=True)
    follow_logs(jobs, job, as_json, retries, begin)


def follow_logs(
    jobs: Jobs,
    job: Job,
    as_json: bool,
    retries: int = 0,
    begin: Callable[[str], Job] | None = None,
) -> None:
    """Print the logs until the job ends; exit with 1 if it failed or was stopped.

    A job that is lost with its node is continued by that of `begin`, at most `retries` times.
    """
    stream, retry = _log_stream(as_json), 0
    try:
        while True:
            ended = _follow_to_end(jobs, job, stream, RESTART_S if begin and retries else 0.0)
            if begin is None or not ended.lost or retry == retries:
                break
            retry, lost, job = retry + 1, job.id, begin(job.folder)
            line = f"retry {retry} of {retries}: {lost} was lost with its node, now {job.id}"
            print(f"loadmaster: {line}", file=stream, flush=True)
    except KeyboardInterrupt:
        print(
            f"{job.id} is still running. Its logs: loadmaster jobs logs {job.id} --follow; "
            f"to stop it: loadmaster jobs stop {job.id}",
            file=sys.stderr,
        )
        raise typer.Exit(options.INTERRUPTED) from None
    if as_json:
        ending = {"status": ended.status, "exit_code": ended.exit_code, "folder": ended.folder}
        options.print_json({"job": job.id, **ending})
    if ended.status == "succeeded":
        return
    why = "" if ended.exit_code is not None else ": " + " ".join(ended.last_lines(3))
    print(f"error: job {job.id} {ended.ending}{why}", file=sys.stderr)
    raise typer.Exit(1)


def _follow_to_end(jobs: Jobs, job: Job, stream: TextIO, wait_s: float) -> Job:
    """Print the logs of a job; return how it ended.

    A head that does not answer is waited for, at most `wait_s`. If that is not 0, a job that the
    head no longer lists counts as lost.
    """
    from loadmaster.serving.jobs.client import UnknownJobError

    text = "\n"
    try:
        for text in jobs.follow(job.id, wait_s):
            print(text, end="", file=stream, flush=True)
        if not text.endswith("\n"):  # as Ray writes that a job was lost
            print(file=stream)
        return jobs.get(job.id)
    except UnknownJobError:
        if not wait_s:
            raise
        unknown = "the cluster was restarted and no longer knows it"
        return dataclasses.replace(job, status="failed", message=unknown, lost=True)


def _log_stream(as_json: bool) -> TextIO:
    return sys.stderr if as_json else sys.stdout


def check_command(command: list[str]) -> None:
    """Parse the command here: on the cluster a fault would show half a minute later."""
    from loadmaster.envs.errors import unknown_name
    from loadmaster.platform.cli.main import COMMANDS, load_command

    verb, *arguments = command
    known = [each for each in COMMANDS if each not in NOT_AS_A_JOB]
    if verb in NOT_AS_A_JOB:
        raise UsageError(f"{verb!r} is no command for a job; expected one as `train decima`")
    if verb not in known:
        raise unknown_name("command", verb, known)
    load_command(verb).make_context(verb, arguments)


def given_variables(assignments: list[str]) -> dict[str, str]:
    variables = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"--env {text!r}; expected NAME=VALUE")
        variables[name] = value
    return variables


def jobs(
    action: Annotated[Literal["list", "logs", "stop"], argument("list|logs|stop", "What to do.")],
    job: Annotated[str | None, argument("JOB", "Its id, or a unique part of it.")] = None,
    address: Address = None,
    follow: Annotated[
        bool, option(None, "Print the logs until the job ends.", "--follow", "-f")
    ] = False,
    lines: Annotated[int | None, option("N", "Only the last lines. [default: all]")] = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a cluster, show their logs, stop them.

    A stopped training run keeps its checkpoints; `loadmaster submit -- train --resume` with the
    run's absolute path continues it.

    Example:

        loadmaster jobs list

        loadmaster jobs logs loadmaster-train-decima-20260101-120000-ab12 --follow

        loadmaster jobs stop ab12
    """
    from loadmaster.serving.jobs.client import Jobs

    cluster = Jobs(address)
    if action == "list":
        if job is not None:
            raise UsageError(f"`jobs list` takes no job; expected `jobs logs {job}`")
        show_list(cluster.list(), cluster.address, as_json)
        return
    if job is None:
        raise UsageError(f"no job given; expected `jobs {action} JOB`, see `jobs list`")
    if lines is not None and lines < 1:
        raise UsageError(f"--lines is {lines}; expected 1 or more")
    found = cluster.find(job)
    if action == "stop":
        stop(cluster, found, as_json)
    elif follow:
        follow_logs(cluster, found, as_json)
    else:
        written = cluster.logs(found.id).splitlines()
        shown = written if lines is None else written[-lines:]
        if as_json:
            options.print_json({"job": found.id, "status": found.status, "logs": shown})
        elif shown:
            print("\n".join(shown))


def stop(cluster: Jobs, job: Job, as_json: bool) -> None:
    """Stop a job; one that has ended already is no error."""
    was_running = not job.ended and cluster.stop(job.id)
    ended = cluster.wait(job.id, STOPPING_S)
    if as_json:
        options.print_json({"job": job.id, "status": ended.status, "was_running": was_running})
    elif not was_running:
        print(f"{job.id} had ended before: {ended.ending}")
    else:
        print(f"{job.id} {ended.ending}; what it wrote is in {ended.folder} on the cluster")
    if not ended.ended:
        raise typer.Exit(1)


def show_list(found: list[Job], address: str, as_json: bool) -> None:
    if as_json:
        options.print_json({"address": address, "jobs": [as_record(job) for job in found]})
        return
    if not found:
        hint = "Submit one: loadmaster submit -- train decima"
        print(f"No jobs of loadmaster's at {address}. {hint}")
        return
    from rich.markup import escape

    colours = {"succeeded": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}
    rows = (
        (
            job.id,
            f"[{colours.get(job.status, 'dim')}]{job.status}[/]",
            when(job.submitted_at),
            took(job),
            escape(job.command),
        )
        for job in found
    )
    headings = ("job", "status", "submitted", "took", "command")
    options.print_table(headings, rows, piped_width=200)  # keeps ids on one line


def as_record(job: Job) -> dict[str, object]:
    """JSON record of a job, without Ray's message, which may hold pages of logs."""
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
