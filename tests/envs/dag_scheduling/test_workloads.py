"""The toy workload, and the import of TPC-H profiles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload, tpch
from loadmaster.envs.dag_scheduling.workloads.tpch_plans import stage_memory
from loadmaster.envs.errors import InputError
from tests.traces import needs_traces


def load(name: str, data: Path | None = None) -> Workload:
    return load_workload(DagSchedulingSettings(workload=name, data=data))


def test_toy_equals_its_table() -> None:
    toy = load("toy")
    assert toy.job_names == ("single", "chain", "diamond")
    assert toy.bank.work_ms.tolist() == [4000, 6000, 10000]
    assert toy.bank.first_stage.tolist() == [0, 1, 4, 8]
    assert toy.bank.critical_ms[[0, 1, 4]].tolist() == [1000, 4000, 4000]
    assert toy.bank.tasks.tolist() == [4, 2, 1, 2, 1, 2, 4, 1]
    assert not toy.bank.cold_start.any()  # no warm-up is ever added
    assert (toy.bank.wave_count == 1).all()
    assert toy.bank.parent_first.tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 6]
    assert toy.bank.parent.tolist() == [0, 1, 0, 0, 1, 2]
    assert toy.stages_max == 4


def test_stage_memory_is_uniform_and_deterministic() -> None:
    demands = np.array([stage_memory(f"job-{j}", s) for j in range(100) for s in range(10)])
    assert demands.min() > 0
    assert demands.max() <= 1
    assert abs(demands.mean() - 0.5) < 0.03
    # Pinned: another value would change multi-resource results.
    assert stage_memory("tpch-2g-q1", 0) == pytest.approx(0.248823088593781, abs=1e-12)


# Two stages whose profiles need every rule of the import.
STAGE_0 = {
    # 2 + 1 = 3 tasks at the first level
    "first_wave": {2: [40, 50], 5: [100, 100, 30], 10: [200, 210, 220]},
    "rest_wave": {2: [60], 5: [], 10: []},
    "fresh_durations": {2: [], 5: [100], 10: [200, 210, 220]},
}
STAGE_1: dict[str, dict[int, list[int]]] = {
    "first_wave": {2: [7], 5: [9], 10: [8]},
    "rest_wave": {2: [], 5: [], 10: []},
    "fresh_durations": {2: [7], 5: [9], 10: []},
}


BOTH = {0: STAGE_0, 1: STAGE_1}


def save_query(root: Path, gb: int, query: int, adjacency: Any, profile: Any) -> None:
    folder = root / "tpch" / f"{gb}g"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"adj_mat_{query}.npy", np.asarray(adjacency, float))
    np.save(folder / f"task_duration_{query}.npy", np.array(profile), allow_pickle=True)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """A folder of 154 small queries."""
    for gb in tpch.SIZES_GB:
        for query in tpch.QUERIES:
            save_query(tmp_path, gb, query, [[0, 1], [0, 0]], BOTH)
    return tmp_path


def test_tpch_profiles_follow_the_published_rules(profiles: Path) -> None:
    workload = load("tpch", profiles)
    bank = workload.bank
    assert workload.job_names[:2] == ("tpch-2g-q1", "tpch-2g-q2")
    assert workload.job_names[22] == "tpch-5g-q1"
    assert workload.job_names[-1] == "tpch-100g-q22"
    assert bank.levels.tolist() == [5, 10, 20, 40, 50, 60, 80, 100]
    assert bank.tasks[:2].tolist() == [3, 1]
    assert bank.parent_first[:3].tolist() == [0, 0, 1]
    assert bank.parent[0] == 0

    def lists(stage: int, wave: int) -> list[list[int]]:
        return [
            sorted(bank.durations_ms[start : start + count].tolist())
            for start, count in zip(
                bank.wave_first[stage, wave], bank.wave_count[stage, wave], strict=True
            )
        ]

    # At 5 one of the two 100s was a fresh executor's. At 10 all were, so 5's list serves; and 10
    # is the largest level measured, so it serves for all above.
    assert lists(0, FIRST) == [[30, 100]] * 8
    assert lists(0, FRESH) == [[100]] + [[200, 210, 220]] * 7
    assert lists(0, REST) == lists(0, FIRST)  # there is no rest wave
    assert bank.cold_start[0].tolist() == [0] * 8
    # Nothing is left at 2 and at 5 once the fresh tasks are out: the fresh list serves.
    assert lists(1, FIRST) == [[9]] + [[8]] * 7
    assert bank.cold_start[1].tolist() == [0] + [1] * 7
    # Means are over every level, 2 too, after the cleaning.
    first, rest, fresh = [40, 50, 30, 100, 30, 100], [60], [100, 200, 210, 220]
    assert bank.mean_ms[0] == pytest.approx(np.mean(first + rest + fresh))
    assert bank.mean_ms[1] == pytest.approx(np.mean([8, 7, 9]))


def test_folder_may_be_tpch_itself_or_come_from_the_environment(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load("tpch", profiles)
    assert load("tpch", profiles / "tpch") is whole  # read once a process
    monkeypatch.setenv("LOADMASTER_DATA", str(profiles))
    assert load("tpch") is whole


def test_missing_or_wrong_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    for name in ("tpch", "alibaba"):
        with pytest.raises(InputError, match="--set data=FOLDER"):
            load(name)
    with pytest.raises(InputError, match=r"data: no file or folder .*nowhere"):
        load("tpch", tmp_path / "nowhere")
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"LOADMASTER_DATA: no file or folder .*nowhere"):
        load("tpch")
    with pytest.raises(InputError, match="holds no TPC-H profiles"):
        load("tpch", tmp_path)


def first_wave(durations: Any) -> dict[str, Any]:
    return STAGE_1 | {"first_wave": durations}


@pytest.mark.parametrize(
    ("adjacency", "profile", "problem"),
    [
        ([[0, 1]], BOTH, r"adj_mat_7.npy: adjacency of shape \(1, 2\)"),
        ([0, 1], BOTH, "expected a square matrix"),
        ([[0, 2], [0, 0]], BOTH, "other entries than 0 and 1"),
        ([[0, 1], [1, 0]], BOTH, "'tpch-20g-q7' is cyclic"),
        ([[1, 0], [0, 0]], BOTH, "'tpch-20g-q7' is cyclic"),
        ([[0]], BOTH, "has 2 stage profiles; expected 1"),
        ([[0]], {1: STAGE_1}, "task_duration_7.npy: expected a dict of stage profiles"),
        ([[0]], [1, 2], "task_duration_7.npy"),
        ([[0]], {0: {"first_wave": {5: [1]}}}, "stage 0 has no rest_wave"),
        ([[0]], {0: STAGE_1 | {"rest_wave": {2: []}}}, "expected the same"),
        ([[0]], {0: first_wave({2: ["7"], 5: [9], 10: [8]})}, "lists of durations in ms"),
        ([[0]], {0: first_wave({"2": [7], 5: [9], 10: [8]})}, "lists of durations in ms"),
        ([[0]], {0: first_wave({2: [], 5: [9], 10: [8]})}, "'tpch-20g-q7': stage 0 has 0 tasks"),
        ([[0]], {0: first_wave({2: [7], 5: [-9], 10: [8]})}, "a task duration of -9 ms"),
    ],
)
def test_malformed_profiles_are_refused_in_one_line(
    profiles: Path, adjacency: Any, profile: Any, problem: str
) -> None:
    save_query(profiles, 20, 7, adjacency, profile)
    with pytest.raises(InputError, match=problem) as refusal:
        load("tpch", profiles)
    assert "\n" not in str(refusal.value)


def test_missing_and_truncated_files_are_named(profiles: Path) -> None:
    path = profiles / "tpch" / "50g" / "task_duration_3.npy"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"50g.task_duration_3\.npy: its pickle is truncated"):
        load("tpch", profiles)
    path.unlink()
    with pytest.raises(InputError, match=r"50g.task_duration_3\.npy: cannot be read"):
        load("tpch", profiles)


@needs_traces
def test_real_profiles_have_their_published_statistics() -> None:
    bank = load("tpch").bank
    stages = np.diff(bank.first_stage)
    assert len(stages) == 154
    assert round(stages.mean(), 2) == 9.18
    assert (stages.min(), stages.max()) == (2, 18)
    tasks = np.add.reduceat(bank.tasks, bank.first_stage[:-1]).reshape(7, 22).mean(axis=1)
    assert round(tasks[0]) == 912
    assert round(tasks[-1]) == 1575
    assert (np.diff(tasks) > 0).all()
    # Mean duration by the original simulator's rule, which leaves fresh tasks out of first waves.
    assert bank.work_ms.mean() / 1000 == pytest.approx(888.8, abs=0.1)


@needs_traces
def test_real_profiles_have_their_published_work() -> None:
    # The published figures use every list as measured, with fresh tasks counted twice.
    root = Path(os.environ["LOADMASTER_DATA"])
    folder = root / "tpch" if (root / "tpch").is_dir() else root
    work_s = []
    for gb in tpch.SIZES_GB:
        for query in tpch.QUERIES:
            total = 0.0
            for waves in tpch.read_profiles(folder / f"{gb}g" / f"task_duration_{query}.npy"):
                first, rest, _ = waves
                level = next(iter(first))
                everything = [d for wave in waves for ds in wave.values() for d in ds]
                total += (len(first[level]) + len(rest[level])) * float(np.mean(everything))
            work_s.append(total / 1000)
    by_size = np.array(work_s).reshape(7, 22).mean(axis=1)
    assert round(by_size[0]) == 203
    assert round(by_size[-1]) == 2209
    assert round(float(np.mean(work_s))) == 935
    heaviest = np.sort(work_s)[::-1][:35]
    assert heaviest.sum() / np.sum(work_s) == pytest.approx(0.60, abs=0.01)
