"""A job: its name, what the cluster runs for it, and how it is doing. Nothing here asks Ray."""

from __future__ import annotations

import datetime
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from loadmaster.envs.errors import InputError

MODULE = "loadmaster.platform.cli.main"  # the command line, by name: the service imports none of it
HOME_FOLDER = "loadmaster-jobs"  # in the home of whoever runs the cluster
COMMAND, FOLDER = "loadmaster", "folder"  # what we note down about a job
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_MAX = 60
SAID = re.compile(r"last available logs \(truncated to [\d,]+ chars\):\n")

Status = Literal["queued", "running", "succeeded", "failed", "stopped"]
STATUS: Mapping[str, Status] = {  # Ray's words and ours
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


@dataclass(frozen=True)
class Job:
    """A job as the cluster knows it. Times are in seconds since 1970."""

    id: str
    status: Status
    command: str  # "train decima --workers 8"
    folder: str  # on the cluster, where relative paths of the command are
    submitted_at: float | None
    ended_at: float | None
    exit_code: int | None  # of the command, where it came to an end
    message: str  # Ray's; of a failed job with the last lines it wrote

    @property
    def ended(self) -> bool:
        return self.status in ("succeeded", "failed", "stopped")

    def last_lines(self, count: int = 10) -> list[str]:
        """Of what a failed job wrote; of one that never started, why."""
        text = SAID.split(self.message, maxsplit=1)[-1]
        return [line for line in text.splitlines() if line.strip()][-count:]

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        if self.status == "failed":
            code = "before it began" if self.exit_code is None else f"exit code {self.exit_code}"
            return f"failed ({code})"
        return {"succeeded": "done", "stopped": "was stopped"}.get(self.status, self.status)


def job_from(details: Mapping[str, Any]) -> Job:
    """From what Ray's API tells about one."""
    noted = details.get("metadata") or {}
    started, ended = details.get("start_time"), details.get("end_time")
    return Job(
        id=str(details.get("submission_id") or details.get("job_id")),
        status=STATUS[str(getattr(details["status"], "value", details["status"]))],
        command=str(noted.get(COMMAND) or details.get("entrypoint") or ""),
        folder=str(noted.get(FOLDER) or ""),
        submitted_at=started / 1000 if started else None,
        ended_at=ended / 1000 if ended else None,
        exit_code=details.get("driver_exit_code"),
        message=str(details.get("message") or ""),
    )


def job_id(name: str, now: datetime.datetime, salt: str) -> str:
    """loadmaster-train-decima-20261115-171200-ab12"""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower())[:NAME_MAX].strip("-")
    if not words:
        raise InputError(f"job name {name!r} has no letter or digit; expected one that tells it")
    return f"loadmaster-{words}-{now:%Y%m%d-%H%M%S}-{salt}"


def usual_name(arguments: Sequence[str]) -> str:
    """What a command is called by: its verb, and what it is about."""
    if not arguments:
        raise InputError("no command given; expected one of loadmaster's, as `train decima`")
    about = [Path(word).stem for word in arguments[1:2] if not word.startswith("-")]
    return "-".join([arguments[0], *about])


def job_folder(storage: str | None, job: str) -> str:
    """The job's own folder on the cluster, for a shell; `$HOME` is the cluster's."""
    if storage is None:
        return f"$HOME/{HOME_FOLDER}/{job}"
    if not PurePosixPath(storage).is_absolute():
        raise InputError(
            f"storage {storage!r} is relative; expected an absolute path, as the cluster's "
            "machines see it"
        )
    return str(PurePosixPath(storage) / job)


def entrypoint(arguments: Sequence[str], folder: str) -> str:
    """What the cluster's shell runs: the command, in a folder that stays when the job is gone."""
    if folder.startswith("$HOME/"):
        place = f'"{folder}"'
    else:
        place = shlex.quote(folder)
    command = shlex.join(["python", "-m", MODULE, *arguments])
    return f"mkdir -p {place} && cd {place} && exec {command}"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables of the job and its workers.

    Where this command's own virtual environment lies on the machine that runs the job, it is the
    one to use: Ray may have been started without activating it. Elsewhere the entry is idle.
    """
    for name in given:
        if not VARIABLE.fullmatch(name):
            raise InputError(f"environment variable {name!r}; expected letters, digits and _")
    own = {"PATH": venv_first("${PATH}")} if sys.prefix != sys.base_prefix else {}
    return {**own, **given}


def venv_first(path: str) -> str:
    """A PATH that finds this interpreter's programs first: `python`, and the pip that Ray calls."""
    return f"{Path(sys.executable).parent}:{path}"
