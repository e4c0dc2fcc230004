"""What a soak's figures mean: failures, memory that grows, the files."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from loadmaster.platform.bench.soak import Sample, Second, Soak, seconds_of
from loadmaster.platform.bench.soak_report import (
    CHART,
    SUMMARY,
    TABLE,
    growth,
    soak_result,
    write_soak,
)
from loadmaster.platform.cli.main import main

GROWS = {"warms up, then is flat": False, "saw teeth": False, "leaks": True, "one jump": True}


def memory(kind: str, second: int) -> float:
    """MB of a process in a run of 600 seconds."""
    if kind == "warms up, then is flat":
        return 500 + min(second, 200) * 0.5
    if kind == "saw teeth":
        return 500 + second % 23 * 2.0
    if kind == "leaks":
        return 500 + second * 0.1
    return 500.0 if second < 400 else 520.0


def soak(kind: str = "saw teeth", failed: int = 0, seconds: int = 600) -> Soak:
    rows = [
        Second(second, system, 100, failed if second == 300 else 0, 2.0, 9.0, 1.0, 300.0, mb)
        for second in range(seconds)
        for system, mb in (("das", 400.0), ("decima", memory(kind, second)))
    ]
    report = {"requests": 100 * seconds, "failed": {"503": failed} if failed else {}}
    return Soak(rows, {"das": report, "decima": report}, {"das": 400.0, "decima": 800.0})


@pytest.mark.parametrize(("kind", "grows"), GROWS.items())
def test_growth_is_distinguished_from_variation(kind: str, grows: bool) -> None:
    found = growth("decima", [memory(kind, second) for second in range(600)])
    assert found.is_flat is not grows
    result = soak_result(soak(kind))
    assert result.holds is not grows
    assert ("memory grows" in result.line) is grows


def test_growth_per_hour() -> None:
    found = growth("x", [100 + second / 36 for second in range(600)])
    assert found.mb_per_hour == pytest.approx(100, rel=0.02)


def test_missing_samples() -> None:
    seen = [None if second % 50 == 0 else 100.0 for second in range(600)]
    assert growth("x", seen).is_flat
    never = growth("x", [None] * 600)
    assert math.isnan(never.late_mb)
    assert not never.is_flat, "what was never seen is not known to be flat"


def test_one_failed_request_fails_the_soak() -> None:
    result = soak_result(soak(failed=1))
    assert not result.holds
    assert result.line.startswith("does not hold: 2 of 120,000 requests failed, 100.0% decided")


def test_files(tmp_path: Path) -> None:
    made = soak(failed=3)
    write_soak(made, soak_result(made), "Soaked", tmp_path / "new" / "folder")
    with (tmp_path / "new" / "folder" / TABLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1200
    assert rows[0] == {
        "second": "0", "system": "das", "requests": "100", "failed": "0", "p50_ms": "2.0",
        "p99_ms": "9.0", "by_policy": "1.0", "gateway_mb": "300.0", "worker_mb": "400.0",
    }  # fmt: skip
    summary = json.loads((tmp_path / "new" / "folder" / SUMMARY).read_text())
    assert summary["holds"] is False
    assert summary["failed"] == 6
    assert summary["systems"]["decima"]["peak_requests_per_s"] == 800
    assert (tmp_path / "new" / "folder" / CHART).read_bytes().startswith(b"\x89PNG")


def test_seconds_are_joined_with_their_samples(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "second,answers,failed,p50_ms,p99_ms,max_ms\n0,9,1,1.5,2.5,3\n1,0,0,,,\n2,5,0,1,1,1\n"
    )
    samples = [
        Sample({"gateway": 10.0, "toy": 20.0}, {"toy": (100, 100)}),
        Sample({"gateway": 11.0, "toy": 21.0}, {"toy": (110, 105)}),
        Sample({"gateway": 12.0}, {}),
    ]
    assert list(seconds_of("toy", table, samples)) == [
        Second(0, "toy", 10, 1, 1.5, 2.5, 0.5, 11.0, 21.0),
        Second(1, "toy", 0, 0, None, None, None, 12.0, None),
        Second(2, "toy", 5, 0, 1.0, 1.0, None, 12.0, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--minutes", "0"], "--minutes is 0; expected more than 0, 1,440 at most"),
        (["--minutes", "nan"], "--minutes is nan; expected more than 0, 1,440 at most"),
        (["--output", "/dev/null/x"], "cannot write to --output '/dev/null/x'"),
        (["--workers", "2"], "soak takes no --workers; expected it with `bench scaling` only"),
        (["decima"], "soak takes no system; expected `loadmaster bench rollouts decima`"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "soak", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}")
    assert error.count("\n") == 1
