"""Workloads read from traces."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.arrivals import draw_jobs
from loadmaster.envs.gpu_scheduling.cluster import build_cluster, type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, GpuType
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from tests.traces import needs_traces

PAI = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user"
PHILLY = "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def read(workload: str, data: Path | None, types: bool = True) -> Jobs:
    settings = GpuSchedulingSettings(
        workload=workload, data=data, arrivals="trace", cluster="large", require_types=types
    )
    source = load_workload(settings)
    return draw_jobs(settings, source, build_cluster(settings), np.random.default_rng(0))


def check(jobs: Jobs, **columns: list[int]) -> None:
    for name, expected in columns.items():
        assert getattr(jobs, name).tolist() == expected, name


def test_pai_jobs_are_read_as_by_its_simulator(tmp_path: Path) -> None:
    path = write(
        tmp_path / "jobs.csv",
        PAI,
        "9,1,700,6.0,0.5,T4,36.9,ann",
        "7,4,100,0.05,1.0,MISC,0,",
        "8,1,700,18.0,2,V100,180,ann",
        "5,1,50,4,0,CPU,10,bob",  # no GPU: left out, whatever its type
    )
    jobs = read("pai", path)
    names = type_names(GpuSchedulingSettings())
    check(
        jobs,
        job_id=[7, 8, 9],
        arrival_s=[0, 600, 600],
        duration_s=[1, 180, 36],
        instances=[4, 1, 1],
        gpu=[100, 200, 50],
        cpu=[5, 1800, 600],
        gpu_type=[ANY_TYPE, names.index("V100"), names.index("T4")],
        user=[0, 1, 1],
    )
    assert 0 < jobs.comm[0] < 1
    assert jobs.comm[1:].tolist() == [0, 0]
    assert read("pai", path, types=False).gpu_type.tolist() == [ANY_TYPE] * 3
    source = load_workload(GpuSchedulingSettings(workload="pai", data=path))
    assert source.description == "3 jobs of jobs.csv; left out: 1 without a GPU"


def test_philly_minutes_and_gpus_become_seconds_and_instances(tmp_path: Path) -> None:
    path = write(
        tmp_path / "philly.csv.gz",
        PHILLY,
        "0,vc_1,8,30,5049,vgg16,747,14",
        "1,vc_2,1,20,296,mobilenet_v2,98,8",
        "2,vc_1,0,10,296,alexnet,98,8",
        "3,vc_1,2,20,296,a_new_network,20,8",
    )
    jobs = read("philly", path)
    check(
        jobs,
        job_id=[1, 3, 0],
        arrival_s=[0, 0, 600],
        duration_s=[5880, 1200, 44820],
        instances=[1, 2, 8],
        gpu=[100] * 3,
        cpu=[600] * 3,
        user=[0, 1, 1],
    )
    assert jobs.comm[0] == 0
    assert 0 < jobs.comm[1] < 1
    assert jobs.comm[2] == 0.6


def test_openb_pods_run_from_scheduled_to_deleted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "pods.csv",
        OPENB,
        "pod-0,12000,16384,1,465,,LS,Running,0,500,10",
        "pod-1,6000,12288,8,1000,V100M16|V100M32,BE,Running,7,9,9",
        "pod-2,6000,12288,1,1000,T4,BE,Failed,7,30,9",
        "pod-3,6000,12288,1,1000,,BE,Pending,7,9,",
        "pod-4,6000,12288,0,0,,LS,Running,7,9,8",
    )
    jobs = read("openb", path)
    names = type_names(GpuSchedulingSettings())
    check(
        jobs,
        job_id=[0, 1, 2],
        arrival_s=[0, 7, 7],
        duration_s=[490, 1, 21],
        gpu=[47, 800, 100],
        cpu=[1200, 600, 600],
        gpu_type=[ANY_TYPE, ANY_TYPE, names.index("T4")],
        user=[0, 1, 1],
    )
    source = load_workload(GpuSchedulingSettings(workload="openb", data=path))
    assert "1 without a GPU, 1 never scheduled" in source.description


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,1,0,6,1,T4,-5,u", "line 3: duration '-5'; expected .* 0 or more"),
        ("1,1,0,6,1,T4,soon,u", "line 3: duration 'soon'"),
        ("1,1,0,6,1,T4,nan,u", "line 3: duration 'nan'"),
        ("1,1,0,6,1,T4,,u", "line 3: duration ''"),
        ("1,1,-3,6,1,T4,5,u", "line 3: submit_time '-3'"),
        ("1,0,0,6,1,T4,5,u", "line 3: num_inst '0'; expected .* 1 or more"),
        ("1,1.5,0,6,1,T4,5,u", "line 3: num_inst '1.5'; expected a whole number"),
        ("1,1,0,6,1,T5,5,u", "line 3: gpu_type 'T5'; expected .*T4, K80"),
        ("1,1,0,6,1,T4,5", "line 3: 7 fields; expected 8"),
        ("9,1,9,6,1,T4,5,u", "job 9"),
    ],
)
def test_bad_row_is_refused_by_line_and_column(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "jobs.csv", PAI, "9,1,0,6,1,T4,5,u", line)
    with pytest.raises(InputError, match=message) as caught:
        read("pai", path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_custom_gpu_type_is_known_in_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.csv", PAI, "1,1,0,6,1,H100,5,u")
    own = GpuType(name="H100", speed=4, price_per_hour=7)
    settings = GpuSchedulingSettings(workload="pai", data=path, gpu_types=(own,))
    jobs = load_workload(settings).draw(1, True, np.random.default_rng(0))
    assert type_names(settings)[jobs.gpu_type[0]] == "H100"


ROW = "1,1,0,6,1,T4,5,u"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{PAI}\n{ROW}\n1,1,9,6,1,T4,5,u\n".encode(), "job 1 occurs twice"),
        (f"{PAI}\n1,1,0,6,0,T4,5,u\n".encode(), "no GPU jobs"),
        (f"{PAI}\n".encode(), "no GPU jobs"),
        (b"", "no column 'job_id'"),
        (f"{PAI.replace(',duration', '')}\n1,1,0,6,1,T4,u\n".encode(), "no column 'duration'"),
        (f"{PAI}\n{ROW}".encode() + b"\xff\n", "unreadable or damaged"),
        (f'{PAI}\n"{ROW}\n'.encode(), "jobs.csv"),  # a quote that is not closed
    ],
)
def test_bad_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read("pai", path)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_missing_file_and_negative_run_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(PAI.encode() * 1000)[:60])
    with pytest.raises(InputError, match=r"damaged\.csv\.gz: unreadable or damaged"):
        read("pai", damaged)
    backwards = write(tmp_path / "b.csv", OPENB, "pod-0,1,1,1,465,,LS,Running,0,5,10")
    with pytest.raises(InputError, match=r"line 2: deletion_time '5'; expected .*10"):
        read("openb", backwards)
    with pytest.raises(InputError, match="expected alibaba_gpu/philly"):
        read("philly", tmp_path)


@pytest.mark.parametrize("workload", ["pai", "philly", "openb"])
def test_missing_folder_is_refused(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    with pytest.raises(InputError, match="data=FOLDER or in LOADMASTER_DATA"):
        read(workload, None)
    with pytest.raises(InputError, match=r"data: no file or folder .*nowhere"):
        read(workload, tmp_path / "nowhere")


def test_data_may_be_file_or_any_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alibaba_gpu" / "v2020" / "pai_jobs_recovered_sample.csv"
    write(file, PAI, "1,1,0,6,1,T4,5,u")
    for folder in (tmp_path, file.parents[1], file.parent, file):
        assert read("pai", folder).job_id.tolist() == [1]
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    assert read("pai", None).job_id.tolist() == [1]


@needs_traces
@pytest.mark.parametrize(
    ("workload", "jobs", "mean_s", "mean_gpus"),
    [("pai", 3046, 4773.2, 0.67), ("philly", 30_756, 15_657, 1.39), ("openb", 6203, 30_851, 0.88)],
)
def test_public_traces(workload: str, jobs: int, mean_s: float, mean_gpus: float) -> None:
    read_in = read(workload, Path(os.environ["LOADMASTER_DATA"]), types=False)
    assert len(read_in.job_id) == jobs
    assert read_in.duration_s.mean() == pytest.approx(mean_s, rel=0.01)
    each = gpu_seconds(read_in) / read_in.duration_s
    assert each.mean() == pytest.approx(mean_gpus, abs=0.01)
