"""The report of a sweep: importances, curves and the data of the page, without Ray."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.importance import MIN_TRIALS, Importance, importances
from loadmaster.platform.sweeps.records import Record
from loadmaster.platform.sweeps.report import build_report, curves_of, rewrite_report
from loadmaster.platform.sweeps.settings import Sweep

LoadSweep = Callable[[str], Sweep]
SPACE = """
space:
  training.learning_rate.last: {loguniform: [1e-4, 1e-1]}
  environment.gait: {choice: [walk, run]}
  training.epochs: {randint: [1, 3]}
  training.clip: {uniform: [0.1, 0.3]}
"""
RATE, GAIT, EPOCHS, CLIP = (
    "training.learning_rate.last",
    "environment.gait",
    "training.epochs",
    "training.clip",
)


def trials(count: int, value: Callable[[dict[str, Any], float], float]) -> list[Record]:
    """Finished trials at random settings, with a value of the settings and of noise."""
    random = np.random.default_rng(5)
    records = []
    for number in range(count):
        drawn = {
            RATE: float(10 ** random.uniform(-4, -1)),
            GAIT: str(random.choice(["walk", "run"])),
            EPOCHS: int(random.integers(1, 4)),
            CLIP: float(random.uniform(0.1, 0.3)),
        }
        found = value(drawn, float(random.normal()))
        records.append(Record(f"trial-{number + 1:03d}", drawn, 8, found, "finished", 2.0))
    return records


def by_name(found: list[Importance]) -> dict[str, Importance]:
    return {importance.name: importance for importance in found}


def best_inside(drawn: dict[str, Any], noise: float) -> float:
    """The best learning rate is inside the range, and running is better than walking."""
    return (math.log10(drawn[RATE]) + 2.5) ** 2 + (drawn[GAIT] == "walk") + 0.15 * noise


def test_importance_finds_the_settings_that_matter(load: LoadSweep) -> None:
    found, _ = importances(load(SPACE), trials(40, best_inside))
    shares = by_name(found)
    assert {name for name, share in shares.items() if share.evident} == {RATE, GAIT}
    assert shares[RATE].share + shares[GAIT].share > 0.7
    for share in shares.values():
        assert 0 <= share.low <= share.share <= share.high <= 1
    assert max(shares[name].share for name in (EPOCHS, CLIP)) < 0.15


def test_importance_of_noise_is_not_evident(load: LoadSweep) -> None:
    found, _ = importances(load(SPACE), trials(32, lambda drawn, noise: noise))
    assert len(found) == 4
    assert not any(share.evident for share in found)


def test_diverged_trials_count_as_the_worst(load: LoadSweep) -> None:
    def value(drawn: dict[str, Any], noise: float) -> float:
        return math.inf if drawn[RATE] > 1e-2 else noise

    found, _ = importances(load(SPACE), trials(30, value))
    assert by_name(found)[RATE].evident


@pytest.mark.parametrize(
    ("text", "count", "value"),
    [
        ("", MIN_TRIALS - 1, best_inside),
        ("scheduler: {pbt: {every_iterations: 10}}\n", 32, best_inside),
        ("", 32, lambda drawn, noise: 1.0),
    ],
)
def test_importance_that_cannot_be_told(
    text: str, count: int, value: Callable[[Any, float], float], load: LoadSweep
) -> None:
    found, note = importances(load(SPACE + text), trials(count, value))
    assert found == []
    assert note


def test_trials_that_failed_or_run_do_not_count(load: LoadSweep) -> None:
    records = trials(MIN_TRIALS, best_inside)
    assert importances(load(SPACE), records)[0]
    for state in ("failed", "hung", "running"):
        without = [*records[1:], Record("trial-001", records[0].parameters, 3, 1.0, state, 1.0)]
        assert importances(load(SPACE), without)[0] == []


def test_curves_repeat_no_iteration() -> None:
    frames = {
        "a": pd.DataFrame({"iteration": [2, 4, 4, 6], "validation": [3.0, 2.0, 2.5, None]}),
        "b": pd.DataFrame(),  # no report
        "c": pd.DataFrame({"iteration": range(1000), "validation": range(1000)}),
    }
    listed = [SimpleNamespace(trial_id=name, path=f"/tune/trial-{name}") for name in frames]
    curves = curves_of(SimpleNamespace(trials=listed, trial_dataframes=frames), "validation")
    assert curves["trial-a"] == ([2, 4], [3.0, 2.5])
    assert "trial-b" not in curves
    assert len(curves["trial-c"][0]) == 200


def page_data(sweep: Sweep, records: list[Record], curves: Any, folder: Path = Path()) -> Any:
    page = build_report(sweep, records, curves, folder)
    (data,) = re.findall(r'<script id="sweep-data" type="application/json">(.*?)</script>', page)
    return json.loads(data)


def test_page_has_settings_results_and_the_command(load: LoadSweep) -> None:
    sweep = load(f"{SPACE}scheduler: {{asha: {{grace_iterations: 10, reduction: 2}}}}\n")
    drawn = {RATE: 1e-3, GAIT: "run", EPOCHS: 2, CLIP: 0.2}
    records = [
        Record("trial-001", drawn, 80, 1.5, "finished", 60.0),
        Record("trial-002", drawn, 10, math.inf, "diverged", 5.0),
        Record("trial-003", drawn, 0, None, "failed", 0.0, "</script><b>bad"),
    ]
    data = page_data(sweep, records, {"trial-001": ([10, 20], [2.0, math.nan])}, Path("sweeps/x"))
    axes = {axis["name"]: axis for axis in data["parameters"]}
    log = {"name": RATE, "short": "learning_rate.last", "log": True, "low": 1e-4, "high": 1e-1}
    assert axes[RATE] == log
    assert axes[GAIT]["categories"] == ["walk", "run"]
    assert axes[EPOCHS]["categories"] == ["1", "2", "3"]
    assert axes[CLIP]["log"] is False
    first, second, third = data["trials"]
    assert dict(zip(axes, first["drawn"], strict=True)) == {**drawn, GAIT: 1, EPOCHS: 1}
    assert dict(zip(axes, first["settings"], strict=True)) == {
        RATE: "0.001", GAIT: "run", EPOCHS: "2", CLIP: "0.2",
    }  # fmt: skip
    assert first["curve"] == [[10, 2.0], [20, None]]
    assert (second["value"], third["value"], third["fault"]) == (None, None, "</script><b>bad")
    assert data["best"] == 0
    assert data["command"] == "loadmaster train example --config sweeps/x/best.yaml"
    assert data["rungs"][:3] == [10, 20, 40]


def test_page_without_a_result(load: LoadSweep) -> None:
    drawn = trials(1, best_inside)[0].parameters
    data = page_data(load(SPACE), [Record("trial-001", drawn, 0, None, "waiting", 0.0)], {})
    assert (data["best"], data["command"]) == (None, None)


def test_report_of_a_sweep_without_trials(load: LoadSweep, tmp_path: Path) -> None:
    sweep = load(SPACE)
    folder = SweepFolder.create(tmp_path / "out", sweep, {})
    with pytest.raises(InputError):
        rewrite_report(folder, sweep)
