"""Tuned rules of GPU scheduling: what is tried, what is kept, and which entry an episode uses."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, PARAMETERS, SPEED_PRICE
from loadmaster.envs.gpu_scheduling.calibration import (
    BATCH_LOAD,
    SHIPPED_PATH,
    Calibration,
    load_of,
    tuned_baseline,
)
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.tuning import SPACES, TUNING, prepare
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.evaluation.calibration import FIRST_SEED, calibrate

SHORT = GpuSchedulingSettings(jobs=40)
ENTRY: dict[str, Any] = {
    "baseline": "las-speed-price", "workload": "pai-like", "load": 1.2, "gpus": 32,
    "parameters": {"price": 0.5}, "jct_s": 1.0, "fee": 1.0, "first_seed": 1_000_000, "seeds": 8,
}  # fmt: skip


def kept_in(folder: Path, *changes: Mapping[str, Any]) -> Path:
    path = folder / "kept.json"
    path.write_text(json.dumps([{**ENTRY, **change} for change in changes]))
    return path


def tuned_price(path: Path, **values: Any) -> float:
    settings = GpuSchedulingSettings(calibration=path, **values)
    return tuned_baseline(ENTRY["baseline"], settings, load_workload(settings)).parameters["price"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fifo-speed-price", "tiresias-consolidate", "themis-speed-price"])
def test_tuned_rule_is_no_worse_on_the_seeds_it_was_tuned_on(name: str, tmp_path: Path) -> None:
    best, scored = calibrate(name, prepare(SHORT), 4, 1)
    assert isinstance(best, Calibration)
    path = tmp_path / "kept.json"
    path.write_text(json.dumps([vars(best)]))
    seeds = range(FIRST_SEED, FIRST_SEED + 4)
    after = SHORT.model_copy(update={"calibration": path})
    results = [run_episode(name, after, seed) for seed in seeds]
    assert np.mean([result.mean_jct_s for result in results]) == pytest.approx(scored[0][0])
    assert best.jct_s == pytest.approx(scored[0][0], abs=0.01)
    assert best.fee == pytest.approx(np.mean([result.fee.mean() for result in results]), abs=1e-3)
    published = [jct_s for jct_s, baseline in scored if baseline == BASELINES[name]]
    assert scored[0][0] <= min(published)


def test_rules_with_parameters_are_tunable_within_known_values() -> None:
    placed = {name for name, rule in BASELINES.items() if rule.placement == SPEED_PRICE}
    assert set(TUNING.tunable) == {*placed, "tiresias-consolidate"}
    for name, space in SPACES.items():
        assert {*space.grid} <= {*space.moves} <= {*PARAMETERS}
        assert all(list(values) == sorted(values) for values in space.moves.values())
        tried = space.candidates(BASELINES[name])
        assert len({tuple(one.values) for one in tried}) == len(tried)
        moved = [move(tried[0]) for move in space.steps()]
        assert all(one is None or one.values != tried[0].values for one in moved)


def test_episode_uses_the_nearest_entry(tmp_path: Path) -> None:
    path = kept_in(
        tmp_path,
        {},
        {"load": 0.5, "parameters": {"price": 0.1}},
        {"load": 0.5, "gpus": 128, "parameters": {"price": 0.2}},
        {"workload": "toy", "parameters": {"price": 0.3}},
        {"baseline": "fifo-speed-price", "load": 0.5, "gpus": 128, "parameters": {"price": 0.9}},
    )
    assert tuned_price(path) == 0.5
    assert tuned_price(path, load=0.4) == 0.1
    assert tuned_price(path, cluster="medium") == 0.2
    assert tuned_price(path, workload="toy", load=0.4) == 0.3
    assert tuned_price(path, arrivals="batch") == 0.5


def test_load_is_that_of_the_settings() -> None:
    for settings, load in (
        (GpuSchedulingSettings(load=0.3), 0.3),
        (GpuSchedulingSettings(cluster="large"), 0.7),
        (GpuSchedulingSettings(arrivals="batch"), BATCH_LOAD),
    ):
        found = load_of(settings, load_workload(settings), build_cluster(settings))
        assert found == pytest.approx(load)


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"prise": 1}}, {"parameters": {"price": -1}}, {"baseline": "las"},
        {"load": 0}, {"gpus": 0}, {"parameters": {"price": float("nan")}},
    ],
)  # fmt: skip
def test_entries_that_no_calibration_writes_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="malformed"):
        tuned_price(kept_in(tmp_path, change))


def test_shipped_entries_cover_the_named_clusters() -> None:
    entries = [Calibration(**entry) for entry in json.loads(SHIPPED_PATH.read_text())]
    known = {(entry.baseline, entry.gpus) for entry in entries if entry.workload == "pai-like"}
    names = {BASELINES[name].tuned_as or name for name in TUNING.tunable}
    assert known >= {(name, gpus) for name in names for gpus in (32, 128, 1024)}
    assert all(entry.first_seed == FIRST_SEED for entry in entries)
