"""A job: its id, entrypoint, environment and state. Nothing here calls Ray."""

import datetime
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from loadmaster.envs.errors import InputError

MODULE = "loadmaster.platform.cli.main"  # by name: serving must not import platform
RETRIES_MODULE = "loadmaster.platform.cli.retries"
HOME_FOLDER = "loadmaster-jobs"  # in the home of the cluster's user
COMMAND, FOLDER = "loadmaster", "folder"  # keys of a job's metadata
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_MAX = 60
SUPERVISOR_DIED = "JOB_SUPERVISOR_ACTOR_DIED"  # Ray's type of error
LOG_HEADER = re.compile(r"last available logs \(truncated to [\d,]+ chars\):\n")

Status = Literal["queued", "running", "succeeded", "failed", "stopped"]
STATUS: Mapping[str, Status] = {  # Ray's status -> ours
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


@dataclass(frozen=True)
class Job:
    """State of a job on the cluster. Times are in seconds since 1970."""

    id: str
    status: Status
    command: str  # "train decima --workers 8"
    folder: str  # working directory on the cluster
    submitted_at: float | None
    ended_at: float | None
    exit_code: int | None  # of the command, if it ended
    message: str  # Ray's; with the last log lines of a failed job
    lost: bool = False  # failed because the node of its driver, or Ray's process for it, died

    @property
    def ended(self) -> bool:
        return self.status in ("succeeded", "failed", "stopped")

    def last_lines(self, count: int = 10) -> list[str]:
        """Last log lines of a failed job; the reason if it never started."""
        text = LOG_HEADER.split(self.message, maxsplit=1)[-1]
        return [line for line in text.splitlines() if line.strip()][-count:]

    @property
    def ending(self) -> str:
        """Description of how it ended."""
        if self.status == "failed":
            never = "its node was lost" if self.lost else "before it began"
            code = never if self.exit_code is None else f"exit code {self.exit_code}"
            return f"failed ({code})"
        return {"succeeded": "done", "stopped": "was stopped"}.get(self.status, self.status)


def job_from(details: Mapping[str, Any]) -> Job:
    """Build a Job from the details of Ray's API."""
    metadata = details.get("metadata") or {}
    started, ended = details.get("start_time"), details.get("end_time")
    error = details.get("error_type")
    return Job(
        id=str(details.get("submission_id") or details.get("job_id")),
        status=STATUS[str(getattr(details["status"], "value", details["status"]))],
        command=str(metadata.get(COMMAND) or details.get("entrypoint") or ""),
        folder=str(metadata.get(FOLDER) or ""),
        submitted_at=started / 1000 if started else None,
        ended_at=ended / 1000 if ended else None,
        exit_code=details.get("driver_exit_code"),
        message=str(details.get("message") or ""),
        lost=str(getattr(error, "value", error)) == SUPERVISOR_DIED,
    )


def job_id(name: str, now: datetime.datetime, salt: str) -> str:
    """Return an id such as loadmaster-train-decima-20261115-171200-ab12."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower())[:NAME_MAX].strip("-")
    if not words:
        raise InputError(f"job name {name!r} has no letter or digit; expected at least one")
    return f"loadmaster-{words}-{now:%Y%m%d-%H%M%S}-{salt}"


def usual_name(arguments: Sequence[str]) -> str:
    """Default name of a command: its verb and first argument."""
    if not arguments:
        raise InputError("no command given; expected a loadmaster command such as `train decima`")
    subject = [Path(word).stem for word in arguments[1:2] if not word.startswith("-")]
    return "-".join([arguments[0], *subject])


def job_folder(storage: str | None, job: str) -> str:
    """Working directory of a job, for the cluster's shell, which expands `$HOME`."""
    if storage is None:
        return f"$HOME/{HOME_FOLDER}/{job}"
    if not PurePosixPath(storage).is_absolute():
        raise InputError(f"storage {storage!r}: expected an absolute path on the cluster")
    return str(PurePosixPath(storage) / job)


def entrypoint(
    arguments: Sequence[str], folder: str, retries: int = 0, continues: bool = False
) -> str:
    """Shell command of a job: create its folder, enter it and run `loadmaster`.

    With `retries`, a process that starts the command again from its last checkpoint; `continues`:
    the command was begun by an earlier job.
    """
    quoted = f'"{folder}"' if folder.startswith("$HOME/") else shlex.quote(folder)
    program = [MODULE]
    if retries:
        program = [RETRIES_MODULE, str(retries), *(["--continue"] if continues else []), "--"]
    command = shlex.join(["python", "-m", *program, *arguments])
    return f"mkdir -p {quoted} && cd {quoted} && exec {command}"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of the job and its workers.

    This process's virtual environment comes first in PATH: it may exist on the node, and Ray may
    have been started without activating it. Elsewhere the entry has no effect.
    """
    for name in given:
        if not VARIABLE.fullmatch(name):
            raise InputError(f"environment variable {name!r}; expected letters, digits and _")
    own = {"PATH": venv_first("${PATH}")} if sys.prefix != sys.base_prefix else {}
    return {**own, **given}


def venv_first(path: str) -> str:
    """Put the folder of this interpreter, its `python` and pip, before the given PATH."""
    return f"{Path(sys.executable).parent}:{path}"
