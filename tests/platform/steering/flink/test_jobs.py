"""Choice of jobs by name, the client's errors, durations of Flink's configuration."""

from collections.abc import Iterator
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.flink.client import ApiError, FlinkClient, seconds
from loadmaster.platform.steering.flink.engine import SPEC, Jobs, choose, connect
from loadmaster.platform.steering.flink.settings import FlinkSettings
from tests.platform.steering.flink.rest_server import FlinkServer

OTHER = {"jid": "b" * 32, "name": "views", "state": "RUNNING", "jobType": "STREAMING"}


@pytest.fixture
def client(url: str) -> Iterator[FlinkClient]:
    client = FlinkClient(url)
    yield client
    client.close()


def names(flink: FlinkServer, client: FlinkClient, *wanted: str) -> list[str]:
    settings = FlinkSettings(first_poll_s=1.0)
    return [one.application for one in Jobs(client, settings, wanted, flink.clock, flink.advance)()]


def test_all_jobs_or_those_named(flink: FlinkServer, client: FlinkClient) -> None:
    flink.other_jobs = [OTHER, {**OTHER, "jid": "c" * 32, "name": "old", "state": "CANCELED"}]
    assert names(flink, client) == ["clicks", "views"]
    assert names(flink, client, "views") == ["views"]
    assert names(flink, client, "b" * 32) == ["views"]


def test_unknown_job_lists_those_that_run(flink: FlinkServer, client: FlinkClient) -> None:
    flink.other_jobs = [OTHER]
    with pytest.raises(InputError) as fault:
        names(flink, client, "click")
    line = str(fault.value)
    assert "\n" not in line
    for part in ("'click'", "clicks", "views"):
        assert part in line


def test_shared_name_needs_an_id(flink: FlinkServer, client: FlinkClient) -> None:
    flink.other_jobs = [{**OTHER, "name": "clicks"}]
    with pytest.raises(InputError) as fault:
        names(flink, client, "clicks")
    assert "b" * 32 in str(fault.value)
    assert names(flink, client) == [f"clicks {'a' * 8}", f"clicks {'b' * 8}"]


def test_no_job() -> None:
    with pytest.raises(InputError):
        choose([], (), "http://flink")


def test_history_is_kept_from_step_to_step(flink: FlinkServer, client: FlinkClient) -> None:
    jobs = Jobs(client, FlinkSettings(), (), flink.clock, flink.advance)
    (first,) = jobs()
    assert not first.is_new
    assert first.read().off == ""  # the second poll
    assert jobs() == [first]
    flink.job_id = "d" * 32  # the job was started anew
    (second,) = jobs()
    assert second is not first


def test_connect(flink: FlinkServer, url: str) -> None:
    with connect(FlinkSettings(rest=url, first_poll_s=0, refresh_s=0), (), "watch") as jobs:
        assert [one.application for one in jobs()] == ["clicks"]
    assert SPEC.system == "sure"


def test_address_without_flink() -> None:
    with connect(FlinkSettings(rest="http://127.0.0.1:9", deadline_s=0.5), (), "watch") as jobs:
        with pytest.raises(SilentError) as fault:
            jobs()
        assert fault.value.part == "engine"
    for rest in ("127.0.0.1:8081", "ftp://flink"):
        with pytest.raises(InputError), connect(FlinkSettings(rest=rest), (), "watch"):
            pass


def test_errors_are_one_line(flink: FlinkServer, client: FlinkClient) -> None:
    with pytest.raises(ApiError) as fault:
        client.job("e" * 32)
    assert fault.value.status == 404
    assert str(fault.value) == f"Job {'e' * 32} not found"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 s", 30.0), ("30s", 30.0), ("1 min", 60.0), ("2min", 120.0), ("500", 0.5),
        ("500 ms", 0.5), ("1 h", 3600.0), ("2 days", 172_800.0), ("PT30S", 30.0),
        ("PT1M30S", 90.0), ("1 milliseconds", 0.001), ("soon", 0.0),
    ],
)  # fmt: skip
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("given", [{"floor": 0}, {"rollback_tolerance": 2}, {"unknown": 1}])
def test_settings_refuse(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        FlinkSettings(**given)
