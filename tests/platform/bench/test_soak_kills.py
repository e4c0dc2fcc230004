"""A soak with kills: which results hold, the order of kills, the client's load, the files."""

import asyncio
import csv
import dataclasses
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench import kills, service_processes, soak_kills
from loadmaster.platform.bench.client_load import (
    ClientLoad,
    ClientReport,
    Request,
    drive,
    running_load,
)
from loadmaster.platform.bench.kills import KINDS, Killed
from loadmaster.serving.settings import ServeSettings
from tests.serving.client.fake_service import answer, fake_service, unused_url

Patch = pytest.MonkeyPatch
RATE, SECONDS, BEGAN = 10, 60, 1_000_000.0


def soaked(failed: bool = False, replaced: bool = True) -> soak_kills.KillSoak:
    """A kill after 20 and after 40 s; the second slows requests down, and rules decide in it."""
    requests = [
        Request(
            start_s=number / RATE,
            latency_ms=900.0 if number == 401 else 2.0,
            system="toy",
            source="rule" if 400 <= number < 410 else "policy",
            cause="deadline" if 400 <= number < 410 else "",
        )
        for number in range(RATE * SECONDS)
    ]
    if failed:
        requests[402] = requests[402]._replace(source="", cause="DeadlineExceeded: late")
    killed = [
        Killed(BEGAN + 20, "worker", "toy", 7, 3.0),
        Killed(BEGAN + 40, "gateway", "gateway", 8, 4.0 if replaced else None),
    ]
    return soak_kills.kill_soak(ClientReport(BEGAN, requests), killed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "holds: 0 of 600 requests failed, 98.3% decided by the policy"),
        ({"failed": True}, "does not hold: 1 of 600 requests failed"),
        ({"replaced": False}, "1 of 2 killed processes were replaced"),
    ],
)
def test_one_failed_request_or_missing_process_fails_it(
    changes: dict[str, bool], words: str
) -> None:
    result = soak_kills.kills_result(soaked(**changes))
    assert result.holds is not bool(changes)
    assert words in result.line
    assert (result.p50_ms, result.longest_ms) == (2.0, 900.0)


def test_a_soak_without_a_kill_or_a_request_does_not_hold() -> None:
    whole = soaked()
    for soak in (whole._replace(kills=[]), whole._replace(requests=[])):
        assert not soak_kills.kills_result(soak).holds


def test_kills_are_joined_with_their_requests() -> None:
    worker, gateway = soaked(failed=True).kills
    assert (worker.time_s, worker.longest_ms, worker.failed, worker.by_policy) == (20, 2, 0, 1)
    assert (gateway.time_s, gateway.longest_ms, gateway.failed) == (40, 900, 1)
    # Of the 90 requests from the kill to 5 s after the replacement one failed, 9 were a rule's.
    assert gateway.by_policy == pytest.approx(80 / 89)


def test_requests_under_way_at_the_kill_count() -> None:
    slow = Request(19.5, 800.0, "toy", "policy")
    report = ClientReport(BEGAN, [slow, slow._replace(start_s=19.0)])
    (found,) = soak_kills.kill_soak(
        report, [Killed(BEGAN + 20, "control", "control", 1, 1.0)]
    ).kills
    assert (found.longest_ms, found.by_policy) == (800, 1)


def test_tables_summary_and_chart_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    result = soak_kills.write_kill_soak(soaked(failed=True, replaced=False), "Killed", folder)
    seconds, kill_rows, summary, chart = (folder / name for name in soak_kills.FILES)
    header, *rows = csv.reader(seconds.read_text().splitlines())
    assert header == [field.name for field in dataclasses.fields(soak_kills.Second)]
    assert len(rows) == SECONDS
    assert rows[39] == ["39", "10", "0", "1.0", "2.0", "2.0"]
    assert rows[40] == ["40", "10", "1", "0.0", "2.0", "900.0"]
    header, worker, gateway = csv.reader(kill_rows.read_text().splitlines())
    assert worker == ["20.0", "worker", "toy", "3.0", "2.0", "0", "1.0"]
    assert gateway[3] == "", "not replaced"
    record = json.loads(summary.read_text())
    assert record["holds"] is result.holds is False
    assert record["errors"] == {"DeadlineExceeded: late": 1}
    assert record["by_rule"] == {"deadline": 9}
    assert record["by_kind"]["worker"]["replaced_s_median"] == 3
    assert record["by_kind"]["gateway"]["replaced_s_most"] is None
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_every_three_kills_have_each_kind_by_the_seed() -> None:
    first, again, other = (
        [kind for kind, _ in zip(kills.drawn_kinds(random.Random(seed)), range(30), strict=False)]
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert all(set(first[begin : begin + 3]) == set(KINDS) for begin in range(0, 30, 3))


class Replicas:
    """Replicas of a service as Serve lists them; replacements run some lists after a kill."""

    def __init__(self, after: int) -> None:
        self._after, self._next_pid, self._left = after, 100, 0
        self.running = {"control": {1}, "gateway": {2, 3}, "toy": {4, 5}}
        self.killed: list[tuple[int, str]] = []

    def kill(self, pid: int, deployment: str) -> None:
        assert not self._left, "the service was not complete"
        self.killed.append((pid, deployment))
        self._left = self._after

    def list(self) -> dict[str, set[int]]:
        """Serve lists a dead replica for a while."""
        if self._left:
            self._left -= 1
            pid, deployment = self.killed[-1]
            if self._left == self._after // 2:
                self.running[deployment] = self.running[deployment] - {pid}
            if not self._left:
                self._next_pid += 1
                self.running[deployment] = self.running[deployment] | {self._next_pid}
        return self.running


class Clock:
    """In place of the module `time`: only sleeping takes time."""

    def __init__(self) -> None:
        self._now_s = BEGAN

    def time(self) -> float:
        return self._now_s

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


def killing(monkeypatch: Patch, after: int, **times: float) -> tuple[Replicas, list[Killed]]:
    replicas = Replicas(after)
    monkeypatch.setattr(kills, "running_replicas", replicas.list)
    monkeypatch.setattr(kills, "kill", replicas.kill)
    monkeypatch.setattr(kills, "time", Clock())
    for name, value in times.items():
        monkeypatch.setattr(kills, name, value)
    values: dict[str, Any] = {"systems": {"toy": {"workers": 2}}, "replicas": 2}
    seen: list[Killed] = []
    found = kills.kill_in_turn(build_settings(ServeSettings, values), 10.0, 65.0, seen.append)
    assert found == seen
    return replicas, found


def test_kills_wait_for_the_replacement(monkeypatch: Patch) -> None:
    replicas, found = killing(monkeypatch, after=6)
    assert [(one.pid, one.deployment) for one in found] == replicas.killed
    assert Counter(one.kind for one in found) == dict.fromkeys(KINDS, 2)
    assert {one.deployment for one in found} == {"control", "gateway", "toy"}
    assert [one.replaced_s for one in found] == pytest.approx([0.5] * 6)
    assert [one.time - BEGAN for one in found] == pytest.approx([10, 20, 30, 40, 50, 60])
    _, late = killing(monkeypatch, after=150)  # replaced after 15 s
    assert [one.time - BEGAN for one in late] == pytest.approx([10, 30, 50])


def test_kills_end_if_a_process_is_not_replaced(monkeypatch: Patch) -> None:
    _, (only,) = killing(monkeypatch, after=10**6, REPLACED_S=1.0)
    assert only.replaced_s is None


def test_no_other_process_is_killed() -> None:
    with pytest.raises(RuntimeError, match="expected one of gateway"):
        service_processes.kill(os.getpid(), "gateway")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "body.json"
    file.write_text('{"state": {"load": 1}}')
    return file


def test_the_load_repeats_requests_as_the_client_does(body: Path) -> None:
    with fake_service(answer(), answer({"error": "no"}, 503), answer()) as service:
        load = ClientLoad(service.url, {"toy": (body,), "other": (body,)}, 2, 40.0, 0.2)
        report = asyncio.run(drive(load))
    assert [one.start_s for one in report.requests] == [number / 40 for number in range(8)]
    assert Counter(one.system for one in report.requests) == {"toy": 4, "other": 4}
    assert {(one.source, one.cause) for one in report.requests} == {("policy", "")}
    sent = [json.loads(seen.body) for seen in service.seen]
    assert {one["tenant"] for one in sent} == {"t0", "t1"}
    assert all(one["state"] == {"load": 1} for one in sent)
    assert len(sent) > len({one["request_id"] for one in sent}) == 8
    assert max(one.latency_ms for one in report.requests) >= 10, "the pause counts"


def test_the_load_runs_in_its_own_process_and_counts_failures(body: Path) -> None:
    load = ClientLoad(unused_url(), {"toy": (body,)}, 1, 20.0, 0.1)
    with running_load(load) as report:
        found = report().requests
    assert len(found) == 2
    assert all(one.source == "" and one.cause.startswith("Unreachable") for one in found)
    with (
        pytest.raises(RuntimeError, match="load generator failed"),
        running_load(dataclasses.replace(load, bodies={"toy": (body / "missing",)})) as report,
    ):
        report()
