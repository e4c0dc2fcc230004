"""Which jobs an episode gets, and when they arrive."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs, mean_gap_s, room
from loadmaster.envs.gpu_scheduling.cluster import build_cluster, type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

ONE_GPU = {"machines": [{"count": 1, "gpus": 1, "gpu": "V100", "cpus": 8}]}


def draw(seed: int = 0, **values: Any) -> Jobs:
    settings = GpuSchedulingSettings.model_validate(values)
    workload = load_workload(settings)
    return draw_jobs(settings, workload, build_cluster(settings), np.random.default_rng(seed))


def test_the_toy_as_its_table_says() -> None:
    jobs = draw(workload="toy", arrivals="trace")
    assert jobs.arrival_s.tolist() == [0, 0, 1, 2, 3]
    assert jobs.duration_s.tolist() == [10, 4, 6, 2, 8]
    assert jobs.instances.tolist() == [1, 1, 2, 1, 4]
    assert jobs.gpu.tolist() == [100, 50, 100, 50, 100]
    assert jobs.cpu.tolist() == [100, 100, 200, 100, 100]
    assert jobs.comm.tolist() == [0, 0, 0.5, 0, 0.5]
    assert jobs.user.tolist() == [0, 1, 0, 1, 0]
    assert jobs.job_id.tolist() == [0, 1, 2, 3, 4]
    assert gpu_seconds(jobs).tolist() == [10, 2, 12, 1, 32]


def test_a_batch_arrives_at_once_and_minutes_bring_so_many_each() -> None:
    batch = draw(workload="toy", arrivals="batch")
    assert batch.arrival_s.tolist() == [0] * 5
    assert batch.job_id.tolist() == [0, 1, 2, 3, 4]  # ids break the tie
    minutes = draw(workload="toy", arrivals="per-minute", jobs_per_minute=2)
    assert minutes.arrival_s.tolist() == [0, 0, 60, 60, 120]
    assert minutes.job_id.tolist() == [0, 1, 2, 3, 4]


def test_a_draw_of_fewer_jobs_is_a_stretch_or_a_sample() -> None:
    stretches = {
        tuple(draw(seed, workload="toy", arrivals="trace", jobs=2).job_id.tolist())
        for seed in range(30)
    }
    assert stretches == {(0, 1), (1, 2), (2, 3), (3, 4)}
    sample = {frozenset(draw(seed, workload="toy", jobs=2).job_id.tolist()) for seed in range(80)}
    assert len(sample) == 10  # all pairs of five


def test_a_trace_has_no_more_jobs_than_it_has() -> None:
    with pytest.raises(InputError, match="setting jobs: 6 of workload 'toy', which has 5"):
        draw(workload="toy", jobs=6)


def test_a_load_stretches_the_rhythm_of_a_trace() -> None:
    # 57 GPU seconds in five jobs: at load 0.57 of one V100, one each 20 s on average.
    fit = ONE_GPU | {"workload": "toy", "arrivals": "trace", "oversized": "queue"}
    with pytest.warns(UserWarning, match="left in the queue"):
        jobs = draw(load=0.57, **fit)
    assert jobs.arrival_s == pytest.approx(np.array([0, 0, 1, 2, 3]) * 80 / 3)
    with pytest.warns(UserWarning, match="left in the queue"):
        jobs = draw(interarrival_s=3.0, **fit)
    assert jobs.arrival_s == pytest.approx([0, 0, 4, 8, 12])


@pytest.mark.parametrize("arrivals", ["poisson", "trace"])
@pytest.mark.parametrize("cluster", ["small", "large"])
def test_generated_jobs_offer_the_load_that_is_asked_for(cluster: str, arrivals: str) -> None:
    settings = GpuSchedulingSettings.model_validate(
        {"cluster": cluster, "arrivals": arrivals, "load": 0.7, "jobs": 40_000}
    )
    machines = build_cluster(settings)
    jobs = draw_jobs(settings, load_workload(settings), machines, np.random.default_rng(3))
    there_is = (machines.gpu_capacity / 100 * machines.speed).sum() * jobs.arrival_s[-1]
    assert gpu_seconds(jobs).sum() / there_is == pytest.approx(0.7, rel=0.12)  # heavy tails
    gap = mean_gap_s(settings, load_workload(settings), machines)
    assert np.diff(jobs.arrival_s).mean() == pytest.approx(gap, rel=0.02)


def test_poisson_gaps_are_exponential_around_the_gap_given() -> None:
    gaps = np.diff(draw(interarrival_s=30.0, jobs=20_000).arrival_s)
    assert gaps.mean() == pytest.approx(30, rel=0.03)
    assert gaps.std() == pytest.approx(30, rel=0.03)
    assert np.median(gaps) == pytest.approx(30 * np.log(2), rel=0.03)


@pytest.mark.parametrize("arrivals", ["poisson", "trace", "batch", "per-minute"])
def test_episodes_are_in_order_and_their_seed_s_alone(arrivals: str) -> None:
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
def test_generated_jobs_always_fit(cluster: str, require_types: bool) -> None:
    settings = GpuSchedulingSettings.model_validate(
        {"cluster": cluster, "require_types": require_types, "jobs": 20_000}
    )
    machines = build_cluster(settings)
    jobs = draw_jobs(settings, load_workload(settings), machines, np.random.default_rng(9))
    assert (room(jobs, machines) >= jobs.instances).all()
    assert jobs.gpu.min() >= 1
    assert jobs.duration_s.min() >= 1
    assert (jobs.comm[jobs.instances == 1] == 0).all()
    gangs = jobs.comm[jobs.instances > 1]
    assert 0 < gangs.min() < gangs.max() < 1
    wanted = {ANY_TYPE} if not require_types else {ANY_TYPE, *machines.gpu_type.tolist()}
    assert set(jobs.gpu_type.tolist()) == wanted


def test_generated_jobs_fit_the_oddest_machines() -> None:
    machines = [
        {"count": 1, "gpus": 1, "gpu": "T4", "cpus": 64},
        {"count": 1, "gpus": 2, "gpu": "K80", "cpus": 1},
    ]
    jobs = draw(machines=machines, jobs=2000, require_types=True)
    settings = GpuSchedulingSettings.model_validate({"machines": machines})
    assert (room(jobs, build_cluster(settings)) >= jobs.instances).all()
    assert set(jobs.gpu_type.tolist()) == {ANY_TYPE, type_names(settings).index("T4")}


def test_room_counts_instances_by_both_resources_and_type() -> None:
    settings = GpuSchedulingSettings.model_validate(
        {
            "machines": [
                {"count": 2, "gpus": 4, "gpu": "V100", "cpus": 6},
                {"count": 1, "gpus": 1, "gpu": "T4", "cpus": 64},
            ]
        }
    )
    toy = draw(workload="toy", arrivals="trace")
    assert room(toy, build_cluster(settings)).tolist() == [9, 14, 7, 14, 9]
    t4 = type_names(settings).index("T4")
    on_t4 = toy._replace(gpu_type=np.full(5, t4))
    assert room(on_t4, build_cluster(settings)).tolist() == [1, 2, 1, 2, 1]


def test_a_job_larger_than_the_cluster_is_refused_by_name() -> None:
    told = "job 2 asks for 2 x 1 GPU and 2 cores; the empty cluster holds 1 of these"
    with pytest.raises(InputError, match=re.escape(told) + ".*oversized=skip or queue"):
        draw(workload="toy", arrivals="trace", **ONE_GPU)


def test_or_it_is_left_out_or_left_in_the_queue_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="job 2 .*, and 1 more like it: left out"):
        jobs = draw(workload="toy", arrivals="trace", oversized="skip", **ONE_GPU)
    assert jobs.job_id.tolist() == [0, 1, 3]
    with pytest.warns(UserWarning, match="job 2 .*: left in the queue for ever"):
        jobs = draw(workload="toy", arrivals="trace", oversized="queue", **ONE_GPU)
    assert jobs.job_id.tolist() == [0, 1, 2, 3, 4]


def test_when_nothing_is_left_the_cluster_is_to_blame() -> None:
    nothing = {"machines": [{"count": 1, "gpus": 1, "gpu": "V100", "cpus": 1}]}
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(InputError, match=r"job 2 .*no other job is left; expected a larger"),
    ):
        draw(1, workload="toy", arrivals="trace", jobs=1, oversized="skip", **nothing)


def test_a_generated_gang_takes_a_quarter_of_the_cluster_at_most() -> None:
    settings = GpuSchedulingSettings(jobs=20_000)
    machines = build_cluster(settings)
    jobs = draw_jobs(settings, load_workload(settings), machines, np.random.default_rng(4))
    gangs = jobs.instances > 1
    assert (4 * jobs.instances[gangs] <= room(jobs, machines)[gangs]).all()
    assert (jobs.gpu[gangs] * jobs.instances[gangs]).max() == machines.gpu_capacity.sum() // 4
