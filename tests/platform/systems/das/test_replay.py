"""The replay of GPU scheduling: bars, decision trace, page, picture and command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import PLACING, PLACING_AGAIN, RECONSIDERING
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, PlacementTrace, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.cli.main import main
from loadmaster.platform.replay.adapters import Unit, summary_line
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das import replay as gpu
from loadmaster.platform.systems.das.decision_trace import (
    DecisionTrace,
    RecordedEpisode,
    Step,
    thinned,
    trace_episode,
)
from loadmaster.platform.systems.das.picture import DECISIONS, select_steps
from loadmaster.platform.systems.das.replay import Bars, lay_out, pack_bars
from tests.bundles import make_bundle
from tests.platform.systems.decima.test_replay import data_in, numbers_in
from tests.replays import assert_refused

pytestmark = pytest.mark.slow

SMALL = GpuSchedulingSettings(jobs=60, load=2.0)
ENVIRONMENT = {"jobs": 60, "load": 2.0, "preempt": True}
NETWORK = {"width": 16, "heads": 2, "layers": 1}
SEED = 3


def recorded(policy: str, settings: GpuSchedulingSettings = SMALL) -> EpisodeResult:
    return run_episode(policy, settings, SEED, record=True)


Traced = tuple[EpisodeResult, DecisionTrace]


def untrained_policy() -> DasPolicy:
    torch.manual_seed(1)
    settings = GpuSchedulingSettings.model_validate(ENVIRONMENT)
    return DasPolicy(DasNetwork(DasSettings(**NETWORK)), settings)


@pytest.fixture(scope="module")
def traced() -> Traced:
    """An untrained policy that preempts, on a crowded cluster."""
    return trace_episode(untrained_policy(), SMALL, SEED, load_workload(SMALL))


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


def pieces(bars: Bars, job: int) -> list[tuple[int, int]]:
    mine = bars.job == job
    return list(zip(bars.first[mine].tolist(), bars.height[mine].tolist(), strict=True))


def test_whole_gpus_are_adjacent() -> None:
    cluster, jobs = tables(4, [(2, 100), (1, 200)])
    bars = lay_out(trace((0, 2, 0, 5), (1, 1, 0, 9)), cluster, jobs)
    assert pieces(bars, 1) == [(0, 200)]  # the larger request is assigned first
    assert pieces(bars, 0) == [(200, 200)]


def test_shared_jobs_fill_one_gpu() -> None:
    cluster, jobs = tables(2, [(1, 50), (1, 50), (1, 100)])
    bars = lay_out(trace((0, 1, 0, 9), (1, 1, 1, 9), (2, 1, 2, 9)), cluster, jobs)
    assert [pieces(bars, job) for job in range(3)] == [[(0, 50)], [(50, 50)], [(100, 100)]]


def test_jobs_that_fit_on_no_single_gpu_are_split() -> None:
    """The pool holds three times 60% on two GPUs, although no GPU holds two of them."""
    cluster, jobs = tables(2, [(1, 60), (1, 60), (1, 60)])
    bars = lay_out(trace((0, 1, 0, 9), (1, 1, 1, 9), (2, 1, 2, 9)), cluster, jobs)
    assert pieces(bars, 2) == [(60, 40), (160, 20)]


def test_rows_without_duration_have_no_bar() -> None:
    cluster, jobs = tables(1, [(1, 100), (1, 100)])
    bars = lay_out(trace((0, 1, 3, 3), (1, 1, 3, 9)), cluster, jobs)
    assert bars.job.tolist() == [1]
    none = lay_out(trace((0, 1, 3, 3)), cluster, jobs)
    assert pack_bars(none, np.array([3.0, 9.0]))["bars"] == 0
    with pytest.raises(ValueError, match="GPUs"):
        lay_out(trace((0, 1, 0, 9), (1, 1, 8, 9)), cluster, jobs)


@pytest.mark.parametrize("policy", ["las-consolidate", "fifo-worst-fit"])
def test_bars_do_not_overlap_and_cover_the_trace(policy: str) -> None:
    result, cluster = recorded(policy), build_cluster(SMALL)
    assert result.trace is not None
    bars = lay_out(result.trace, cluster, result.jobs)
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
    bars = lay_out(result.trace, cluster, result.jobs)
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


def test_traced_episode_equals_plain_run(traced: Traced) -> None:
    result, found = traced
    plain = untrained_policy().run(SMALL, SEED, load_workload(SMALL))
    np.testing.assert_array_equal(result.finish_s, plain.finish_s)
    assert result.trace is not None
    assert 0 < len(found.steps) <= found.decisions
    assert [step.number for step in found.steps] == sorted({s.number for s in found.steps})


def test_steps_match_the_schedule(traced: Traced) -> None:
    result, found = traced
    run = result.trace
    assert run is not None
    kinds = {step.kind for step in found.steps}
    assert kinds == {PLACING, RECONSIDERING, PLACING_AGAIN}
    rows = {
        (j, m, n, s)
        for j, m, n, s in zip(run.job, run.machine, run.instances, run.start_s, strict=True)
    }
    for step in found.steps:
        for place in step.placed:
            assert (*place, step.time_s) in rows
            assert int(np.flatnonzero(step.jobs == place.job)[0]) in step.startable
        for job in step.stopped:
            assert step.time_s in run.end_s[run.job == job]
            assert result.finish_s[job] > step.time_s
        if step.kind == RECONSIDERING:
            assert not len(step.startable)
            assert {place.job for place in step.held} == set(step.jobs[step.running].tolist())
        else:
            assert step.placed
            assert not step.stopped
    stopped = sum(len(step.stopped) for step in found.steps)
    assert 0 < stopped <= result.preemptions


def test_highest_priority_goes_first_to_highest_affinity(traced: Traced) -> None:
    for step in traced[1].steps:
        if step.kind == RECONSIDERING:
            continue
        first = int(step.order[0])
        assert first in step.startable
        assert step.mean[first] == step.mean[step.startable].max()
        affinity = step.affinity[step.startable.tolist().index(first)]
        machines = {place.machine for place in step.placed if place.job == step.jobs[first]}
        assert int(np.nanargmax(affinity)) in machines
        assert not any(np.isnan(affinity[machine]) for machine in machines)


def test_stopped_jobs_have_lower_priority_than_a_waiting_one(traced: Traced) -> None:
    checked = 0
    for step in traced[1].steps:
        for job in step.stopped:
            turn = step.order.tolist().index(int(np.flatnonzero(step.jobs == job)[0]))
            before = step.order[:turn]
            assert (~step.running[before]).any()
            checked += 1
        if step.stopped:
            assert step.then
    assert checked


def test_thinned_steps_are_spread_over_the_episode(traced: Traced) -> None:
    found = traced[1]
    assert thinned(found) == found.steps
    total = sum(step.numbers for step in found.steps)
    few = thinned(found, total // 4)
    assert 0 < len(few) < len(found.steps)
    assert few[-1].time_s > found.steps[len(found.steps) // 2].time_s
    together = {step.time_s for step in few}
    assert [s for s in found.steps if s.time_s in together] == list(few)
    assert thinned(found, 1) == ()


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
    words = summary_line([seen], unit=Unit(3600, "h"), beside=[gpu.scene().beside(seen)])
    hours = result.mean_jct_s / 3600
    assert words.startswith("fifo-first-fit finishes the average job in ")
    assert f"{hours:.1f} h for ${result.fee.mean():,.2f}, of 60 jobs" in words


def test_picture_selects_successive_steps(traced: Traced) -> None:
    steps = traced[1].steps
    shown = select_steps(steps)
    assert len(shown) == DECISIONS
    first = steps.index(shown[0])
    assert tuple(shown) == steps[first : first + DECISIONS]
    assert any(step.stopped for step in shown)
    assert len(select_steps(steps[:2])) == 2


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


def test_toy_workload_is_shown_in_seconds(tmp_path: Path, run_json: Callable[..., Any]) -> None:
    output = tmp_path / "page.html"
    run_json(*TOY, "--set", "arrivals=trace", "-o", str(output))
    assert data_in(output.read_text())["unit"]["name"] == "s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TOY, "--policy", "las-consolidte"], "did you mean 'las-consolidate'?"),
        ([*TOY, "--set", "job=3"], "did you mean 'jobs'?"),
        ([*TOY, "--picture", "case.png"], "--picture shows decisions of a learned policy"),
        ([*TOY, "--picture", "case.txt"], "says no kind of picture"),
        (["replay", "dag_scheduling", "--picture", "case.png"], "cannot show dag_scheduling"),
        ([*TOY, *["--policy", "mosa"] * 2], "given twice"),
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
    page, nowhere = tmp_path / "page.html", tmp_path / "no" / "case.png"
    assert main(["replay", str(das), "-o", str(page), "--picture", str(nowhere)]) == 2
    assert capsys.readouterr().err.startswith("error: cannot write --picture")
    assert list(tmp_path.iterdir()) == [das]
