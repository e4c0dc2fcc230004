"""What a soak's figures mean: failures, memory that grows, the files."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.platform.bench import soak
from loadmaster.platform.bench.soak import Second

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
