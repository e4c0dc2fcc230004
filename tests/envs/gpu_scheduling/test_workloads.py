"""Workloads: the generator compared with published statistics, and public traces."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.gpu_scheduling.workloads.pai_like import generate, typical_share
from tests.traces import needs_traces

TYPES = tuple(GPU_TYPES)


@pytest.fixture(scope="module")
def many() -> Jobs:
    return generate(200_000, TYPES, np.random.default_rng(11))


def test_durations_and_requests_match_published(many: Jobs) -> None:
    assert many.duration_s.mean() == pytest.approx(5223, rel=0.03)
    quantiles = np.quantile(many.duration_s, [0.5, 0.95, 0.99])
    assert quantiles == pytest.approx([594, 24_110, 67_432], rel=0.05)
    assert many.instances.mean() == pytest.approx(5.0, abs=0.2)
    assert many.instances.max() == 512
    assert many.gpu.mean() == pytest.approx(68, abs=2)
    assert (many.gpu == 100).mean() == pytest.approx(0.451, abs=0.005)
    assert (many.gpu < 100).mean() == pytest.approx(0.525, abs=0.005)
    for name, jobs in {"T4": 25_484, "P100": 5_023, "V100": 2_361}.items():
        share = (many.gpu_type == TYPES.index(name)).mean()
        assert share == pytest.approx(jobs / 82_184, abs=0.003), name
    assert (many.gpu_type == ANY_TYPE).mean() == pytest.approx(49_316 / 82_184, abs=0.005)


def test_hourly_arrivals_match_published(many: Jobs) -> None:
    hours = np.bincount((many.arrival_s // 3600).astype(np.int64))[:-1]
    quartiles = np.quantile(hours, [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([318, 421, 545], rel=0.06)
    # The published peak is that of 184 hours.
    assert np.quantile(hours, 1 - 1 / 184) == pytest.approx(1350, rel=0.15)
    whole_days = np.log(hours[: len(hours) // 24 * 24])
    turn = np.exp(2j * np.pi * np.arange(len(whole_days)) / 24)
    assert 2 * abs((whole_days * turn).mean()) == pytest.approx(0.15, abs=0.06)  # the daily wave


def test_durations_depend_on_user_and_request(many: Jobs) -> None:
    share = np.sort(np.bincount(many.user))[::-1] / len(many.user)
    assert share[[0, 1, 99]] == pytest.approx([0.155, 0.103, 0.0008], rel=0.15)
    rank = np.argsort(np.argsort(many.duration_s)).astype(np.float64)
    count = np.bincount(many.user)
    mean = np.bincount(many.user, rank) / np.maximum(count, 1)
    explained = 1 - ((rank - mean[many.user]) ** 2).mean() / rank.var()
    assert 0.3 < explained < 0.55  # 0.43 in the sample

    def middle(of: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        return float(np.median(many.duration_s[of]))

    assert middle(many.instances > 1) > 1.3 * middle(many.instances == 1)
    assert middle(many.gpu < 100) > 1.3 * middle(many.gpu >= 100)


def test_generated_jobs_are_stable_across_releases() -> None:
    jobs = generate(3, TYPES, np.random.default_rng(2024))
    assert jobs.duration_s.tolist() == [1248, 1093, 30]
    assert jobs.instances.tolist() == [1, 16, 1]
    assert jobs.gpu.tolist() == [25, 100, 100]
    assert jobs.cpu.tolist() == [600, 1800, 600]


@needs_traces
def test_generator_resembles_trace(many: Jobs) -> None:
    """Quantiles of jobs of one instance: the sample has no others."""
    workload = load_workload(GpuSchedulingSettings(workload="pai"))
    sample = workload.draw(3046, True, np.random.default_rng(0))
    alone = many.instances == 1
    at = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    ratio = np.quantile(many.duration_s[alone], at) / np.quantile(sample.duration_s, at)
    # The generator's mean and upper quantiles include gangs, so jobs of one instance are a little
    # shorter than in the sample.
    assert np.abs(np.log(ratio)).max() < np.log(1.8)
    assert np.abs(np.log(ratio)).mean() < np.log(1.35)
    for gpu in (25, 50, 100):
        assert (many.gpu == gpu).mean() == pytest.approx((sample.gpu == gpu).mean(), abs=0.02), gpu
    for cpu in (600, 1000, 1800):
        generated = (many.cpu[alone] == cpu).mean()
        assert generated == pytest.approx((sample.cpu == cpu).mean(), abs=0.02), cpu


# Traces.

HEADERS = {
    "pai": "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user",
    "philly": "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time",
}
PAI_ROW = "1,1,0,6,1,T4,5,u"
T4, V100 = (TYPES.index(name) for name in ("T4", "V100"))


def write(path: Path, workload: str, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([HEADERS[workload], *rows, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(workload: str, data: Path | None, **values: Any) -> Jobs:
    values = {"arrivals": "trace", "cluster": "large", "require_types": True, **values}
    settings = GpuSchedulingSettings(workload=workload, data=data, **values)
    source, cluster = load_workload(settings), build_cluster(settings)
    return draw_jobs(settings, source, cluster, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("workload", "file", "rows", "left_out", "expected"),
    [
        (
            "pai",
            "jobs.csv",
            [
                "9,1,700,6.0,0.5,T4,36.9,ann",
                "7,4,100,0.05,1.0,MISC,0,",
                "8,1,700,18.0,2,V100,180,ann",
                "5,1,50,4,0,CPU,10,bob",  # no GPU: left out, whatever its type
            ],
            "1 without a GPU",
            [
                (0, 1, 4, 100, 5, ANY_TYPE, typical_share("pai/7"), 0, 7),
                (600, 180, 1, 200, 1800, V100, 0, 1, 8),
                (600, 36, 1, 50, 600, T4, 0, 1, 9),
            ],
        ),
        (
            "philly",
            "philly.csv.gz",
            [
                "0,vc_1,8,30,5049,vgg16,747,14",
                "1,vc_2,1,20,296,mobilenet_v2,98,8",
                "2,vc_1,0,10,296,alexnet,98,8",
                "3,vc_1,2,20,296,a_new_network,20,8",
            ],
            "1 without a GPU",
            [
                (0, 5880, 1, 100, 600, ANY_TYPE, 0, 0, 1),
                (0, 1200, 2, 100, 600, ANY_TYPE, typical_share("philly/a_new_network"), 1, 3),
                (600, 44820, 8, 100, 600, ANY_TYPE, 0.6, 1, 0),
            ],
        ),
        (
            "openb",
            "pods.csv",
            [
                "pod-0,12000,16384,1,465,,LS,Running,0,500,10",
                "pod-1,6000,12288,8,1000,V100M16|V100M32,BE,Running,7,9,9",
                "pod-2,6000,12288,1,1000,T4,BE,Failed,7,30,9",
                "pod-3,6000,12288,1,1000,,BE,Pending,7,9,",
                "pod-4,6000,12288,0,0,,LS,Running,7,9,8",
            ],
            "1 without a GPU, 1 never scheduled",
            [
                (0, 490, 1, 47, 1200, ANY_TYPE, 0, 0, 0),
                (7, 1, 1, 800, 600, ANY_TYPE, 0, 1, 1),
                (7, 21, 1, 100, 600, T4, 0, 1, 2),
            ],
        ),
    ],
    ids=list(HEADERS),
)
def test_rows_become_jobs(
    tmp_path: Path, workload: str, file: str, rows: list[str], left_out: str, expected: list[Any]
) -> None:
    """A job is in the order of `Jobs`: arrival, duration, instances, GPU, CPU, type, ..."""
    path = write(tmp_path / file, workload, *rows)
    assert list(zip(*(column.tolist() for column in read(workload, path)), strict=True)) == expected
    assert (read(workload, path, require_types=False).gpu_type == ANY_TYPE).all()
    source = load_workload(GpuSchedulingSettings(workload=workload, data=path))
    assert source.description.endswith(f" of {file}; left out: {left_out}")


@pytest.mark.parametrize(
    ("workload", "rows", "message"),
    [
        ("pai", ["1,1,0,6,1,T4,-5,u"], "line 2: duration '-5'; expected .* 0 or more"),
        ("pai", ["1,1,-3,6,1,T4,5,u"], "line 2: submit_time '-3'"),
        ("pai", ["1,1.5,0,6,1,T4,5,u"], "line 2: num_inst '1.5'; expected a whole number"),
        ("pai", [PAI_ROW, "2,0,0,6,1,T4,5,u"], "line 3: num_inst '0'; expected .* 1 or more"),
        ("pai", ["1,1,0,6,1,T5,5,u"], "line 2: gpu_type 'T5'; expected .*T4, K80"),
        ("pai", [PAI_ROW, PAI_ROW], "job 1 occurs twice"),
        ("pai", ["1,1,0,6,0,T4,5,u"], "no GPU jobs"),
        ("pai", [], "no GPU jobs"),
        ("openb", ["p,1,1,1,4,,LS,Running,0,5,10"], "line 2: deletion_time '5'; expected .*10"),
    ],
)
def test_bad_rows_are_refused_in_one_line(
    tmp_path: Path, workload: str, rows: list[str], message: str
) -> None:
    path = write(tmp_path / "jobs.csv", workload, *rows)
    with pytest.raises(InputError, match=rf"\A{path}.*{message}.*\Z"):
        read(workload, path)


def test_custom_gpu_type_is_known_in_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.csv", "pai", "1,1,0,6,1,H100,5,u")
    types = [{"name": "H100", "speed": 4, "price_per_hour": 7}]
    machines = [{"count": 1, "gpus": 1, "gpu": "H100", "cpus": 8}]
    assert read("pai", path, gpu_types=types, machines=machines).gpu_type == len(GPU_TYPES)


def test_data_may_be_file_or_any_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alibaba_gpu" / "v2020" / "pai_jobs_recovered_sample.csv"
    write(file, "pai", PAI_ROW)
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    for data in (tmp_path, file.parents[1], file.parent, file, None):
        assert read("pai", data).job_id.tolist() == [1]
    with pytest.raises(InputError, match="expected alibaba_gpu/philly"):
        read("philly", tmp_path)


@needs_traces
@pytest.mark.parametrize(
    ("workload", "jobs", "mean_s", "mean_gpus"),
    [("pai", 3046, 4773.2, 0.67), ("philly", 30_756, 15_657, 1.39), ("openb", 6203, 30_851, 0.88)],
)
def test_public_traces(workload: str, jobs: int, mean_s: float, mean_gpus: float) -> None:
    read_in = read(workload, Path(os.environ["LOADMASTER_DATA"]), require_types=False)
    assert len(read_in.job_id) == jobs
    assert read_in.duration_s.mean() == pytest.approx(mean_s, rel=0.01)
    each = gpu_seconds(read_in) / read_in.duration_s
    assert each.mean() == pytest.approx(mean_gpus, abs=0.01)
