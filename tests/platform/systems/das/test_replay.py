"""The replay of GPU scheduling: bars, decision trace, page, picture and command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, PlacementTrace, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.platform.cli.main import main
from loadmaster.platform.replay.adapters import Unit, summary_line
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das import replay as gpu
from loadmaster.platform.systems.das.decision_trace import (
    DecisionTrace,
    RecordedEpisode,
    Step,
)
from loadmaster.platform.systems.das.replay import assign_gpu_rows, pack_bars
from tests.bundles import make_bundle
from tests.platform.systems.das.traces import ENVIRONMENT, NETWORK, SEED, SMALL, Traced, traced
from tests.platform.systems.decima.test_replay import data_in, numbers_in
from tests.replays import assert_refused

__all__ = ["traced"]  # a fixture

pytestmark = pytest.mark.slow


def recorded(policy: str, settings: GpuSchedulingSettings = SMALL) -> EpisodeResult:
    return run_episode(policy, settings, SEED, record=True)


def episode(result: EpisodeResult, trace: DecisionTrace | None = None) -> RecordedEpisode:
    cluster = build_cluster(SMALL)
    return RecordedEpisode(result, cluster, ("T4",) * len(cluster.rack), trace)


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


@pytest.mark.parametrize(
    ("gpus", "jobs", "rows", "expected"),
    [
        # Whole GPUs are adjacent; the larger request is assigned first.
        (4, [(2, 100), (1, 200)], [(0, 2, 0, 5), (1, 1, 0, 9)], [[(200, 200)], [(0, 200)]]),
        # Jobs that share GPUs fill one of them.
        (
            2,
            [(1, 50), (1, 50), (1, 100)],
            [(0, 1, 0, 9), (1, 1, 1, 9), (2, 1, 2, 9)],
            [[(0, 50)], [(50, 50)], [(100, 100)]],
        ),
        # Three times 60% fit in the pool of two GPUs, although no GPU holds two of them.
        (
            2,
            [(1, 60)] * 3,
            [(0, 1, 0, 9), (1, 1, 1, 9), (2, 1, 2, 9)],
            [[(0, 60)], [(100, 60)], [(60, 40), (160, 20)]],
        ),
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
    bars = assign_gpu_rows(trace((0, 1, 3, 3), (1, 1, 3, 9)), cluster, jobs)
    assert bars.job.tolist() == [1]
    none = assign_gpu_rows(trace((0, 1, 3, 3)), cluster, jobs)
    assert pack_bars(none, np.array([3.0, 9.0]))["bars"] == 0
    with pytest.raises(ValueError, match="GPUs"):
        assign_gpu_rows(trace((0, 1, 0, 9), (1, 1, 8, 9)), cluster, jobs)


@pytest.mark.parametrize("policy", ["las-consolidate", "fifo-worst-fit"])
def test_bars_do_not_overlap_and_cover_the_trace(policy: str) -> None:
    result, cluster = recorded(policy), build_cluster(SMALL)
    assert result.trace is not None
    bars = assign_gpu_rows(result.trace, cluster, result.jobs)
    for machine in range(len(cluster.rack)):
        mine = np.flatnonzero(bars.machine == machine)
        assert (bars.first + bars.height)[mine].max() <= cluster.gpu_capacity[machine]
        for place, bar in enumerate(mine):
            others = mine[place + 1 :]
            meets = (bars.start_s[others] < bars.end_s[bar]) & (
                bars.end_s[others] > bars.start_s[bar]
            )
            apart = (bars.first[others] >= bars.first[bar] + bars.height[bar]) | (
                bars.first[others] + bars.height[others] <= bars.first[bar]
            )
            assert (apart | ~meets).all()
    drawn = (bars.height / 100 * (bars.end_s - bars.start_s)).sum()
    assert drawn == pytest.approx(result.gpu_s)


def test_packed_bars_mark_stopped_jobs() -> None:
    result, cluster = recorded("las-consolidate"), build_cluster(SMALL)
    assert result.trace is not None
    assert result.preemptions > 0
    bars = assign_gpu_rows(result.trace, cluster, result.jobs)
    packed = pack_bars(bars, result.finish_s)
    job = np.array(numbers_in(str(packed["job"])))
    assert (job // 2).tolist() == bars.job.tolist()
    ends = set(zip(job // 2, bars.end_s, strict=True))
    stopped = {(j, end) for j, end, odd in zip(job // 2, bars.end_s, job % 2, strict=True) if odd}
    assert len(stopped) == result.preemptions
    assert {(j, end) for j, end in ends if end < result.finish_s[j]} == stopped
    starts = []
    clock, before = 0, -1
    for machine, gap in zip(bars.machine, numbers_in(str(packed["gap_ms"])), strict=True):
        clock = gap if machine != before else clock + gap
        before = machine
        starts.append(clock)
    assert np.array(starts) == pytest.approx(1000 * bars.start_s, abs=0.51)


def test_page_contains_all_data(traced: Traced) -> None:
    ours = dataclasses.replace(traced[0], policy="das")
    las = recorded("las-consolidate")
    names = [str(number) for number in las.jobs.job_id]
    text = build_page([episode(ours, traced[1]), episode(las)], names, "both", "gpu_scheduling")
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
    assert (mine["case"]["decisions"], mine["case"]["choices"]) == (
        traced[1].decisions,
        len(traced[1].steps),
    )
    for packed, step in zip(mine["case"]["steps"], traced[1].steps, strict=True):
        assert is_same_step(packed, step)


def is_same_step(packed: dict[str, Any], step: Step) -> bool:

    def values(name: str) -> np.ndarray:
        column = packed[name]
        levels = np.array(numbers_in(column["levels"]), np.float64)
        return np.where(levels > 0, column["low"] + (levels - 1) * column["step"], np.nan)

    known = step.affinity[~np.isnan(step.affinity)]
    grain = float(np.ptp(known)) / 1000 + 1e-4 if known.size else 1.0
    np.testing.assert_allclose(values("affinity"), step.affinity.ravel(), atol=grain)
    np.testing.assert_allclose(values("mean"), step.mean, atol=np.ptp(step.mean) / 1e3 + 1e-4)
    flat = [number for place in step.placed for number in place]
    return (
        numbers_in(packed["jobs"]) == step.jobs.tolist()
        and numbers_in(packed["placed"]) == flat
        and packed["stopped"] == list(step.stopped)
        and numbers_in(packed["order"]) == step.order.tolist()
    )


def test_page_needs_recorded_episodes_on_the_same_jobs() -> None:
    one, other = episode(recorded("fifo-first-fit")), episode(recorded("las-consolidate"))
    names = ["x"] * 60
    shuffled = dataclasses.replace(
        other.result, jobs=other.result.jobs._replace(job_id=np.arange(60)[::-1])
    )
    with pytest.raises(ValueError, match="different jobs"):
        build_page([one, episode(shuffled)], names, "", "gpu_scheduling")
    bare = episode(run_episode("fifo-first-fit", SMALL, SEED))
    with pytest.raises(ValueError, match="not recorded"):
        build_page([bare], names, "", "gpu_scheduling")
    with pytest.raises(InputError, match="pod_scaling"):
        build_page([one], names, "", "pod_scaling")


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
    assert gpu.unit([episode(squeezed)]) == unit


def test_summary_in_hours_with_fees() -> None:
    result = recorded("fifo-first-fit")
    seen = episode(result)
    words = summary_line([seen], unit=Unit(3600, "h"), suffixes=[gpu.REPLAY.summary_suffix(seen)])
    hours = result.mean_jct_s / 3600
    assert words.startswith("fifo-first-fit finishes the average job in ")
    assert f"{hours:.1f} h for ${result.fee.mean():,.2f}, of 60 jobs" in words


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json and parse its output."""

    def run(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_command_compares_two_baselines(tmp_path: Path, run_json: Callable[..., Any]) -> None:
    output = tmp_path / "page.html"
    few = ["--seed", "3", "--set", "jobs=60", "--set", "load=2"]
    record = run_json("replay", "gpu_scheduling", *few, "-o", str(output))
    assert list(record["policies"]) == ["las-consolidate", "fifo-first-fit"]
    las = recorded("las-consolidate")
    assert record["policies"]["las-consolidate"] == {
        "jct": las.mean_jct_s,
        "fee": pytest.approx(las.fee.mean()),
        "makespan": las.makespan_s,
        "preemptions": las.preemptions,
    }
    text = output.read_text()
    assert "gpu_scheduling · pai-like · 60 jobs at load 2, small cluster: 8 machines" in text
    assert data_in(text)["policies"][0]["completion_s"] == las.finish_s.tolist()


def test_bundle_is_compared_with_best_baseline_that_is_no_oracle(
    tmp_path: Path, run_json: Callable[..., Any]
) -> None:
    bundle = make_bundle(tmp_path / "das-mine", system="das", environment=ENVIRONMENT, **NETWORK)
    output, picture = tmp_path / "page.html", tmp_path / "case.png"
    record = run_json("replay", str(bundle), "-o", str(output), "--picture", str(picture))
    assert record["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    ours, best = record["policies"]
    assert ours == "das-mine"
    means = {name: run_episode(name, SMALL, 0).mean_jct_s for name in gpu.opponents(SMALL)}
    assert best == min(means, key=lambda name: means[name])
    assert not any(name.startswith(("sjf", "srtf", "tetris", "mosa")) for name in means)
    first, second = data_in(output.read_text())["policies"]
    assert first["case"]["steps"]
    assert second["case"] is None


TOY = ["replay", "gpu_scheduling", "--workload", "toy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TOY, "--policy", "las-consolidte"], "did you mean 'las-consolidate'?"),
        ([*TOY, "--set", "job=3"], "did you mean 'jobs'?"),
        ([*TOY, "--picture", "case.png"], "--picture"),
        ([*TOY, "--picture", "case.txt"], "case.txt"),
        (["replay", "dag_scheduling", "--picture", "case.png"], "dag_scheduling"),
        ([*TOY, *["--policy", "mosa"] * 2], "mosa"),
    ],
)
def test_invalid_input_is_rejected(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(arguments, message, tmp_path, capsys)


def test_bundle_of_another_system_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decima = make_bundle(tmp_path / "decima")
    page = str(tmp_path / "page.html")
    assert main([*TOY, "--policy", str(decima), "-o", page]) == 2
    assert "expected a policy for 'gpu_scheduling'" in capsys.readouterr().err
    das = make_bundle(tmp_path / "das", system="das", **NETWORK)
    assert main(["replay", str(decima), "--policy", str(das), "-o", page]) == 2
    assert "expected a policy for 'dag_scheduling'" in capsys.readouterr().err


def test_unwritable_picture_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    das = make_bundle(tmp_path / "das", system="das", environment=ENVIRONMENT, **NETWORK)
    output = tmp_path / "output"
    output.mkdir()
    files = ["-o", str(output / "page.html"), "--picture", str(output / "no" / "case.png")]
    assert main(["replay", str(das), *files]) == 2
    assert "--picture" in capsys.readouterr().err
    assert list(output.iterdir()) == []
