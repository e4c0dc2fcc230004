"""Machine tables built from the settings; jobs of an episode and their arrival times."""

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs, mean_gap_s
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster, capacity
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import CLUSTERS, GPU_TYPES, GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

TOY: dict[str, Any] = {"workload": "toy", "arrivals": "trace"}
NAMES = list(GPU_TYPES)
T4 = NAMES.index("T4")


def machines(count: int, gpus: int, gpu: str, cpus: int, **racks: int) -> dict[str, Any]:
    return {"count": count, "gpus": gpus, "gpu": gpu, "cpus": cpus, **racks}


ONE_GPU = {"machines": [machines(1, 1, "V100", 8)]}


def settings_of(**values: Any) -> GpuSchedulingSettings:
    return GpuSchedulingSettings.model_validate(values)


def draw(seed: int = 0, **values: Any) -> Jobs:
    return draw_with_cluster(seed, **values)[0]


def draw_with_cluster(seed: int = 0, **values: Any) -> tuple[Jobs, Cluster]:
    settings = settings_of(**values)
    cluster, rng = build_cluster(settings), np.random.default_rng(seed)
    return draw_jobs(settings, load_workload(settings), cluster, rng), cluster


def test_load_and_jobs_depend_on_cluster() -> None:
    small, medium, large = (settings_of(cluster=name) for name in CLUSTERS)
    assert small.drawn_jobs < medium.drawn_jobs < large.drawn_jobs
    assert small.offered_load > 1 > large.offered_load > medium.offered_load
    given = settings_of(cluster="large", jobs=7, load=2)
    assert (given.drawn_jobs, given.offered_load) == (7, 2)


def test_groups_become_consecutive_machines() -> None:
    groups = [machines(3, 2, "P100", 10, machines_per_rack=2), machines(1, 8, "T4", 96)]
    cluster = build_cluster(settings_of(machines=groups))
    assert cluster.gpu_capacity.tolist() == [200, 200, 200, 800]
    assert cluster.cpu_capacity.tolist() == [1000, 1000, 1000, 9600]
    assert [NAMES[number] for number in cluster.gpu_type] == ["P100", "P100", "P100", "T4"]
    assert cluster.speed.tolist() == [0.76, 0.76, 0.76, 0.4]
    assert cluster.price_per_s == pytest.approx([1.46 / 3600] * 3 + [0.35 / 3600])
    assert cluster.rack.tolist() == [0, 0, 1, 2]  # a group starts a new rack
    assert "".join(column.dtype.kind for column in cluster) == "iiiffi"


def test_custom_gpu_types_are_added_or_replaced() -> None:
    groups = [machines(1, 1, gpu, 8) for gpu in ("H100", "V100")]
    own = {"name": "H100", "speed": 4.0}
    free = {"name": "V100", "speed": 1.0, "price_per_hour": 0.0}
    settings = settings_of(machines=groups, gpu_types=[{**own, "price_per_hour": 7.2}, free])
    cluster = build_cluster(settings)
    assert list(settings.known_gpu_types) == [*NAMES, "H100"]  # numbers stay
    assert cluster.gpu_type.tolist() == [len(NAMES), NAMES.index("V100")]
    assert cluster.price_per_s.tolist() == [7.2 / 3600, 0.0]
    with pytest.raises(InputError, match="'H100' has no price"):
        build_cluster(settings_of(machines=groups, gpu_types=[own]))


@pytest.mark.parametrize(
    ("values", "arrival_s"),
    [
        ({"arrivals": "trace"}, [0, 0, 1, 2, 3]),
        ({"arrivals": "batch"}, [0, 0, 0, 0, 0]),
        ({"arrivals": "per-minute", "jobs_per_minute": 2}, [0, 0, 60, 60, 120]),
    ],
)
def test_toy_arrivals(values: dict[str, Any], arrival_s: list[float]) -> None:
    jobs = draw(workload="toy", **values)
    assert jobs.arrival_s.tolist() == arrival_s
    assert jobs.job_id.tolist() == [0, 1, 2, 3, 4]  # ids break ties
    assert jobs.user.tolist() == [0, 1, 0, 1, 0]
    assert gpu_seconds(jobs).tolist() == [10, 2, 12, 1, 32]


def test_fewer_jobs_are_consecutive_or_a_sample() -> None:
    consecutive = {tuple(draw(seed, **TOY, jobs=2).job_id.tolist()) for seed in range(30)}
    assert consecutive == {(0, 1), (1, 2), (2, 3), (3, 4)}
    sample = {frozenset(draw(seed, workload="toy", jobs=2).job_id.tolist()) for seed in range(80)}
    assert len(sample) == 10  # all pairs of five


@pytest.mark.parametrize(
    # 57 GPU seconds in five jobs: at load 0.57 of one V100, the mean gap is 20 s.
    ("values", "factor"), [({"load": 0.57}, 80 / 3), ({"interarrival_s": 3.0}, 4)]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:job 2")
def test_load_scales_arrivals_of_trace(values: dict[str, float], factor: float) -> None:
    jobs = draw(**values, **ONE_GPU, **TOY, oversized="queue")
    assert jobs.arrival_s == pytest.approx(np.array([0, 0, 1, 2, 3]) * factor)


@pytest.mark.parametrize("arrivals", ["poisson", "trace"])
@pytest.mark.parametrize("cluster", ["small", "large"])
def test_generated_jobs_have_requested_load(cluster: str, arrivals: str) -> None:
    values = {"cluster": cluster, "arrivals": arrivals, "load": 0.7, "jobs": 40_000}
    jobs, table = draw_with_cluster(3, **values)
    available = (table.gpu_capacity / 100 * table.speed).sum() * jobs.arrival_s[-1]
    assert gpu_seconds(jobs).sum() / available == pytest.approx(0.7, rel=0.12)  # heavy tails
    settings = settings_of(**values)
    gap = mean_gap_s(settings, load_workload(settings), table)
    assert np.diff(jobs.arrival_s).mean() == pytest.approx(gap, rel=0.02)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(draw(interarrival_s=30.0, jobs=20_000).arrival_s)
    figures = gaps.mean(), gaps.std(), np.median(gaps)
    assert figures == pytest.approx((30, 30, 30 * np.log(2)), rel=0.03)


@pytest.mark.parametrize("arrivals", ["poisson", "trace", "batch", "per-minute"])
def test_jobs_are_sorted_and_depend_on_seed_only(arrivals: str) -> None:
    first, again, other = (draw(seed, arrivals=arrivals) for seed in (1, 1, 2))
    for column, same in zip(first, again, strict=True):
        assert np.array_equal(column, same)
    assert not np.array_equal(first.duration_s, other.duration_s)
    assert first.arrival_s[0] == 0
    assert np.lexsort((first.job_id, first.arrival_s)).tolist() == list(range(200))
    floats = {"arrival_s", "duration_s", "comm"}
    for name, column in first._asdict().items():
        assert column.dtype == (np.float64 if name in floats else np.int64), name
        assert column.shape == (200,)
        assert column.flags.c_contiguous


@pytest.mark.parametrize("cluster", ["small", "medium", "large"])
@pytest.mark.parametrize("require_types", [False, True])
def test_generated_jobs_fit_and_gangs_take_a_quarter(cluster: str, require_types: bool) -> None:
    jobs, table = draw_with_cluster(9, cluster=cluster, require_types=require_types, jobs=20_000)
    fit, gangs = capacity(jobs, table), jobs.instances > 1
    assert (fit >= jobs.instances).all()
    assert (4 * jobs.instances <= fit)[gangs].all()
    if not require_types and cluster == "small":
        assert (jobs.gpu * jobs.instances)[gangs].max() == table.gpu_capacity.sum() // 4
    assert jobs.gpu.min() >= 1
    assert jobs.duration_s.min() >= 1
    assert (jobs.comm[~gangs] == 0).all()
    assert 0 < jobs.comm[gangs].min() < jobs.comm[gangs].max() < 1
    wanted = {ANY_TYPE} if not require_types else {ANY_TYPE, *table.gpu_type.tolist()}
    assert set(jobs.gpu_type.tolist()) == wanted


def test_generated_jobs_fit_unusual_machines() -> None:
    groups = [machines(1, 1, "T4", 64), machines(1, 2, "K80", 1)]
    jobs, table = draw_with_cluster(machines=groups, jobs=2000, require_types=True)
    assert (capacity(jobs, table) >= jobs.instances).all()
    assert set(jobs.gpu_type.tolist()) == {ANY_TYPE, T4}


def test_capacity_counts_resources_and_type() -> None:
    groups = [machines(2, 4, "V100", 6), machines(1, 1, "T4", 64)]
    toy, table = draw_with_cluster(**TOY, machines=groups)
    assert capacity(toy, table).tolist() == [9, 14, 7, 14, 9]
    on_t4 = toy._replace(gpu_type=np.full(5, T4))
    assert capacity(on_t4, table).tolist() == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"jobs": 6}, "setting jobs: 6; .* 5 of workload 'toy'"),
        (ONE_GPU, "job 2 requests 2 x 1 GPU and 2 cores; the empty cluster holds 1"),
        ({**ONE_GPU, "oversized": "skip", "jobs": 1}, r"job 4 .*no other job"),
    ],
)
def test_impossible_jobs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(0, **TOY, **values)


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
