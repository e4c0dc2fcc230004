"""`loadmaster submit` and `loadmaster jobs`, against a fake dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadmaster.platform.cli import main as cli
from loadmaster.platform.ray.session import OF_A_JOB, cluster_address
from loadmaster.serving.jobs import client
from loadmaster.serving.jobs.client import Jobs
from tests.platform.cli.one_line import error_line
from tests.serving.jobs.dashboard import Dashboard, running

Captured = pytest.CaptureFixture[str]

RUNNING = "loadmaster-train-decima-20261115-171200-ab12"
FAILED = "loadmaster-train-das-20261115-171300-cd34"


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Dashboard]:
    """The dashboard that the environment names, with a running and a failed job."""
    code = tmp_path / "loadmaster-0.1.0-0_abc-py3-none-any.whl"
    code.write_bytes(b"a wheel")
    monkeypatch.setattr(client, "wheel", lambda: code)
    monkeypatch.setattr(client, "PAUSE_S", 0.0)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with running(Dashboard(token="secret")) as opened:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", opened.address)
        metadata = {"loadmaster": "train decima --workers 8", "folder": "/runs/1"}
        opened.add(RUNNING, "RUNNING", metadata)
        message = "... last available logs (truncated to 20,000 chars):\nerror: no GPU\n"
        opened.add(
            FAILED, "FAILED", {"loadmaster": "train das"}, message=message, driver_exit_code=2,
            end_time=64_000,
        )  # fmt: skip
        opened.logs[RUNNING] = "one\ntwo\nthree\n"
        yield opened


Ends = Callable[..., None]


@pytest.fixture
def ends(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Make the next job write a line and end with a status."""

    def arrange(status: str, **details: object) -> None:
        def follow(self: Jobs, job: str) -> Iterator[str]:
            yield "iteration 1/3\n"
            dashboard.jobs[job] |= {"status": status, **details}

        monkeypatch.setattr(Jobs, "follow", follow)

    return arrange


def test_submit_follows_the_logs(dashboard: Dashboard, ends: Ends, capsys: Captured) -> None:
    ends("SUCCEEDED", driver_exit_code=0)
    assert cli.main(["submit", "--name", "mine", "--", "train", "decima", "--workers", "8"]) == 0
    (request,) = dashboard.submitted
    assert request["submission_id"].startswith("loadmaster-mine-")
    assert request["entrypoint"].endswith("cli.main train decima --workers 8")
    shown = capsys.readouterr()
    job, rest = shown.out.split("\n", 1)
    assert job.startswith(f"Job: {request['submission_id']}, in $HOME/loadmaster-jobs/")
    assert rest == "iteration 1/3\n"
    assert shown.err == ""


def test_submit_prints_json(ends: Ends, capsys: Captured) -> None:
    ends("SUCCEEDED", driver_exit_code=0)
    assert cli.main(["submit", "--json", "--storage", "/mnt", "--", "list", "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (record["status"], record["exit_code"]) == ("succeeded", 0)
    assert record["folder"] == f"/mnt/{record['job']}"
    assert "iteration 1/3\n" in shown.err


@pytest.mark.parametrize("as_json", [False, True])
def test_submit_without_waiting(as_json: bool, dashboard: Dashboard, capsys: Captured) -> None:
    assert cli.main(["submit", "--no-wait", *["--json"] * as_json, "--", "list"]) == 0
    job, shown = dashboard.submitted[0]["submission_id"], capsys.readouterr().out
    if as_json:
        assert json.loads(shown)["job"] == job
    else:
        assert shown.endswith(f"Logs: loadmaster jobs logs {job} --follow\n")


@pytest.mark.parametrize(
    ("status", "details", "words"),
    [
        ("FAILED", {"driver_exit_code": 2, "message": "..."}, "failed (exit code 2)"),
        ("FAILED", {"message": "no pip\nfound"}, "failed (before it began): no pip found"),
        ("STOPPED", {"driver_exit_code": None, "message": "Stopped."}, "was stopped: Stopped."),
    ],
)
def test_unsuccessful_job_exits_with_1(
    status: str,
    details: dict[str, object],
    words: str,
    dashboard: Dashboard,
    ends: Ends,
    capsys: Captured,
) -> None:
    ends(status, **details)
    assert cli.main(["submit", "--", "list"]) == 1
    job = dashboard.submitted[0]["submission_id"]
    assert capsys.readouterr().err == f"error: job {job} {words}\n"


def test_ctrl_c_leaves_the_job_running(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def interrupted(self: Jobs, job: str) -> Iterator[str]:
        yield "iteration 1/3\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "follow", interrupted)
    assert cli.main(["submit", "--", "list"]) == 130
    job = dashboard.submitted[0]["submission_id"]
    assert dashboard.jobs[job]["status"] == "PENDING"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(f"to stop it: loadmaster jobs stop {job}")
    assert lines[1:] == ["interrupted"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit"], "Missing argument"),
        (["submit", "--", "trian", "decima"], "did you mean 'train'?"),
        (["submit", "--", "train", "decima", "--sett", "a=1"], "--set"),
        (["submit", "--", "evaluate", "decima", "--seeds", "many"], "--seeds"),
        (["submit", "--", "submit", "--", "list"], "no command for a job"),
        (["submit", "--", "jobs", "list"], "no command for a job"),
        (["submit", "--env", "A", "--", "list"], "expected NAME=VALUE"),
        (["submit", "--env", "A B=1", "--", "list"], "environment variable 'A B'"),
        (["submit", "--storage", "runs", "--", "list"], "expected an absolute path"),
        (["submit", "--name", "--", "--", "list"], "no letter or digit"),
        (["submit", "--address", "ftp://x", "--", "list"], "expected the dashboard's"),
        (["submit", "--address", "http://127.0.0.1:1", "--", "list"], "no Ray cluster answers"),
        (["jobs"], "list|logs|stop"),
        (["jobs", "lst"], "lst"),
        (["jobs", "list", "ab12"], "takes no job"),
        (["jobs", "logs"], "no job given"),
        (["jobs", "stop"], "no job given"),
        (["jobs", "logs", "ab12", "--lines", "0"], "expected 1 or more"),
        (["jobs", "stop", "nobody"], "unknown job 'nobody'"),
    ],
)
def test_misuse_is_one_line(
    arguments: list[str], words: str, dashboard: Dashboard, capsys: Captured
) -> None:
    assert words in error_line(arguments, capsys)
    assert dashboard.submitted == []


def test_wrong_token_is_bad_input(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "other")
    assert cli.main(["jobs", "list"]) == 2
    assert "refuses the token" in capsys.readouterr().err


def test_list_prints_a_table(dashboard: Dashboard, capsys: Captured) -> None:
    assert cli.main(["jobs", "list"]) == 0
    header, failed, runs = capsys.readouterr().out.splitlines()
    assert header.split() == ["job", "status", "submitted", "took", "command"]
    assert failed.split()[:2] == [FAILED, "failed"]
    assert "0:01:02" in failed
    assert runs.split()[:2] == [RUNNING, "running"]
    assert runs.rstrip().endswith("train decima --workers 8")


def test_list_prints_json(dashboard: Dashboard, capsys: Captured) -> None:
    assert cli.main(["jobs", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["address"] == dashboard.address
    assert found["jobs"][1] == {
        "job": RUNNING, "status": "running", "command": "train decima --workers 8",
        "folder": "/runs/1", "submitted_at": "1970-01-01T00:00:01+00:00", "ended_at": None,
        "exit_code": None,
    }  # fmt: skip


def test_empty_list_is_mentioned(dashboard: Dashboard, capsys: Captured) -> None:
    dashboard.jobs.clear()
    assert cli.main(["jobs", "list"]) == 0
    assert capsys.readouterr().out.startswith(f"No jobs of loadmaster's at {dashboard.address}.")


def test_logs_are_printed(dashboard: Dashboard, capsys: Captured) -> None:
    assert cli.main(["jobs", "logs", "ab12"]) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert cli.main(["jobs", "logs", "ab12", "--lines", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logs"] == ["two", "three"]


def test_logs_are_followed(ends: Ends, capsys: Captured) -> None:
    ends("FAILED", driver_exit_code=1)
    assert cli.main(["jobs", "logs", "ab12", "--follow"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "iteration 1/3\n"
    assert shown.err == f"error: job {RUNNING} failed (exit code 1)\n"


def test_stop_ends_the_job(dashboard: Dashboard, capsys: Captured) -> None:
    assert cli.main(["jobs", "stop", "ab12"]) == 0
    assert (
        capsys.readouterr().out
        == f"{RUNNING} was stopped; what it wrote is in /runs/1 on the cluster\n"
    )
    assert cli.main(["jobs", "stop", "ab12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["was_running"] is False
    assert cli.main(["jobs", "stop", "cd34"]) == 0
    assert "had ended before: failed (exit code 2)" in capsys.readouterr().out


def test_command_in_a_job_joins_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv(OF_A_JOB, raising=False)
    assert cluster_address(None) is None
    monkeypatch.setenv(OF_A_JOB, "{}")
    assert cluster_address(None) == "10.0.0.1:6379"
    assert cluster_address("10.0.0.2:6379") == "10.0.0.2:6379"
