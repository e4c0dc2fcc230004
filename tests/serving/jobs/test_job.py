"""A job: its id, entrypoint, environment and state."""

import datetime
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs import job as module
from loadmaster.serving.jobs.job import entrypoint, environment, job_folder, job_from, job_id

NOW = datetime.datetime(2026, 11, 15, 17, 12, 0)


def test_id_and_default_name() -> None:
    name = module.usual_name(["train", "decima", "--workers", "8"])
    assert job_id(name, NOW, "ab12") == "loadmaster-train-decima-20261115-171200-ab12"
    assert module.usual_name(["train", "--resume", "x"]) == "train"
    assert module.usual_name(["tune", "tune_configs/decima/asha.yaml"]) == "tune-asha"
    with pytest.raises(InputError, match="no command given"):
        module.usual_name([])


@given(st.text(max_size=100))
def test_any_name_gives_an_id_or_is_refused(name: str) -> None:
    try:
        made = job_id(name, NOW, "ab12")
    except InputError:
        assert not re.search("[a-zA-Z0-9]", name)
    else:
        assert re.fullmatch(r"loadmaster-[a-z0-9]+(-[a-z0-9]+)*-20261115-171200-ab12", made)
        assert len(made) < 100


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)))
def test_entrypoint_quotes_its_arguments(arguments: list[str]) -> None:
    words = shlex.split(entrypoint(arguments, "/runs/a job's"))
    assert words[words.index("exec") + 1 :] == ["python", "-m", module.MODULE, *arguments]
    assert words.count("/runs/a job's") == 2


def test_entrypoint_runs_in_the_job_folder(tmp_path: Path) -> None:
    """With a `python` that prints its folder and arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text('#!/bin/sh\npwd; echo "$@"\n')
    (programs / "python").chmod(0o755)
    line = entrypoint(["list", "--set", "a=$HOME"], job_folder(None, "job-1"))
    environment = {"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    output = subprocess.check_output(line, shell=True, env=environment, text=True)
    folder = tmp_path / "loadmaster-jobs" / "job-1"
    assert output == f"{folder}\n-m {module.MODULE} list --set a=$HOME\n"


def test_storage_must_be_absolute() -> None:
    assert job_folder("/mnt/runs/", "job-1") == "/mnt/runs/job-1"
    with pytest.raises(InputError, match="absolute"):
        job_folder("runs", "job-1")


def test_environment_has_the_virtual_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/venv")
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert environment({"A": "1"}) == {"PATH": "/venv/bin:${PATH}", "A": "1"}
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert environment({}) == {}
    with pytest.raises(InputError, match="A B"):
        environment({"A B": "1"})


def details(**changed: Any) -> dict[str, Any]:
    labels = {"loadmaster": "list --json", "folder": "/runs/1"}
    given = {"submission_id": "loadmaster-list-1", "status": "RUNNING", "entrypoint": "mkdir ..."}
    return {**given, "metadata": labels, "start_time": 1_794_763_892_209, **changed}


def test_job_has_a_state_and_an_ending() -> None:
    job = job_from(details())
    assert (job.id, job.status, job.command) == ("loadmaster-list-1", "running", "list --json")
    assert (job.folder, job.submitted_at, job.ended_at) == ("/runs/1", 1_794_763_892.209, None)
    assert not job.ended
    endings = {"SUCCEEDED": "done", "STOPPED": "was stopped", "PENDING": "queued"}
    for status, ending in (*endings.items(), ("FAILED", "failed (before it began)")):
        assert job_from(details(status=status, metadata=None)).ending == ending


def test_failed_job_has_the_last_lines() -> None:
    header = "failed with exit code 2, last available logs (truncated to 20,000 chars):\n"
    message = header + "Traceback\n\n" + "\n".join(f"line {i}" for i in range(40))
    job = job_from(details(status="FAILED", message=message, driver_exit_code=2, end_time=2000))
    assert (job.ended, job.ending, job.ended_at) == (True, "failed (exit code 2)", 2.0)
    assert job.last_lines(2) == ["line 38", "line 39"]
    assert len(job.last_lines()) == 10
    message = "Job supervisor actor failed to start: no pip\nhere"
    assert job_from(details(message=message)).last_lines() == message.splitlines()


@pytest.mark.slow
def test_lost_job_is_known_by_the_error_of_ray() -> None:
    from ray.job_submission import JobErrorType

    for error in JobErrorType:
        job = job_from(details(status="FAILED", error_type=error))
        assert job.lost == (error is JobErrorType.JOB_SUPERVISOR_ACTOR_DIED)
        assert job_from(details(status="FAILED", error_type=error.value)).lost == job.lost
