"""Workloads read from traces."""

from __future__ import annotations

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
from loadmaster.envs.gpu_scheduling.workloads.pai_like import typical_share
from tests.traces import needs_traces

HEADERS = {
    "pai": "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user",
    "philly": "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time",
}
PAI_ROW = "1,1,0,6,1,T4,5,u"
T4, V100 = (list(GPU_TYPES).index(name) for name in ("T4", "V100"))


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
            (
                "9,1,700,6.0,0.5,T4,36.9,ann",
                "7,4,100,0.05,1.0,MISC,0,",
                "8,1,700,18.0,2,V100,180,ann",
                "5,1,50,4,0,CPU,10,bob",  # no GPU: left out, whatever its type
            ),
            "1 without a GPU",
            {
                "job_id": [7, 8, 9],
                "arrival_s": [0, 600, 600],
                "duration_s": [1, 180, 36],
                "instances": [4, 1, 1],
                "gpu": [100, 200, 50],
                "cpu": [5, 1800, 600],
                "gpu_type": [ANY_TYPE, V100, T4],
                "comm": [typical_share("pai/7"), 0, 0],
                "user": [0, 1, 1],
            },
        ),
        (
            "philly",
            "philly.csv.gz",
            (
                "0,vc_1,8,30,5049,vgg16,747,14",
                "1,vc_2,1,20,296,mobilenet_v2,98,8",
                "2,vc_1,0,10,296,alexnet,98,8",
                "3,vc_1,2,20,296,a_new_network,20,8",
            ),
            "1 without a GPU",
            {
                "job_id": [1, 3, 0],
                "arrival_s": [0, 0, 600],
                "duration_s": [5880, 1200, 44820],
                "instances": [1, 2, 8],
                "gpu": [100] * 3,
                "cpu": [600] * 3,
                "comm": [0, typical_share("philly/a_new_network"), 0.6],
                "user": [0, 1, 1],
            },
        ),
        (
            "openb",
            "pods.csv",
            (
                "pod-0,12000,16384,1,465,,LS,Running,0,500,10",
                "pod-1,6000,12288,8,1000,V100M16|V100M32,BE,Running,7,9,9",
                "pod-2,6000,12288,1,1000,T4,BE,Failed,7,30,9",
                "pod-3,6000,12288,1,1000,,BE,Pending,7,9,",
                "pod-4,6000,12288,0,0,,LS,Running,7,9,8",
            ),
            "1 without a GPU, 1 never scheduled",
            {
                "job_id": [0, 1, 2],
                "arrival_s": [0, 7, 7],
                "duration_s": [490, 1, 21],
                "gpu": [47, 800, 100],
                "cpu": [1200, 600, 600],
                "gpu_type": [ANY_TYPE, ANY_TYPE, T4],
                "user": [0, 1, 1],
            },
        ),
    ],
    ids=list(HEADERS),
)
def test_rows_become_jobs(
    tmp_path: Path,
    workload: str,
    file: str,
    rows: tuple[str, ...],
    left_out: str,
    expected: dict[str, list[float]],
) -> None:
    path = write(tmp_path / file, workload, *rows)
    jobs = read(workload, path)
    assert {name: getattr(jobs, name).tolist() for name in expected} == expected
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
    with pytest.raises(InputError, match=message) as caught:
        read(workload, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_custom_gpu_type_is_known_in_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.csv", "pai", "1,1,0,6,1,H100,5,u")
    types = [{"name": "H100", "speed": 4, "price_per_hour": 7}]
    machines = [{"count": 1, "gpus": 1, "gpu": "H100", "cpus": 8}]
    assert read("pai", path, gpu_types=types, machines=machines).gpu_type == len(GPU_TYPES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data=FOLDER or in LOADMASTER_DATA"),
        ("nowhere", r"data: no file or folder .*nowhere"),
        (".", "expected alibaba_gpu/philly"),
    ],
)
def test_missing_data_is_refused(
    data: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    with pytest.raises(InputError, match=message):
        read("philly", None if data is None else tmp_path / data)


def test_data_may_be_file_or_any_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alibaba_gpu" / "v2020" / "pai_jobs_recovered_sample.csv"
    write(file, "pai", PAI_ROW)
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    for data in (tmp_path, file.parents[1], file.parent, file, None):
        assert read("pai", data).job_id.tolist() == [1]


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
