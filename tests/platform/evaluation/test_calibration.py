"""Calibration of heuristics and the `calibrate` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.dag_scheduling import calibration as tuned
from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.platform.evaluation import calibration
from tests.platform.cli.one_line import Cli

pytestmark = pytest.mark.slow
SMALL = "dag_scheduling --set jobs=4 --set executors=10"
TUNED = f"calibrate {SMALL} --seeds 4 --policy weighted-fair"


def tuned_baseline(name: str = "weighted-fair", **settings: Any) -> Baseline:
    made = DagSchedulingSettings(**settings)
    return tuned.tuned_baseline(name, made, load_workload(made))


def test_best_is_the_cheapest_of_the_finalists() -> None:
    settings, ran = DagSchedulingSettings(jobs=4, executors=10), []
    best, scored = calibration.calibrate(
        "weighted-fair", settings, load_workload(settings), 4, 2, lambda: ran.append(1)
    )
    assert len(ran) == calibration.episodes_needed("weighted-fair", 4)
    assert best.cost == pytest.approx(min(cost for cost, _ in scored), abs=1e-3)
    assert best.alpha == scored[0][1].alpha
    assert len(scored) == 21  # a quarter of alpha = -2, -1.9 .. 2, executors kept or released
    assert best.first_seed >= 1_000_000  # no evaluation counts that far


def test_evaluate_uses_the_result_of_calibrate(tmp_path: Path, cli: Cli) -> None:
    kept = tmp_path / "kept.json"
    (found,) = cli.json(f"{TUNED} --output {kept}")["calibrations"]
    assert json.loads(kept.read_text()) == [found]
    assert tuned_baseline(jobs=4, executors=10, calibration=kept).alpha == found["alpha"]
    record = cli.json(
        f"evaluate {SMALL} --against weighted-fair --seeds 2 --set calibration={kept} "
        f"--output {tmp_path / 'results'}"
    )
    words = record["parameters"]["weighted-fair"]
    assert words.startswith(f"alpha {found['alpha']:g}")
    assert words.endswith("released") == found["release"]


def test_second_run_replaces_the_entry_of_the_same_setting(tmp_path: Path, cli: Cli) -> None:
    kept = tmp_path / "kept.json"
    for extra in ("", "", "--set arrivals=poisson"):
        tuned.read_calibrations.cache_clear()
        cli(f"{TUNED} {extra} --output {kept}")
    entries = json.loads(kept.read_text())
    assert [entry["arrivals"] for entry in entries] == ["batch", "poisson"]


def test_nearest_load_is_used() -> None:
    wanted = ("weighted-fair", "poisson", "tpch-like")
    entries = tuned.read_calibrations(tuned.SHIPPED_PATH)
    streams = [e for e in entries if (e.baseline, e.arrivals, e.workload) == wanted]
    assert len({e.load for e in streams}) >= 3  # shipped for three loads
    for entry in streams:
        assert tuned_baseline(arrivals="poisson", load=entry.load * 1.02).alpha == entry.alpha


def test_untuned_baselines_are_unchanged() -> None:
    assert tuned_baseline("fair") is BASELINES["fair"]


def test_bad_calibration_files_raise(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('[{"alpha": 1}]')
    for name, words in (("bad.json", "malformed"), ("none.json", "No such file")):
        with pytest.raises(InputError, match=words):
            tuned_baseline(calibration=tmp_path / name)


def test_unknown_or_untunable_baseline_is_one_line(cli: Cli) -> None:
    assert "fair" in cli.error("calibrate dag_scheduling --policy fair")
