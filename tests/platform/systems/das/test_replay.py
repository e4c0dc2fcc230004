"""The replay of GPU scheduling: bars, decision trace, page, picture and command."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.episode import PlacementTrace, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.platform.replay.adapters import Unit, summary_line
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das import replay as gpu
from loadmaster.platform.systems.das.replay import assign_gpu_rows, pack_bars
from tests.bundles import make_bundle
from tests.models.das.builders import NETWORK
from tests.platform.cli.one_line import Cli
from tests.platform.systems.das.traces import ENVIRONMENT, SMALL, recorded, traced_steps
from tests.platform.systems.decima.test_replay import data_in, numbers_in

pytestmark = pytest.mark.slow


def tables(gpus: int, asked: list[tuple[int, int]]) -> tuple[Cluster, Jobs]:
    """One machine, and jobs of (instances, percent of a GPU)."""
    machine = {"count": 1, "gpus": gpus, "gpu": "V100", "cpus": 64}
    cluster = build_cluster(GpuSchedulingSettings.model_validate({"machines": [machine]}))
    instances, percent = np.array(asked, np.int64).T
    none, zeros = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
    jobs = Jobs(none, none, instances, percent, zeros, zeros, none, zeros, np.arange(len(asked)))
    return cluster, jobs


def trace(*rows: tuple[int, int, float, float]) -> PlacementTrace:
    """Of one machine: job, instances, start, end."""
    job, instances, start_s, end_s = np.array(rows).T
    whole = np.int64
    machine = np.zeros(len(rows), whole)
    return PlacementTrace(job.astype(whole), machine, instances.astype(whole), start_s, end_s)


THREE = [(0, 1, 0, 9), (1, 1, 1, 9), (2, 1, 2, 9)]  # rows of three jobs, one after the other


@pytest.mark.parametrize(
    ("gpus", "jobs", "rows", "expected"),
    [
        # Whole GPUs are adjacent; the larger request is assigned first.
        (4, [(2, 100), (1, 200)], [(0, 2, 0, 5), (1, 1, 0, 9)], [[(200, 200)], [(0, 200)]]),
        # Jobs that share GPUs fill one of them.
        (2, [(1, 50), (1, 50), (1, 100)], THREE, [[(0, 50)], [(50, 50)], [(100, 100)]]),
        # Three times 60% fit in the pool of two GPUs, although no GPU holds two of them.
        (2, [(1, 60)] * 3, THREE, [[(0, 60)], [(100, 60)], [(60, 40), (160, 20)]]),
    ],
    ids=["whole", "shared", "split"],
)
def test_gpus_of_bars_by_hand(
    gpus: int,
    jobs: list[tuple[int, int]],
    rows: list[tuple[int, int, float, float]],
    expected: list[list[tuple[int, int]]],
) -> None:
    """First unit and height of each job's pieces."""
    bars = assign_gpu_rows(trace(*rows), *tables(gpus, jobs))
    for job, pieces in enumerate(expected):
        own = bars.job == job
        assert list(zip(bars.first[own], bars.height[own], strict=True)) == pieces


def test_rows_without_duration_have_no_bar() -> None:
    cluster, jobs = tables(1, [(1, 100), (1, 100)])
    assert assign_gpu_rows(trace((0, 1, 3, 3), (1, 1, 3, 9)), cluster, jobs).job.tolist() == [1]
    none = assign_gpu_rows(trace((0, 1, 3, 3)), cluster, jobs)
    assert pack_bars(none, np.array([3.0, 9.0]))["bars"] == 0
    with pytest.raises(ValueError, match="GPUs"):
        assign_gpu_rows(trace((0, 1, 0, 9), (1, 1, 8, 9)), cluster, jobs)


@pytest.mark.parametrize("policy", ["las-consolidate", "fifo-worst-fit"])
def test_bars_do_not_overlap_and_cover_the_trace(policy: str) -> None:
    result = recorded(policy)
    assert result.trace is not None
    bars = assign_gpu_rows(result.trace, result.cluster, result.jobs)
    for machine, capacity in enumerate(result.cluster.gpu_capacity):
        mine = np.flatnonzero(bars.machine == machine)
        end = bars.first + bars.height
        assert end[mine].max() <= capacity
        for place, bar in enumerate(mine):
            others = mine[place + 1 :]
            meets = (bars.start_s[others] < bars.end_s[bar]) & (
                bars.end_s[others] > bars.start_s[bar]
            )
            apart = (bars.first[others] >= end[bar]) | (end[others] <= bars.first[bar])
            assert (apart | ~meets).all()
    drawn = (bars.height / 100 * (bars.end_s - bars.start_s)).sum()
    assert drawn == pytest.approx(result.gpu_s)


def test_packed_bars_mark_stopped_jobs() -> None:
    result = recorded("las-consolidate")
    assert result.trace is not None
    assert result.preemptions > 0
    bars = assign_gpu_rows(result.trace, result.cluster, result.jobs)
    packed = pack_bars(bars, result.finish_s)
    job = np.array(numbers_in(str(packed["job"])))
    assert (job // 2).tolist() == bars.job.tolist()
    stopped = {(j, end) for j, end, odd in zip(job // 2, bars.end_s, job % 2, strict=True) if odd}
    assert len(stopped) == result.preemptions
    ends = set(zip(job // 2, bars.end_s, strict=True))
    assert {(j, end) for j, end in ends if end < result.finish_s[j]} == stopped
    starts = []
    clock, before = 0, -1
    for machine, gap in zip(bars.machine, numbers_in(str(packed["gap_ms"])), strict=True):
        clock = gap if machine != before else clock + gap
        before = machine
        starts.append(clock)
    assert np.array(starts) == pytest.approx(1000 * bars.start_s, abs=0.51)


def test_page_contains_all_data() -> None:
    ours, las, steps = recorded(), recorded("las-consolidate"), traced_steps()
    text = build_page([ours, las], list(map(str, las.jobs.job_id)), "both", "gpu_scheduling")
    assert len(text) < 1_000_000
    data = data_in(text)
    assert data["unit"] == {"seconds": 3600, "name": "h"}
    assert data["machines"]["rack"] == [0, 0, 1, 1, 2, 2, 2, 2]
    assert data["machines"]["price"][0] == 2.48
    assert data["jobs"]["gpu"] == las.jobs.gpu.tolist()
    mine, theirs = data["policies"]
    assert theirs["case"] is None
    assert theirs["mean_fee"] == pytest.approx(las.fee.mean())
    assert theirs["preemptions"] == las.preemptions
    assert mine["case"]["choices"] == len(steps) <= mine["case"]["decisions"]
    for packed, step in zip(mine["case"]["steps"], steps, strict=True):

        def values(name: str, packed: dict[str, Any] = packed) -> np.ndarray:
            column = packed[name]
            levels = np.array(numbers_in(column["levels"]), np.float64)
            return np.where(levels > 0, column["low"] + (levels - 1) * column["step"], np.nan)

        known = step.affinity[~np.isnan(step.affinity)]
        grain = float(np.ptp(known)) / 1000 + 1e-4 if known.size else 1.0
        np.testing.assert_allclose(values("affinity"), step.affinity.ravel(), atol=grain)
        np.testing.assert_allclose(values("mean"), step.mean, atol=np.ptp(step.mean) / 1e3 + 1e-4)
        assert numbers_in(packed["jobs"]) == step.jobs.tolist()
        assert numbers_in(packed["placed"]) == [n for place in step.placed for n in place]
        assert packed["stopped"] == list(step.stopped)
        assert numbers_in(packed["order"]) == step.order.tolist()


def test_page_of_unknown_environment_is_refused() -> None:
    with pytest.raises(InputError, match="pod_scaling"):
        build_page([recorded("fifo-first-fit")], ["x"] * 60, "", "pod_scaling")


@pytest.mark.parametrize(
    ("end_s", "unit"),
    [(40_000, Unit(3600, "h")), (7200, Unit(60, "min")), (100, Unit(1, "s")), (1, Unit(1, "s"))],
)
def test_unit_depends_on_length_of_episode(end_s: float, unit: Unit) -> None:
    result = recorded("fifo-first-fit")
    squeezed = dataclasses.replace(
        result,
        finish_s=result.finish_s * end_s / result.finish_s.max(),
        jobs=result.jobs._replace(arrival_s=np.zeros(60)),
    )
    assert gpu.unit([squeezed]) == unit


def test_summary_in_hours_with_fees() -> None:
    seen = recorded("fifo-first-fit")
    words = summary_line([seen], unit=Unit(3600, "h"), suffixes=[gpu.REPLAY.summary_suffix(seen)])
    assert words == (
        f"fifo-first-fit finishes the average job in {seen.mean_jct_s / 3600:.1f} h "
        f"for ${seen.fee.mean():,.2f}, of 60 jobs"
    )


def test_command_compares_two_baselines(here: Path, cli: Cli) -> None:
    record = cli.json("replay gpu_scheduling --seed 3 --set jobs=60 --set load=2")
    assert list(record["policies"]) == ["las-consolidate", "fifo-first-fit"]
    las = recorded("las-consolidate")
    assert record["policies"]["las-consolidate"] == {
        "jct": las.mean_jct_s,
        "fee": pytest.approx(las.fee.mean()),
        "makespan": las.makespan_s,
        "preemptions": las.preemptions,
    }
    text = (here / "replay.html").read_text()
    assert "gpu_scheduling · pai-like · 60 jobs at load 2, small cluster: 8 machines" in text
    assert data_in(text)["policies"][0]["completion_s"] == las.finish_s.tolist()


def test_bundle_is_compared_with_best_baseline_that_is_no_oracle(here: Path, cli: Cli) -> None:
    make_bundle(here / "das-mine", system="das", environment=ENVIRONMENT, **NETWORK)
    command = "replay ./das-mine -o page.html --picture"
    assert "--picture" in cli.error(f"{command} no/case.png")
    assert [path.name for path in here.iterdir()] == ["das-mine"]
    record = cli.json(f"{command} case.png")
    assert record["picture"] == "case.png"
    assert (here / "case.png").read_bytes().startswith(b"\x89PNG")
    ours, best = record["policies"]
    assert ours == "das-mine"
    means = {name: run_episode(name, SMALL, 0).mean_jct_s for name in gpu.opponents(SMALL)}
    assert best == min(means, key=lambda name: means[name])
    assert not any(name.startswith(("sjf", "srtf", "tetris", "mosa")) for name in means)
    first, second = data_in((here / "page.html").read_text())["policies"]
    assert first["case"]["steps"]
    assert second["case"] is None
