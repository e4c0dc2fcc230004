"""`loadmaster submit` and `loadmaster jobs`, against a fake dashboard."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadmaster.platform.ray.session import OF_A_JOB, cluster_address
from loadmaster.serving.jobs import client
from loadmaster.serving.jobs.client import Jobs, UnknownJobError
from tests.platform.cli.one_line import Cli, Patch
from tests.serving.jobs.dashboard import Dashboard, running

RUNNING = "loadmaster-train-decima-20261115-171200-ab12"
FAILED = "loadmaster-train-das-20261115-171300-cd34"


@pytest.fixture
def dashboard(monkeypatch: Patch, tmp_path: Path) -> Iterator[Dashboard]:
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
def ends(dashboard: Dashboard, monkeypatch: Patch) -> Ends:
    """Make the next job write a line and end with a status, or Ctrl-C follow the line."""

    def arrange(status: str | None, **details: object) -> None:
        def follow(self: Jobs, job: str, wait_s: float = 0.0) -> Iterator[str]:
            yield "iteration 1/3\n"
            if status is None:
                raise KeyboardInterrupt
            dashboard.jobs[job] |= {"status": status, **details}

        monkeypatch.setattr(Jobs, "follow", follow)

    return arrange


def test_submit_follows_the_logs(dashboard: Dashboard, ends: Ends, cli: Cli) -> None:
    ends("SUCCEEDED", driver_exit_code=0)
    shown = cli("submit --name mine -- train decima --workers 8")
    (request,) = dashboard.submitted
    assert request["submission_id"].startswith("loadmaster-mine-")
    assert request["entrypoint"].endswith("cli.main train decima --workers 8")
    job, rest = shown.out.split("\n", 1)
    assert job.startswith(f"Job: {request['submission_id']}, in $HOME/loadmaster-jobs/")
    assert (rest, shown.err) == ("iteration 1/3\n", "")


def test_submit_prints_json(ends: Ends, cli: Cli) -> None:
    ends("SUCCEEDED", driver_exit_code=0)
    shown = cli("submit --json --storage /mnt -- list --json")
    record = json.loads(shown.out)
    job = record["job"]
    expected = {"job": job, "status": "succeeded", "exit_code": 0, "folder": f"/mnt/{job}"}
    assert record == expected
    assert "iteration 1/3\n" in shown.err


def test_submit_without_waiting(dashboard: Dashboard, cli: Cli) -> None:
    shown, record = cli("submit --no-wait -- list").out, cli("submit --no-wait --json -- list").out
    first, second = (request["submission_id"] for request in dashboard.submitted)
    assert shown.endswith(f"Logs: loadmaster jobs logs {first} --follow\n")
    assert json.loads(record)["job"] == second


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"driver_exit_code": 2, "message": "..."}, "failed (exit code 2)"),
        ({"message": "no pip\nfound"}, "failed (before it began): no pip found"),
        ({"status": "STOPPED", "message": "Stopped."}, "was stopped: Stopped."),
    ],
)
def test_unsuccessful_job_exits_with_1(
    details: dict[str, str], words: str, dashboard: Dashboard, ends: Ends, cli: Cli
) -> None:
    ends(**{"status": "FAILED", **details})
    shown = cli("submit -- list", 1)
    assert shown.err == f"error: job {dashboard.submitted[0]['submission_id']} {words}\n"


@pytest.mark.parametrize("forgotten", [False, True])
def test_lost_job_is_submitted_again_in_its_folder(
    forgotten: bool, dashboard: Dashboard, monkeypatch: Patch, cli: Cli
) -> None:
    """The node of the driver died, or the cluster was restarted without its list of jobs."""

    def follow(self: Jobs, job: str, wait_s: float = 0.0) -> Iterator[str]:
        assert wait_s > 0
        first = len(dashboard.submitted) == 1
        if first and forgotten:
            del dashboard.jobs[job]
            raise UnknownJobError(job)
        ending = {"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}
        dashboard.jobs[job] |= ending if first else {"status": "SUCCEEDED", "driver_exit_code": 0}
        yield "iteration 1/3\n"

    monkeypatch.setattr(Jobs, "follow", follow)
    shown = cli("submit --retries 2 --storage /mnt -- train das")
    first, second = dashboard.submitted
    assert "--continue" not in first["entrypoint"]
    folder, begun = first["entrypoint"].split(" && exec ")
    assert second["entrypoint"] == f"{folder} && exec {begun.replace(' 2 ', ' 2 --continue ')}"
    assert f"/mnt/{first['submission_id']}" in folder
    assert "--output runs/das-" in begun
    assert f"{first['submission_id']} was lost with its node" in shown.out


def test_job_is_submitted_again_at_most_so_often(
    dashboard: Dashboard, ends: Ends, cli: Cli
) -> None:
    ends("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED", message="node died")
    assert cli("submit --retries 2 -- train das", 1).err.endswith("its node was lost): node died\n")
    assert len(dashboard.submitted) == 3


def test_ctrl_c_leaves_the_job_running(dashboard: Dashboard, ends: Ends, cli: Cli) -> None:
    ends(None)
    hint, *rest = cli("submit -- list", 130).err.splitlines()
    job = dashboard.submitted[0]["submission_id"]
    assert dashboard.jobs[job]["status"] == "PENDING"
    assert hint.endswith(f"to stop it: loadmaster jobs stop {job}")
    assert rest == ["interrupted"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("submit", "Missing argument"),
        ("submit -- trian decima", "did you mean 'train'?"),
        ("submit -- train decima --sett a=1", "--set"),
        ("submit -- evaluate decima --seeds many", "--seeds"),
        ("submit -- jobs list", "no command for a job"),
        ("submit --env A -- list", "expected NAME=VALUE"),
        ("submit --retries -1 -- train das", "expected 0 or more"),
        ("submit --retries 1 -- evaluate das", "expected `train` or `retrain`"),
        ("submit --env 'A B=1' -- list", "environment variable 'A B'"),
        ("submit --storage runs -- list", "expected an absolute path"),
        ("submit --name -- -- list", "no letter or digit"),
        ("submit --address ftp://x -- list", "expected the dashboard's"),
        ("submit --address http://127.0.0.1:1 -- list", "no Ray cluster answers"),
        ("jobs", "list|logs|stop"),
        ("jobs list ab12", "takes no job"),
        ("jobs logs", "no job given"),
        ("jobs logs ab12 --lines 0", "expected 1 or more"),
        ("jobs stop nobody", "unknown job 'nobody'"),
    ],
)
def test_misuse_is_one_line(line: str, words: str, dashboard: Dashboard, cli: Cli) -> None:
    assert words in cli.error(line)
    assert dashboard.submitted == []


@pytest.mark.usefixtures("dashboard")
def test_wrong_token_is_bad_input(monkeypatch: Patch, cli: Cli) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "other")
    assert "refuses the token" in cli.error("jobs list")


def test_list_prints_a_table_or_json(dashboard: Dashboard, cli: Cli) -> None:
    header, failed, runs = cli("jobs list").out.splitlines()
    assert header.split() == ["job", "status", "submitted", "took", "command"]
    assert (failed.split()[:2], "0:01:02" in failed) == ([FAILED, "failed"], True)
    assert runs.split()[:2] == [RUNNING, "running"]
    assert runs.rstrip().endswith("train decima --workers 8")
    found = cli.json("jobs list")
    assert found["address"] == dashboard.address
    assert found["jobs"][1] == {
        "job": RUNNING, "status": "running", "command": "train decima --workers 8",
        "folder": "/runs/1", "submitted_at": "1970-01-01T00:00:01+00:00", "ended_at": None,
        "exit_code": None,
    }  # fmt: skip
    dashboard.jobs.clear()
    assert cli("jobs list").out.startswith(f"No jobs of loadmaster's at {dashboard.address}.")


def test_logs_are_printed_or_followed(ends: Ends, cli: Cli) -> None:
    assert cli("jobs logs ab12").out == "one\ntwo\nthree\n"
    assert cli.json("jobs logs ab12 --lines 2")["logs"] == ["two", "three"]
    ends("FAILED", driver_exit_code=1)
    shown = cli("jobs logs ab12 --follow", 1)
    assert shown.out == "iteration 1/3\n"
    assert shown.err == f"error: job {RUNNING} failed (exit code 1)\n"


def test_stop_ends_the_job(dashboard: Dashboard, cli: Cli) -> None:
    stopped = f"{RUNNING} was stopped; what it wrote is in /runs/1 on the cluster\n"
    assert cli("jobs stop ab12").out == stopped
    assert cli.json("jobs stop ab12")["was_running"] is False
    assert "had ended before: failed (exit code 2)" in cli("jobs stop cd34").out


def test_command_in_a_job_joins_its_cluster(monkeypatch: Patch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv(OF_A_JOB, raising=False)
    assert cluster_address(None) is None
    monkeypatch.setenv(OF_A_JOB, "{}")
    assert cluster_address(None) == "10.0.0.1:6379"
    assert cluster_address("10.0.0.2:6379") == "10.0.0.2:6379"
