"""The client of a cluster's jobs, against a dashboard that answers as Ray's does."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs import access
from loadmaster.serving.jobs.access import cluster_token, dashboard_address
from loadmaster.serving.jobs.client import Jobs, UnknownJobError, UnreachableError
from tests.serving.jobs.dashboard import Dashboard, running


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No address, no token, and a home without either."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(access, "_of_the_running_ray", lambda: None)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with running(Dashboard(token="secret")) as opened:
        yield opened


@pytest.fixture
def jobs(dashboard: Dashboard) -> Jobs:
    return Jobs(dashboard.address, token="secret")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "loadmaster-0.1.0-0_abc-py3-none-any.whl"
    file.write_bytes(b"a wheel")
    return file


def test_a_job_is_submitted(jobs: Jobs, dashboard: Dashboard, code: Path) -> None:
    arguments = ["train", "decima", "--set", "training.iterations=3"]
    job = jobs.submit(
        arguments, storage="/mnt/runs", metadata={"why": "drift"}, env={"A": "1"}, gpus=1, code=code
    )
    assert re.fullmatch(r"loadmaster-train-decima-\d{8}-\d{6}-[0-9a-f]{4}", job)
    assert dashboard.packages == {code.name: b"a wheel"}
    (asked,) = dashboard.submitted
    assert asked["submission_id"] == job
    assert asked["entrypoint"].endswith(
        f"cd /mnt/runs/{job} && exec python -m loadmaster.platform.cli.main train decima "
        "--set training.iterations=3"
    )
    assert asked["runtime_env"]["py_modules"] == [f"gcs://{code.name}"]
    assert asked["runtime_env"]["env_vars"]["A"] == "1"
    assert asked["metadata"] == {
        "why": "drift",
        "loadmaster": "train decima --set training.iterations=3",
        "folder": f"/mnt/runs/{job}",
    }
    assert asked["entrypoint_num_gpus"] == 1
    assert jobs.get(job).status == "queued"


def test_code_travels_once(jobs: Jobs, dashboard: Dashboard, code: Path) -> None:
    jobs.submit(["list"], code=code)
    dashboard.packages[code.name] = b"as it was"
    jobs.submit(["list"], name="again", code=code)
    assert dashboard.packages[code.name] == b"as it was"
    assert [asked["submission_id"].split("-")[1] for asked in dashboard.submitted] == [
        "list",
        "again",
    ]


def test_the_list_is_ours_and_the_latest_first(jobs: Jobs, dashboard: Dashboard) -> None:
    for name in ("loadmaster-a", "loadmaster-b"):
        dashboard.add(name, "RUNNING", {"loadmaster": f"train {name}"})
    dashboard.add("raysubmit_1", "RUNNING", {})
    assert [job.id for job in jobs.list()] == ["loadmaster-b", "loadmaster-a"]


def test_a_part_of_an_id_will_do(jobs: Jobs, dashboard: Dashboard) -> None:
    with pytest.raises(UnknownJobError, match="has none of loadmaster's"):
        jobs.find("ab12")
    for end in ("ab12", "cd34"):
        dashboard.add(f"loadmaster-train-das-{end}", "RUNNING", {"loadmaster": "train das"})
    assert jobs.find("ab12").id == "loadmaster-train-das-ab12"
    assert jobs.find("loadmaster-train-das-cd34").id == "loadmaster-train-das-cd34"
    with pytest.raises(UnknownJobError, match="in 2 jobs' ids"):
        jobs.find("das")
    with pytest.raises(UnknownJobError, match="unknown job 'zz'; expected one of: loadm"):
        jobs.find("zz")


def test_stop_and_logs(jobs: Jobs, dashboard: Dashboard) -> None:
    dashboard.add("loadmaster-a", "RUNNING", {"loadmaster": "list"})
    dashboard.logs["loadmaster-a"] = "one\ntwo\n"
    assert jobs.logs("loadmaster-a") == "one\ntwo\n"
    assert jobs.stop("loadmaster-a")
    assert not jobs.stop("loadmaster-a")
    assert jobs.wait("loadmaster-a", patience_s=0).status == "stopped"


@pytest.mark.parametrize("ask", ["get", "logs", "stop", "follow"])
def test_an_unknown_job(ask: str, jobs: Jobs, dashboard: Dashboard) -> None:
    with pytest.raises(UnknownJobError, match=f"{dashboard.address} has no job 'nobody'"):
        list(getattr(jobs, ask)("nobody"))


def test_a_broken_connection_repeats_nothing(
    jobs: Jobs, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.add("loadmaster-a", "RUNNING", {"loadmaster": "list"})
    tails = iter([["one\n", "tw"], [], ["one\ntwo\n", "three\n"]])

    def tail(job: str) -> Iterator[str]:
        yield from (found := next(tails))
        if "three\n" in found:
            dashboard.jobs[job]["status"] = "SUCCEEDED"

    monkeypatch.setattr(jobs, "_tail", tail)
    monkeypatch.setattr("loadmaster.serving.jobs.client.PAUSE_S", 0.0)
    assert list(jobs.follow("loadmaster-a")) == ["one\n", "tw", "o\n", "three\n"]


@pytest.mark.parametrize(
    ("token", "said"),
    [("wrong", "refuses the token"), (None, "asks for a token, and none is set")],
)
def test_tokens(token: str | None, said: str, dashboard: Dashboard) -> None:
    with pytest.raises(InputError, match=f"{said}; expected its own in RAY_AUTH_TOKEN") as told:
        Jobs(dashboard.address, token=token).list()
    assert "\n" not in str(told.value)
    assert "wrong" not in str(told.value)


def test_the_token_is_found(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cluster_token() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret\n")
    assert Jobs(dashboard.address).list() == []
    (tmp_path / "other").write_text("from a file")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "other"))
    assert cluster_token() == "from a file"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from a variable")
    assert cluster_token() == "from a variable"


def test_a_token_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r"RAY_AUTH_TOKEN_PATH=.*does not exist"):
        cluster_token()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nobody_answers() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=rf"answers at {address} \(Connection refused\)"):
        Jobs(address).list()


def test_a_silent_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.serving.jobs.client.ANSWER_S", 0.1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(UnreachableError, match="no answer in time"):
            Jobs(f"http://127.0.0.1:{server.getsockname()[1]}").list()


def test_something_else_answers(dashboard: Dashboard) -> None:
    dashboard.broken = 404
    with pytest.raises(InputError, match="is no Ray dashboard"):
        Jobs(dashboard.address, token="secret").list()


def test_a_dashboard_that_fails(jobs: Jobs, dashboard: Dashboard) -> None:
    assert jobs.list() == []
    dashboard.broken = 500
    with pytest.raises(InputError, match="refused: Request failed with status code 500: boom"):
        jobs.list()


def test_a_dashboard_that_goes_away() -> None:
    with running(Dashboard()) as opened:
        jobs = Jobs(opened.address)
        assert jobs.list() == []
    with pytest.raises(UnreachableError, match="Connection refused"):
        jobs.list()


@pytest.mark.parametrize("variable", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_a_given_address_stands(
    variable: str, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own client would follow the variable."""
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert Jobs(dashboard.address, token="secret").list() == []


def test_where_the_dashboard_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dashboard_address() == "http://127.0.0.1:8265"
    assert dashboard_address("head:8265/") == "http://head:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://proxy.example/ray")
    assert dashboard_address() == "https://proxy.example/ray"
    monkeypatch.setattr(access, "_of_the_running_ray", lambda: "http://10.0.0.1:8265")
    assert dashboard_address() == "http://10.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://chosen:1")
    assert dashboard_address() == "http://chosen:1"


@pytest.mark.parametrize(
    "address", ["ray://head:10001", "http://", "http://head:port", "http://head?x=1", "http://u@h"]
)
def test_no_address(address: str) -> None:
    with pytest.raises(InputError, match="expected the dashboard's http://HOST:PORT"):
        dashboard_address(address)


def test_a_head_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=r"RAY_ADDRESS=127.* no cluster answers \(Connection ref"):
        dashboard_address()


def test_a_ray_without_a_dashboard(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(InputError, match="has no dashboard, so it takes no jobs"):
        dashboard_address()
