"""`loadmaster submit`: any other command, as a job on a Ray cluster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.serving.jobs.client import Jobs

INTERRUPTED = 130  # as a shell says of a command that Ctrl-C ended
NOT_AS_A_JOB = ("submit", "jobs")

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The cluster's dashboard. [default: RAY_API_SERVER_ADDRESS, else "
        "http://127.0.0.1:8265]",
    ),
]


def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as typed here.")
    ],
    address: Address = None,
    name: Annotated[
        str | None, typer.Option(help="For the job's id. [default: the command's own]")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where on the cluster the job's folder is made, in which relative paths lie; an "
            "absolute path that its machines share. [default: loadmaster-jobs in the home folder "
            "there]",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for the job; may be repeated."),
    ] = None,
    cpus: Annotated[
        float, typer.Option(metavar="N", help="CPUs for the command, beside its workers'.")
    ] = 0,
    gpus: Annotated[
        float, typer.Option(metavar="N", help="GPUs for it: it then runs where they are.")
    ] = 0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow it to its end, or only submit it.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts; logs then go to stderr.")
    ] = False,
) -> None:
    """Run a command as a job on a Ray cluster.

    This installation travels along as a wheel; its libraries have to be on the cluster. Ctrl-C
    leaves the job running and says how to stop it. A cluster with a token wants it in
    RAY_AUTH_TOKEN, or in ~/.ray/auth_token. Exit codes: 0 done, 1 the job failed or was stopped,
    2 bad input, 130 no longer followed.

    Example:

        loadmaster submit -- train das --set rollouts.workers=64

        loadmaster submit --address http://head:8265 --storage /mnt/runs -- train decima

        loadmaster submit --no-wait --json -- tune /mnt/sweeps/asha.yaml
    """
    check_command(command)
    variables = given_variables(env or [])
    from loadmaster.serving.jobs.client import Jobs

    jobs = Jobs(address)
    job = jobs.submit(command, name=name, storage=storage, env=variables, cpus=cpus, gpus=gpus)
    folder = jobs.get(job).folder
    tell = sys.stderr if as_json else sys.stdout
    if not wait:
        if as_json:
            print(json.dumps({"job": job, "address": jobs.address, "folder": folder}, indent=2))
        else:
            print(f"Job: {job}, in {folder} on the cluster")
            print(f"Logs: loadmaster jobs logs {job} --follow")
        return
    print(f"Job: {job}, in {folder} on the cluster", file=tell, flush=True)
    follow(jobs, job, as_json)


def follow(jobs: Jobs, job: str, as_json: bool) -> None:
    """Its logs as they come, then how it ended; that is the exit code."""
    logs = sys.stderr if as_json else sys.stdout
    try:
        for text in jobs.follow(job):
            print(text, end="", file=logs, flush=True)
    except KeyboardInterrupt:
        print(
            f"{job} goes on. Its logs: loadmaster jobs logs {job} --follow; "
            f"to stop it: loadmaster jobs stop {job}",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None
    ended = jobs.get(job)
    if as_json:
        record = {"job": job, "status": ended.status, "exit_code": ended.exit_code}
        print(json.dumps({**record, "folder": ended.folder}, indent=2))
    if ended.status == "succeeded":
        return
    why = "" if ended.exit_code is not None else ": " + " ".join(ended.last_lines(3))
    print(f"error: job {job} {ended.ending}{why}", file=sys.stderr)
    raise typer.Exit(1)


def check_command(command: list[str]) -> None:
    """Refuse here what the cluster would refuse half a minute later."""
    from loadmaster.envs.errors import InputError, unknown_name
    from loadmaster.platform.cli.main import COMMANDS, load_command

    verb, *arguments = command
    known = [each for each in COMMANDS if each not in NOT_AS_A_JOB]
    if verb in NOT_AS_A_JOB:
        raise InputError(f"{verb!r} is no command for a job; expected one as `train decima`")
    if verb not in known:
        raise unknown_name("command", verb, known)
    load_command(verb).make_context(verb, arguments)


def given_variables(assignments: list[str]) -> dict[str, str]:
    from loadmaster.envs.errors import InputError

    variables = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InputError(f"--env {text!r}; expected NAME=VALUE")
        variables[name] = value
    return variables
