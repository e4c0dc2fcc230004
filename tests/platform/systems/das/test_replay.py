"""The replay of GPU scheduling: bars, decision trace, page, picture and command."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import PLACING, PLACING_AGAIN, RECONSIDERING
from loadmaster.envs.gpu_scheduling.episode import PlacementTrace, run_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.replay.adapters import Unit, summary_line
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das import replay as gpu
from loadmaster.platform.systems.das.decision_trace import thinned
from loadmaster.platform.systems.das.evaluation import oracles
from loadmaster.platform.systems.das.picture import DECISIONS, select_steps
from loadmaster.platform.systems.das.replay import assign_gpu_rows, pack_bars
from tests.bundles import make_bundle
from tests.models.das.builders import NETWORK
from tests.platform.cli.one_line import Cli
from tests.platform.systems.das import traces
from tests.platform.systems.das.traces import SMALL, recorded, traced_steps
from tests.platform.systems.decima.test_replay import data_in, numbers_in

pytestmark = pytest.mark.slow


Pair = tuple[int, int]
Row = tuple[int, int, float, float]  # job, instances, start, end


def tables(gpus: int, asked: list[Pair]) -> tuple[Cluster, Jobs]:
    """One machine, and jobs of (instances, percent of a GPU)."""
    machine = {"count": 1, "gpus": gpus, "gpu": "V100", "cpus": 64}
    cluster = build_cluster(GpuSchedulingSettings.model_validate({"machines": [machine]}))
    instances, percent = np.array(asked, np.int64).T
    none, zeros = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
    jobs = Jobs(none, none, instances, percent, zeros, zeros, none, zeros, np.arange(len(asked)))
    return cluster, jobs


def trace(*rows: Row) -> PlacementTrace:
    """Of one machine."""
    job, instances, start_s, end_s = np.array(rows).T
    whole = np.stack([job, np.zeros(len(rows)), instances]).astype(np.int64)
    return PlacementTrace(*whole, start_s, end_s)


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
    gpus: int, jobs: list[Pair], rows: list[Row], expected: list[list[Pair]]
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
    bars = assign_gpu_rows(result.trace, result.cluster, result.jobs)
    for machine, capacity in enumerate(result.cluster.gpu_capacity):
        mine = np.flatnonzero(bars.machine == machine)
        end = bars.first + bars.height
        assert end[mine].max() <= capacity
        for place, bar in enumerate(mine):
            others = mine[place + 1 :]
            apart = (bars.first[others] >= end[bar]) | (end[others] <= bars.first[bar])
            apart |= bars.start_s[others] >= bars.end_s[bar]
            apart |= bars.end_s[others] <= bars.start_s[bar]
            assert apart.all()
    drawn = (bars.height / 100 * (bars.end_s - bars.start_s)).sum()
    assert drawn == pytest.approx(result.gpu_s)


def test_packed_bars_mark_stopped_jobs() -> None:
    result = recorded("las-consolidate")
    assert result.preemptions > 0
    bars = assign_gpu_rows(result.trace, result.cluster, result.jobs)
    packed = pack_bars(bars, result.finish_s)
    job = np.array(numbers_in(str(packed["job"])))
    assert (job // 2).tolist() == bars.job.tolist()
    stopped = {(j, end) for j, end, odd in zip(job // 2, bars.end_s, job % 2, strict=True) if odd}
    assert len(stopped) == result.preemptions
    ends = set(zip(job // 2, bars.end_s, strict=True))
    assert {(j, end) for j, end in ends if end < result.finish_s[j]} == stopped
    gap_ms = np.array(numbers_in(str(packed["gap_ms"])))
    for machine in range(8):
        own = bars.machine == machine
        assert gap_ms[own].cumsum() == pytest.approx(1000 * bars.start_s[own], abs=0.51)


def test_page_contains_all_data() -> None:
    ours, las, steps = recorded(), recorded("las-consolidate"), traced_steps()
    text = build_page([ours, las], list(map(str, las.jobs.job_id)), "both", "gpu_scheduling")
    assert len(text) < 1_000_000
    with pytest.raises(InputError, match="no_environment"):
        build_page([las], ["x"] * 60, "", "no_environment")
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


@pytest.mark.parametrize(
    ("end_s", "unit"),
    [(40_000, Unit(3600, "h")), (7200, Unit(60, "min")), (100, Unit(1, "s")), (1, Unit(1, "s"))],
)
def test_unit_depends_on_length_of_episode(end_s: float, unit: Unit) -> None:
    result = recorded("fifo-first-fit")
    finish_s = result.finish_s * end_s / result.finish_s.max()
    jobs = result.jobs._replace(arrival_s=np.zeros(60))
    assert gpu.unit([dataclasses.replace(result, finish_s=finish_s, jobs=jobs)]) == unit


def test_summary_in_hours_with_fees() -> None:
    seen = recorded("fifo-first-fit")
    words = summary_line([seen], unit=Unit(3600, "h"), suffixes=[gpu.REPLAY.summary_suffix(seen)])
    assert f" in {seen.mean_jct_s / 3600:.1f} h for ${seen.fee.mean():,.2f}, of 60 jobs" in words


def test_command_compares_two_baselines(here: Path, cli: Cli) -> None:
    record = cli.json("replay gpu_scheduling --seed 3 --set jobs=60 --set load=2")
    assert list(record["policies"]) == ["las-consolidate", "fifo-first-fit"]
    las = recorded("las-consolidate")
    expected = {"jct": las.mean_jct_s, "makespan": las.makespan_s, "preemptions": las.preemptions}
    found = record["policies"]["las-consolidate"]
    assert found == {**expected, "fee": pytest.approx(las.fee.mean())}
    text = (here / "replay.html").read_text()
    assert "gpu_scheduling · pai-like · 60 jobs at load 2, small cluster: 8 machines" in text
    assert data_in(text)["policies"][0]["completion_s"] == las.finish_s.tolist()


def test_bundle_is_compared_with_best_baseline_that_is_no_oracle(here: Path, cli: Cli) -> None:
    make_bundle(here / "das-mine", system="das", environment=traces.ENVIRONMENT, **NETWORK)
    command = "replay ./das-mine -o page.html --picture"
    assert "--picture" in cli.error(f"{command} no/case.png")
    assert [path.name for path in here.iterdir()] == ["das-mine"]
    record = cli.json(f"{command} case.png")
    assert record["picture"] == "case.png"
    assert (here / "case.png").read_bytes().startswith(b"\x89PNG")
    ours, best = record["policies"]
    assert ours == "das-mine"
    means = {name: run_episode(name, SMALL, 0).mean_jct_s for name in gpu.opponents(SMALL)}
    assert best == min(means, key=means.__getitem__)
    assert not oracles(SMALL) & means.keys()
    first, second = data_in((here / "page.html").read_text())["policies"]
    assert first["case"]["steps"]
    assert second["case"] is None


def test_steps_match_the_schedule() -> None:
    result, run, steps = recorded(), recorded().trace, traced_steps()
    plain = traces.untrained_policy().run(SMALL, traces.SEED, load_workload(SMALL))
    np.testing.assert_array_equal(result.finish_s, plain.finish_s)
    assert [step.number for step in steps] == sorted({step.number for step in steps})
    assert {step.kind for step in steps} == {PLACING, RECONSIDERING, PLACING_AGAIN}
    rows = set(zip(run.job, run.machine, run.instances, run.start_s, strict=True))
    for step in steps:
        for place in step.placed:
            assert (*place, step.time_s) in rows
            assert int(np.flatnonzero(step.jobs == place.job)[0]) in step.startable
        for job in step.stopped:
            assert step.time_s in run.end_s[run.job == job]
            assert result.finish_s[job] > step.time_s
            assert step.then
            turn = step.jobs[step.order].tolist().index(job)
            assert (~step.running[step.order[:turn]]).any()  # a waiting job has a higher priority
        if step.kind == RECONSIDERING:
            assert not len(step.startable)
            assert {place.job for place in step.held} == set(step.jobs[step.running].tolist())
        else:
            assert step.placed
            assert not step.stopped
    stopped = sum(len(step.stopped) for step in steps)
    assert 0 < stopped <= result.preemptions


def test_highest_priority_goes_first_to_highest_affinity() -> None:
    for step in (step for step in traced_steps() if step.kind != RECONSIDERING):
        first = int(step.order[0])
        assert first in step.startable
        assert step.mean[first] == step.mean[step.startable].max()
        affinity = step.affinity[step.startable.tolist().index(first)]
        machines = {place.machine for place in step.placed if place.job == step.jobs[first]}
        assert int(np.nanargmax(affinity)) in machines
        assert not any(np.isnan(affinity[machine]) for machine in machines)


def test_thinned_steps_are_spread_over_the_episode() -> None:
    found = recorded().case
    assert thinned(found) == found.steps
    total = sum(step.numbers for step in found.steps)
    few = thinned(found, total // 4)
    assert 0 < len(few) < len(found.steps)
    assert few[-1].time_s > found.steps[len(found.steps) // 2].time_s
    together = {step.time_s for step in few}
    assert [s for s in found.steps if s.time_s in together] == list(few)
    assert thinned(found, 1) == ()


def test_picture_selects_successive_steps() -> None:
    steps = traced_steps()
    shown = select_steps(steps)
    first = steps.index(shown[0])
    assert tuple(shown) == steps[first : first + DECISIONS]
    assert any(step.stopped for step in shown)
    assert len(select_steps(steps[:2])) == 2
