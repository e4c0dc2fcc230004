"""Jobs of an episode and their arrival times."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs, mean_gap_s
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster, capacity, type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

TOY: dict[str, Any] = {"workload": "toy", "arrivals": "trace"}
ONE_GPU = {"machines": [{"count": 1, "gpus": 1, "gpu": "V100", "cpus": 8}]}


def draw(seed: int = 0, **values: Any) -> Jobs:
    return draw_with_cluster(seed, **values)[0]


def draw_with_cluster(seed: int = 0, **values: Any) -> tuple[Jobs, Cluster]:
    settings = GpuSchedulingSettings.model_validate(values)
    cluster, rng = build_cluster(settings), np.random.default_rng(seed)
    return draw_jobs(settings, load_workload(settings), cluster, rng), cluster


def test_toy() -> None:
    jobs = draw(**TOY)
    assert jobs.arrival_s.tolist() == [0, 0, 1, 2, 3]
    assert jobs.duration_s.tolist() == [10, 4, 6, 2, 8]
    assert jobs.instances.tolist() == [1, 1, 2, 1, 4]
    assert jobs.gpu.tolist() == [100, 50, 100, 50, 100]
    assert jobs.cpu.tolist() == [100, 100, 200, 100, 100]
    assert jobs.comm.tolist() == [0, 0, 0.5, 0, 0.5]
    assert jobs.user.tolist() == [0, 1, 0, 1, 0]
    assert jobs.job_id.tolist() == [0, 1, 2, 3, 4]
    assert gpu_seconds(jobs).tolist() == [10, 2, 12, 1, 32]


@pytest.mark.parametrize(
    ("values", "arrival_s"),
    [
        ({"arrivals": "batch"}, [0, 0, 0, 0, 0]),
        ({"arrivals": "per-minute", "jobs_per_minute": 2}, [0, 0, 60, 60, 120]),
    ],
)
def test_batch_and_per_minute(values: dict[str, Any], arrival_s: list[float]) -> None:
    jobs = draw(workload="toy", **values)
    assert jobs.arrival_s.tolist() == arrival_s
    assert jobs.job_id.tolist() == [0, 1, 2, 3, 4]  # ids break ties


def test_fewer_jobs_are_consecutive_or_a_sample() -> None:
    consecutive = {tuple(draw(seed, **TOY, jobs=2).job_id.tolist()) for seed in range(30)}
    assert consecutive == {(0, 1), (1, 2), (2, 3), (3, 4)}
    sample = {frozenset(draw(seed, workload="toy", jobs=2).job_id.tolist()) for seed in range(80)}
    assert len(sample) == 10  # all pairs of five


def test_more_jobs_than_trace_are_refused() -> None:
    with pytest.raises(InputError, match=r"setting jobs: 6 .*'toy'"):
        draw(workload="toy", jobs=6)


@pytest.mark.parametrize(
    # 57 GPU seconds in five jobs: at load 0.57 of one V100, the mean gap is 20 s.
    ("values", "factor"), [({"load": 0.57}, 80 / 3), ({"interarrival_s": 3.0}, 4)]
)  # fmt: skip
def test_load_scales_arrivals_of_trace(values: dict[str, float], factor: float) -> None:
    with pytest.warns(UserWarning, match="left in the queue"):
        jobs = draw(**values, **ONE_GPU, **TOY, oversized="queue")
    assert jobs.arrival_s == pytest.approx(np.array([0, 0, 1, 2, 3]) * factor)


@pytest.mark.parametrize("arrivals", ["poisson", "trace"])
@pytest.mark.parametrize("cluster", ["small", "large"])
def test_generated_jobs_have_requested_load(cluster: str, arrivals: str) -> None:
    values = {"cluster": cluster, "arrivals": arrivals, "load": 0.7, "jobs": 40_000}
    jobs, machines = draw_with_cluster(3, **values)
    available = (machines.gpu_capacity / 100 * machines.speed).sum() * jobs.arrival_s[-1]
    assert gpu_seconds(jobs).sum() / available == pytest.approx(0.7, rel=0.12)  # heavy tails
    settings = GpuSchedulingSettings.model_validate(values)
    gap = mean_gap_s(settings, load_workload(settings), machines)
    assert np.diff(jobs.arrival_s).mean() == pytest.approx(gap, rel=0.02)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(draw(interarrival_s=30.0, jobs=20_000).arrival_s)
    assert gaps.mean() == pytest.approx(30, rel=0.03)
    assert gaps.std() == pytest.approx(30, rel=0.03)
    assert np.median(gaps) == pytest.approx(30 * np.log(2), rel=0.03)


@pytest.mark.parametrize("arrivals", ["poisson", "trace", "batch", "per-minute"])
def test_jobs_are_sorted_and_depend_on_seed_only(arrivals: str) -> None:
    first, again, other = (draw(seed, arrivals=arrivals) for seed in (1, 1, 2))
    for column, same in zip(first, again, strict=True):
        assert np.array_equal(column, same)
    assert not np.array_equal(first.duration_s, other.duration_s)
    assert first.arrival_s[0] == 0
    assert (np.diff(first.arrival_s) >= 0).all()
    ties = np.diff(first.arrival_s) == 0
    assert (np.diff(first.job_id)[ties] > 0).all()
    kinds = {"arrival_s": np.float64, "duration_s": np.float64, "comm": np.float64}
    for name, column in first._asdict().items():
        assert column.dtype == kinds.get(name, np.int64), name
        assert column.shape == (200,)
        assert column.flags.c_contiguous


@pytest.mark.parametrize("cluster", ["small", "medium", "large"])
@pytest.mark.parametrize("require_types", [False, True])
def test_generated_jobs_fit_and_gangs_take_a_quarter(cluster: str, require_types: bool) -> None:
    jobs, machines = draw_with_cluster(9, cluster=cluster, require_types=require_types, jobs=20_000)
    fit, gangs = capacity(jobs, machines), jobs.instances > 1
    assert (fit >= jobs.instances).all()
    assert (4 * jobs.instances <= fit)[gangs].all()
    if not require_types and cluster == "small":
        gpus = (jobs.gpu * jobs.instances)[gangs].max()
        assert gpus == machines.gpu_capacity.sum() // 4
    assert jobs.gpu.min() >= 1
    assert jobs.duration_s.min() >= 1
    assert (jobs.comm[~gangs] == 0).all()
    assert 0 < jobs.comm[gangs].min() < jobs.comm[gangs].max() < 1
    wanted = {ANY_TYPE} if not require_types else {ANY_TYPE, *machines.gpu_type.tolist()}
    assert set(jobs.gpu_type.tolist()) == wanted


def test_generated_jobs_fit_unusual_machines() -> None:
    groups = [
        {"count": 1, "gpus": 1, "gpu": "T4", "cpus": 64},
        {"count": 1, "gpus": 2, "gpu": "K80", "cpus": 1},
    ]
    jobs, machines = draw_with_cluster(machines=groups, jobs=2000, require_types=True)
    assert (capacity(jobs, machines) >= jobs.instances).all()
    t4 = type_names(GpuSchedulingSettings()).index("T4")
    assert set(jobs.gpu_type.tolist()) == {ANY_TYPE, t4}


def test_capacity_counts_resources_and_type() -> None:
    groups = [
        {"count": 2, "gpus": 4, "gpu": "V100", "cpus": 6},
        {"count": 1, "gpus": 1, "gpu": "T4", "cpus": 64},
    ]
    toy, machines = draw_with_cluster(**TOY, machines=groups)
    assert capacity(toy, machines).tolist() == [9, 14, 7, 14, 9]
    t4 = type_names(GpuSchedulingSettings()).index("T4")
    on_t4 = toy._replace(gpu_type=np.full(5, t4))
    assert capacity(on_t4, machines).tolist() == [1, 2, 1, 2, 1]


def test_oversized_job_is_refused_by_id() -> None:
    fault = "job 2 requests 2 x 1 GPU and 2 cores; the empty cluster holds 1"
    with pytest.raises(InputError, match=re.escape(fault)):
        draw(**TOY, **ONE_GPU)


@pytest.mark.parametrize(
    ("oversized", "message", "left"),
    [("skip", "left out", [0, 1, 3]), ("queue", "left in the queue", [0, 1, 2, 3, 4])],
)
def test_oversized_jobs_are_skipped_or_queued(
    oversized: str, message: str, left: list[int]
) -> None:
    with pytest.warns(UserWarning, match=f"job 2 .*1 more.*: {message}"):
        jobs = draw(**TOY, oversized=oversized, **ONE_GPU)
    assert jobs.job_id.tolist() == left


def test_skipping_all_jobs_is_refused() -> None:
    machines = [{"count": 1, "gpus": 1, "gpu": "V100", "cpus": 1}]
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(InputError, match=r"job 2 .*no other job"),
    ):
        draw(1, **TOY, jobs=1, oversized="skip", machines=machines)
