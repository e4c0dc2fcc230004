"""The load generator: counts and waits; a soak: failures, memory that grows, the files."""

import csv
import dataclasses
import itertools
import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadmaster.platform.bench import soak
from loadmaster.platform.bench.http_load import Driver, Load, drive, measure, percentile_ms, report
from loadmaster.platform.bench.soak import Second
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
        talk.over.wait(20)
        return False

    service, driver, summary = run(
        answer({"error": "no"}, 503),
        answer(),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"),
        raw(b"nonsense\r\n\r\n"),
        stuck,
        answer(Connection="close"),
        answer(),
        seconds=2.5,
        timeout_s=2.0,  # no other answer takes so long on a busy machine
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


MEMORY: dict[str, Callable[[int], float]] = {  # MB of a process by second
    "warms up, then is flat": lambda second: 500 + min(second, 200) * 0.5,
    "saw teeth": lambda second: 500 + second % 23 * 2.0,
    "leaks": lambda second: 500 + second * 0.1,
    "one jump": lambda second: 500.0 if second < 400 else 520.0,
}


def soaked(kind: str = "saw teeth", failed: int = 0) -> soak.Soak:
    rows = [
        Second(second, system, 100, failed if second == 300 else 0, 2.0, 9.0, 1.0, 300.0, mb)
        for second in range(600)
        for system, mb in (("das", 400.0), ("decima", MEMORY[kind](second)))
    ]
    report = {"requests": 60_000, "failed": {"503": failed} if failed else {}}
    return soak.Soak(rows, {"das": report, "decima": report}, {"das": 400.0, "decima": 800.0})


@pytest.mark.parametrize("kind", MEMORY)
def test_growth_is_distinguished_from_variation(kind: str) -> None:
    grows = kind in ("leaks", "one jump")
    found = soak.growth("decima", [MEMORY[kind](second) for second in range(600)])
    assert found.is_flat is not grows
    result = soak.soak_result(soaked(kind))
    assert result.holds is not grows
    assert ("memory grows" in result.line) is grows
    if kind == "leaks":
        assert found.mb_per_hour == pytest.approx(360, rel=0.02)


def test_missing_samples() -> None:
    seen = [None if second % 50 == 0 else 100.0 for second in range(600)]
    assert soak.growth("x", seen).is_flat
    never = soak.growth("x", [None] * 600)
    assert math.isnan(never.late_mb)
    assert not never.is_flat, "what was never seen is not known to be flat"


def test_one_failed_request_fails_the_soak() -> None:
    result = soak.soak_result(soaked(failed=1))
    assert not result.holds
    assert result.line.startswith("does not hold: 2 of 120,000 requests failed, 100.0% decided")


def test_table_summary_and_chart_are_written(tmp_path: Path) -> None:
    result = soak.write_soak(soaked(failed=3), "Soaked", tmp_path / "new" / "folder")
    table, summary, chart = (tmp_path / "new" / "folder" / name for name in soak.FILES)
    header, first, *others = csv.reader(table.read_text().splitlines())
    assert header == [field.name for field in dataclasses.fields(Second)]
    assert first == ["0", "das", "100", "0", "2.0", "9.0", "1.0", "300.0", "400.0"]
    assert len(others) == 1199
    record = json.loads(summary.read_text())
    assert (record["holds"], record["failed"], result.failed) == (False, 6, 6)
    assert record["systems"]["decima"]["peak_requests_per_s"] == 800
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_seconds_are_joined_with_their_samples() -> None:
    rows = [
        {"answers": answers, "failed": failed, "p50_ms": p50_ms, "p99_ms": p50_ms}
        for answers, failed, p50_ms in ((9, 1, 1.5), (0, 0, None), (5, 0, 1.0))
    ]
    samples = [
        soak.Sample({"gateway": 10.0, "toy": 20.0}, {"toy": (100, 100)}),
        soak.Sample({"gateway": 11.0, "toy": 21.0}, {"toy": (110, 105)}),
        soak.Sample({"gateway": 12.0}, {}),
    ]
    assert list(soak.seconds_of("toy", rows, samples)) == [
        Second(0, "toy", 10, 1, 1.5, 1.5, 0.5, 11.0, 21.0),
        Second(1, "toy", 0, 0, None, None, None, 12.0, None),
        Second(2, "toy", 5, 0, 1.0, 1.0, None, 12.0, None),
    ]
