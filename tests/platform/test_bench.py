"""The benchmark command: its shape, and that its figures are measured, not remembered."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from loadmaster.platform.bench import simulators
from loadmaster.platform.bench.results import Figure
from loadmaster.platform.cli.main import main


def test_json_has_the_stable_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(say: object) -> Iterator[Figure]:
        yield from simulators._episode_speed("dag_scheduling", "tpch-like", "fair")

    monkeypatch.setattr(simulators, "measure", some)
    monkeypatch.setattr(simulators, "EPISODES", 1)
    assert main(["bench", "simulators", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    names = [result["name"] for result in results]
    assert names == ["dag_scheduling/fair/decisions_per_s", "dag_scheduling/fair/tasks_per_s"]
    assert all({"name", "value", "unit", "peer"} <= set(result) for result in results)
    # One episode has some 70 tasks a decision, so the two speeds must differ that much.
    assert results[1]["value"] / results[0]["value"] == pytest.approx(70, rel=0.3)


def test_ratio_says_how_many_times_better() -> None:
    assert Figure("speed", 200, "1/s", peer=50).ratio == 4
    assert Figure("time", 2, "s", peer=50, higher_is_better=False).ratio == 25
    assert Figure("alone", 2, "s").ratio is None


def test_a_program_of_its_own_is_run_and_read() -> None:
    assert simulators._in_fresh_process("print(3.5)") == 3.5


def test_unknown_group_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simulator"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown benchmark 'simulator'; did you mean 'simulators'?\n"
    )
