"""The load generator: what it counts, and that nobody's wait is left out."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadmaster.platform.bench.http_load import Driver, Load, drive, measure, percentile_ms, report
from loadmaster.serving.client.http1 import TOKEN_VARIABLE
from tests.serving.client.fake_service import Exchange, answer, fake_service, raw, unused_url


def test_percentiles_by_rank() -> None:
    ordered = [value / 1000 for value in range(1, 201)]
    found = [percentile_ms(ordered, percent) for percent in (0, 50, 90, 99, 100)]
    assert found == pytest.approx([1, 100, 180, 198, 200])
    assert percentile_ms([0.005], 50) == 5
    assert percentile_ms([], 50) is None


def run(
    *behaviours: Callable[[Exchange], bool], path: str = "", **load: Any
) -> tuple[Any, Driver, dict[str, Any]]:
    """Load a fake service; return the service, the driver and the report."""
    with fake_service(*behaviours) as service:
        made = Load(service.url + path, **load)
        driver = drive(made)
    return service, driver, report(made, driver)


def test_a_closed_loop_asks_again_when_it_is_answered(tmp_path: Path) -> None:
    bodies = tuple(tmp_path / name for name in ("one", "two", "three"))
    for body in bodies:
        body.write_text(f'"{body.name}"')
    path = "/v1/x/decide?y=1"
    service, driver, summary = run(path=path, bodies=bodies, concurrency=2, seconds=0.3)
    assert summary["requests"] == len(service.seen) > 6
    assert summary["failed"] == {}
    assert summary["requests_per_s"] == pytest.approx(summary["requests"] / driver.elapsed_s())
    assert 0 < summary["p50_ms"] <= summary["p90_ms"] <= summary["p99_ms"] <= summary["max_ms"]
    assert {seen.target for seen in service.seen} == {path}
    assert {seen.connection for seen in service.seen} == {0, 1}
    counts = [[seen.body.decode() for seen in service.seen].count(f'"{b.name}"') for b in bodies]
    assert max(counts) - min(counts) <= 1, "in turn"
    assert sum(row["answers"] for row in summary["by_second"]) == summary["requests"]


def test_an_open_loop_leaves_out_no_wait() -> None:
    """During a pause of 0.3 s at 200/s about 60 requests should have started: each has waited."""
    count, lock = itertools.count(1), threading.Lock()

    def slow_once(talk: Exchange) -> bool:
        with lock:  # the twentieth request blocks all others
            time.sleep(0.3 if next(count) == 20 else 0)
        return answer()(talk)

    _, driver, summary = run(slow_once, concurrency=2, seconds=1.0, rate=200)
    assert (summary["requests"], summary["failed"]) == (200, {})
    assert 0.28 <= max(driver.latencies_s) < 2
    waited = sum(latency > 0.1 for latency in driver.latencies_s)
    assert waited >= 30, "a closed loop would have seen two"


def test_an_open_loop_counts_what_it_could_not_send() -> None:
    def slow(talk: Exchange) -> bool:
        time.sleep(0.1)
        return answer()(talk)

    _, _, summary = run(slow, seconds=0.5, rate=100, timeout_s=0.3)
    assert summary["requests"] == 50
    assert summary["failed"]["unsent"] >= 35


def test_failures_are_counted_by_kind() -> None:
    def stuck(talk: Exchange) -> bool:
        talk.over.wait(5)
        return False

    service, driver, summary = run(
        answer({"error": "no"}, 503),
        answer(),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"),
        raw(b"nonsense\r\n\r\n"),
        stuck,
        answer(Connection="close"),
        answer(),
        seconds=0.7,
        timeout_s=0.2,
    )
    assert service.connections >= 5
    assert summary["failed"] == dict.fromkeys(("503", "connection", "malformed", "timeout"), 1)
    assert summary["requests"] == len(service.seen) == len(driver.latencies_s) + 4
    assert sum(row["failed"] for row in summary["by_second"]) == 4


def test_a_warm_up_is_not_counted() -> None:
    service, _, summary = run(seconds=0.2, rate=100, warmup_s=0.3)
    assert (summary["requests"], len(service.seen)) == (20, 50)


def test_load_runs_in_its_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    (body := tmp_path / "body").write_text("{}")
    with fake_service() as service:
        summary = measure(Load(service.url, (body,), seconds=0.2))
        assert summary["requests"] == len(service.seen) > 2
        assert service.seen[0].headers["authorization"] == "Bearer s3cret"
        assert service.seen[0].body == b"{}"
    with pytest.raises(RuntimeError, match="load generator failed"):
        measure(Load(unused_url(), seconds=0.1))
