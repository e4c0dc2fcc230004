"""The benchmark of shifts: what they change, the detector's hours, and the figures."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.platform.bench.shifts import ShiftEffort, measure
from loadmaster.platform.systems.aware.shift_bench import (
    STEADY_TABLE,
    TABLE,
    Condition,
    Monitored,
    ShiftResult,
    ShiftRow,
    SteadyRow,
    shift_kinds,
)
from tests.models.aware.parts import policy_of
from tests.platform.cli.one_line import Cli

TINY = ShiftEffort(
    applications=1, before=3, steady=10, shifted=2, known=1, recovery=2, judged=1, steps=12
)
KINDS = ("payload", "load-low", "load-high", "application")


def test_shifts_change_what_they_say() -> None:
    for kind in shift_kinds(3):
        before = PodScalingSettings(application="test:3").model_copy(update={"load": kind.load})
        after = before.model_copy(update=kind.changes)
        changed = {name for name in kind.changes if getattr(before, name) != getattr(after, name)}
        assert changed == set(kind.changes)
    assert tuple(kind.name for kind in shift_kinds(3)) == KINDS
    assert shift_kinds(3)[-1].changes == {"application": "test:103"}
    assert shift_kinds(150)[-1].changes == {"application": "test:50"}


def test_detector_gets_the_hour_of_the_load() -> None:
    settings, found = PodScalingSettings(application="sleep", steps=3), Monitored.new(policy_of())
    condition = Condition.of(settings)
    reward, time = condition.run(found.found, 5)
    rng = np.random.default_rng(5)
    rng.integers(1)
    _, minute = build_setup(settings).load.draw(8, rng)
    assert time == 60 * minute
    assert reward > 0


def test_fall_is_reported_once_and_copies_are_apart() -> None:
    condition = Condition.of(PodScalingSettings(application="sleep", steps=3))
    found = Monitored.new(policy_of())
    for seed in range(20):
        assert not found.run_episode(condition, seed)
    other = found.copy()
    level = found.rewards[-1]
    other.detector.coefficients = [2 * level, 0.0, 0.0, 0.0, 0.0]
    other.detector.squares = 20 * (0.05 * level) ** 2
    assert any(other.run_episode(condition, seed) for seed in range(20, 30))
    assert (other.alarms, found.alarms) == (1, 0)
    assert (len(other.rewards), len(found.rewards)) > (20, 20)
    assert len(found.rewards) == 20


def row(shift: str, fall: float, noticed: float, aware: int, tl: int) -> ShiftRow:
    return ShiftRow(0, shift, 1.5, 1.2, fall, noticed, 1.4, aware, tl, 5.0, 9.0)


def test_figures_by_hand() -> None:
    rows = [
        row("payload", 20, 2, 1, 3),
        row("payload", 12, 9, 1, 5),
        row("payload", 5, float("inf"), 2, 4),
        row("load-low", 1, float("inf"), 1, 1),
    ]
    steady = [SteadyRow(0, "high", 400, 1.5, 0.02, 1), SteadyRow(0, "low", 600, 1.2, 0.02, 0)]
    figures = ShiftResult(rows, steady).figures()
    found = {figure.name.removeprefix("aware/shifts/"): figure.value for figure in figures}
    assert found["payload/noticed_after"] == 5.5, "falls of 10% and more"
    assert found["payload/large_falls"] == pytest.approx(200 / 3)
    assert "load-low/noticed_after" not in found
    assert found["payload/tl/episodes"] == 4
    assert found["episodes_tl_over_aware"] == pytest.approx(13 / 5)
    assert found["false_alarms"] == 1


def test_all_of_it_is_measured(tmp_path: Path) -> None:
    steps: list[str] = []
    found = {figure.name: figure for figure in measure(steps.append, "aware", TINY, tmp_path)}
    for kind in KINDS:
        assert found[f"aware/shifts/{kind}/fall"].unit == "% of reward"
        for policy in ("aware", "tl"):
            assert 1 <= found[f"aware/shifts/{kind}/{policy}/episodes"].value <= 3
    assert found["aware/shifts/steady_episodes"].value == 10
    assert found["aware/shifts/load-low/fall"].value > found["aware/shifts/load-high/fall"].value
    table = pd.read_csv(tmp_path / TABLE)
    assert tuple(table["shift"]) == KINDS
    assert (table.converged_reward > 0).all()
    assert list(pd.read_csv(tmp_path / STEADY_TABLE).load) == ["high", "low"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shifts das", "unknown system 'das'"),
        ("shifts aware --applications 201", "--applications is 201; expected 1 to 200"),
        ("shifts aware --policy tl=x", "takes no --policy"),
        ("serve --bounds 2", "takes no --bounds"),
    ],
)
def test_bad_input_is_one_line(line: str, words: str, cli: Cli) -> None:
    assert words in cli.error(f"bench {line}")
