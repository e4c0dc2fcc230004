"""The client of a cluster's jobs, against a fake dashboard."""

import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs import access
from loadmaster.serving.jobs.access import cluster_token, dashboard_address
from loadmaster.serving.jobs.client import Jobs, UnknownJobError, UnreachableError
from tests.serving.client.fake_service import fake_service, silence, unused_url
from tests.serving.jobs.dashboard import Dashboard, running

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: Patch, tmp_path: Path) -> None:
    """Remove addresses and tokens."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(access, "running_ray_address", lambda: None)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with running(Dashboard(token="secret")) as opened:
        yield opened


@pytest.fixture
def jobs(dashboard: Dashboard) -> Jobs:
    return Jobs(dashboard.address, token="secret")


def test_submit_sends_the_code(jobs: Jobs, dashboard: Dashboard, tmp_path: Path) -> None:
    code = tmp_path / "loadmaster-0.1.0-0_abc-py3-none-any.whl"
    code.write_bytes(b"a wheel")
    arguments = ["train", "decima", "--set", "training.iterations=3"]
    job = jobs.submit(
        arguments, storage="/mnt/runs", metadata={"why": "drift"}, env={"A": "1"}, gpus=1, code=code
    )
    assert re.fullmatch(r"loadmaster-train-decima-\d{8}-\d{6}-[0-9a-f]{4}", job)
    assert jobs.get(job).status == "queued"
    (submitted,) = dashboard.submitted
    command = "train decima --set training.iterations=3"
    start = f"cd /mnt/runs/{job} && exec python -m loadmaster.platform.cli.main"
    assert submitted["entrypoint"].endswith(f"{start} {command}")
    assert submitted["runtime_env"]["env_vars"]["A"] == "1"
    assert submitted["runtime_env"]["py_modules"] == [f"gcs://{code.name}"]
    labels = {"why": "drift", "loadmaster": command, "folder": f"/mnt/runs/{job}"}
    assert (submitted["submission_id"], submitted["metadata"]) == (job, labels)
    assert submitted["entrypoint_num_gpus"] == 1
    assert dashboard.packages == {code.name: b"a wheel"}
    dashboard.packages[code.name] = b"as it was"
    assert jobs.submit(["list"], name="again", code=code).startswith("loadmaster-again-")
    assert dashboard.packages[code.name] == b"as it was"  # the code is uploaded once


def test_own_jobs_are_listed_and_found(jobs: Jobs, dashboard: Dashboard) -> None:
    with pytest.raises(UnknownJobError, match="no jobs"):
        jobs.find("ab12")
    for end in ("ab12", "cd34"):
        dashboard.add(f"loadmaster-train-das-{end}", "RUNNING", {"loadmaster": "train das"})
    dashboard.add("raysubmit_1", "RUNNING", {})
    ids = ["loadmaster-train-das-cd34", "loadmaster-train-das-ab12"]
    assert [job.id for job in jobs.list()] == ids
    assert [jobs.find(name).id for name in (ids[0], "ab12")] == ids
    for name, part in (("das", "2 jobs"), ("zz", "expected one of: loadm")):
        with pytest.raises(UnknownJobError, match=part):
            jobs.find(name)


def test_stop_logs_and_wait(jobs: Jobs, dashboard: Dashboard) -> None:
    dashboard.add("loadmaster-a", "RUNNING", {"loadmaster": "list"})
    dashboard.logs["loadmaster-a"] = "one\ntwo\n"
    assert jobs.logs("loadmaster-a") == "one\ntwo\n"
    assert [jobs.stop("loadmaster-a") for _ in range(2)] == [True, False]
    assert jobs.wait("loadmaster-a", wait_s=0).status == "stopped"


@pytest.mark.parametrize("method", ["get", "logs", "stop", "follow"])
def test_unknown_job_is_refused(method: str, jobs: Jobs) -> None:
    with pytest.raises(UnknownJobError, match="missing"):
        list(getattr(jobs, method)("missing"))


def test_follow_repeats_no_output(jobs: Jobs, dashboard: Dashboard, monkeypatch: Patch) -> None:
    dashboard.add("loadmaster-a", "RUNNING", {"loadmaster": "list"})
    tails = iter([["one\n", "tw"], [], ["one\ntwo\n", "three\n"]])

    def tail(job: str) -> Iterator[str]:
        yield from (found := next(tails))
        if "three\n" in found:
            dashboard.jobs[job]["status"] = "SUCCEEDED"

    monkeypatch.setattr(jobs, "_tail", tail)
    monkeypatch.setattr("loadmaster.serving.jobs.client.PAUSE_S", 0.0)
    assert list(jobs.follow("loadmaster-a")) == ["one\n", "tw", "o\n", "three\n"]


@pytest.mark.parametrize(("token", "part"), [("wrong", "refuses"), (None, "requires")])
def test_wrong_token_is_refused(token: str | None, part: str, dashboard: Dashboard) -> None:
    with pytest.raises(InputError, match=f"{part}.*RAY_AUTH_TOKEN") as raised:
        Jobs(dashboard.address, token=token).list()
    assert "\n" not in str(raised.value)
    assert "wrong" not in str(raised.value)


def test_token_is_read(dashboard: Dashboard, monkeypatch: Patch, tmp_path: Path) -> None:
    assert cluster_token() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret\n")
    assert Jobs(dashboard.address).list() == []
    for path, error in (("nothing", "RAY_AUTH_TOKEN_PATH"), (".ray", "cannot read the token file")):
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / path))
        with pytest.raises(InputError, match=error):
            cluster_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from a variable")
    assert cluster_token() == "from a variable"


def test_unreachable_dashboard_is_reported(monkeypatch: Patch) -> None:
    with running(Dashboard()) as stopped:
        jobs = Jobs(stopped.address)
        assert jobs.list() == []
    for each in (jobs, Jobs(stopped.address)):
        with pytest.raises(UnreachableError, match="Connection refused"):
            each.list()
    monkeypatch.setattr("loadmaster.serving.jobs.client.ANSWER_S", 0.1)
    with fake_service(silence) as server, pytest.raises(UnreachableError, match="timeout"):
        Jobs(server.url).list()


def test_errors_of_the_server_are_reported(jobs: Jobs, dashboard: Dashboard) -> None:
    assert jobs.list() == []
    unconnected = Jobs(dashboard.address, token="secret")
    with mock.patch.object(dashboard, "answer", return_value=(500, "boom")):
        for each, part in ((jobs, "500: boom"), (unconnected, "no Ray dashboard")):
            with pytest.raises(InputError, match=part):
                each.list()


def test_dashboard_address_precedence(dashboard: Dashboard, monkeypatch: Patch) -> None:
    assert dashboard_address() == "http://127.0.0.1:8265"
    assert dashboard_address("head:8265/") == "http://head:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://proxy.example/ray")
    assert dashboard_address() == "https://proxy.example/ray"
    monkeypatch.setattr(access, "running_ray_address", lambda: "http://10.0.0.1:8265")
    assert dashboard_address() == "http://10.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://chosen:1")
    assert dashboard_address() == "http://chosen:1"
    assert Jobs(dashboard.address, token="secret").list() == []  # Ray's client does too


def test_invalid_address_and_dead_head_are_refused(monkeypatch: Patch) -> None:
    for address in ("ray://head:10001", "http://", "http://h:port", "http://h?x=1", "http://u@h"):
        with pytest.raises(InputError, match="HOST:PORT"):
            dashboard_address(address)
    monkeypatch.setenv("RAY_ADDRESS", unused_url().removeprefix("http://"))
    with pytest.raises(InputError, match=r"RAY_ADDRESS=127.*Connection refused"):
        dashboard_address()


@pytest.mark.slow
def test_ray_without_a_dashboard_is_refused(ray_session: None, monkeypatch: Patch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(InputError, match="no dashboard"):
        dashboard_address()
