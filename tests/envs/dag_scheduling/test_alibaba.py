"""Import of the Alibaba 2018 batch trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from tests.traces import needs_traces

HEADER = "task_name,instance_num,job_name,task_type,status,start_time,end_time,plan_cpu,plan_mem"
JOB_1 = (
    "J3_1_2,4.0,j_1,1,Terminated,30,45,100.0,0.5",
    "M1,2.0,j_1,1,Terminated,10,20,50.0,0.2",
    "M2,1.0,j_1,1,Terminated,10,10,100.0,1.0",
    "R4_3_Stg1,1.0,j_1,1,Terminated,45,46,,",
)
JOB_2 = (
    "task_abc123,3.0,j_2,1,Terminated,0,7,200.0,0.4",
    "MergeTask,1.0,j_2,1,Terminated,0,2,100.0,0.4",
)


def load(path: Path) -> Workload:
    return load_workload(DagSchedulingSettings(workload="alibaba", data=path))


def write(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *rows) if header else rows) + "\n")
    return path


def test_names_give_dags_and_instances_give_tasks(tmp_path: Path) -> None:
    workload = load(write(tmp_path / "t.csv", *JOB_1, *JOB_2))
    bank = workload.bank
    assert workload.job_names == ("j_1", "j_2")
    assert workload.description == "2 jobs of t.csv"
    assert bank.first_stage.tolist() == [0, 4, 6]
    assert bank.tasks.tolist() == [4, 2, 1, 1, 3, 1]
    parents = [
        bank.parent[a:b].tolist()
        for a, b in zip(bank.parent_first[:-1], bank.parent_first[1:], strict=True)
    ]
    # J3 comes first in the file, so M1 and M2 are stages 1 and 2; other names have no parents.
    assert parents == [[1, 2], [], [], [0], [], []]
    assert bank.mean_ms.tolist() == [15000, 10000, 500, 1000, 7000, 2000]
    assert not bank.cold_start.any()
    np.testing.assert_allclose(bank.demand[:, 0], [0.5, 0.25, 0.5, 0, 1, 0.5])
    np.testing.assert_allclose(bank.demand[:, 1], [0.5, 0.2, 1, 0, 0.4, 0.4])


def test_file_may_be_compressed_in_a_folder_and_without_header(tmp_path: Path) -> None:
    (tmp_path / "alibaba2018").mkdir()
    packed = tmp_path / "alibaba2018" / "batch_task_few.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(JOB_1).encode()))
    assert load(tmp_path).job_names == ("j_1",)
    assert load(tmp_path / "alibaba2018") is load(packed)  # read once a process


def test_jobs_without_known_dag_or_durations_are_left_out_and_counted(tmp_path: Path) -> None:
    cut = ("J30_" + "_".join(str(n) for n in range(1, 30)))[:50]
    workload = load(
        write(
            tmp_path / "t.csv",
            *JOB_1,
            "M1,1.0,running,1,Running,5,0,100,0.5",
            "M1,,waiting,1,Waiting,0,0,,",
            "M1,1.0,backwards,1,Terminated,9,8,100,0.5",
            "R2_1,1.0,orphan,1,Terminated,0,1,100,0.5",
            "M1,1.0,twice,1,Terminated,0,1,100,0.5",
            "R1,1.0,twice,1,Terminated,0,1,100,0.5",
            f"{cut},1.0,cut,1,Terminated,0,1,100,0.5",
        )
    )
    assert workload.job_names == ("j_1",)
    assert workload.description == (
        "1 jobs of t.csv; left out: 3 with unfinished tasks, 1 that wait for a task not in the "
        "file, 1 with two tasks of one number, 1 with names cut at 50 characters"
    )


@pytest.mark.parametrize(
    ("rows", "header", "problem"),
    [
        (JOB_1, HEADER.replace(",plan_mem", ""), "no column 'plan_mem'"),
        (("nonsense",), "", "line 1: 1 fields"),
        ((*JOB_1, "M1,two,j_3,1,Terminated,0,1,1,1"), HEADER, "line 6: instance_num 'two'"),
        ((*JOB_1, "M1,2,j_3,1,Terminated,0,soon,1,1"), HEADER, "line 6: end_time 'soon'"),
        ((*JOB_1, "M1,2,j_3,1,Terminated,0,1,-1,1"), HEADER, "line 6: plan_cpu '-1'"),
        (("M1,0.0,j_3,1,Terminated,0,1,1,1",), HEADER, "'j_3': stage 0 has 0 tasks"),
        (("M1,1e300,j_3,1,Terminated,0,1,1,1",), HEADER, "'j_3': stage 0 has 1"),
        (("M1,1,j_3,1,Terminated,0,9999999,1,1",), HEADER, "'j_3': stage 0 has a task duration"),
        (("M1,1,j_3,1,Terminated,0,1e308,1,1",), HEADER, "'j_3': stage 0 has a task duration"),
        (("R1_1,1,j_3,1,Terminated,0,1,1,1",), HEADER, "'j_3' is cyclic"),
        ((), HEADER, "no usable job .the file is empty"),
        (("M1,,j_3,1,Waiting,0,0,,",), HEADER, "no usable job .1 with unfinished tasks"),
    ],
)
def test_malformed_files_are_refused_in_one_line(
    tmp_path: Path, rows: tuple[str, ...], header: str, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as refusal:
        load(write(tmp_path / "trace.csv", *rows, header=header))
    assert "\n" not in str(refusal.value)


def test_folder_without_or_with_several_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace found"):
        load(tmp_path)
    for name in ("batch_task_a.csv", "batch_task_b.csv"):
        write(tmp_path / name, *JOB_1)
    with pytest.raises(InputError, match="2 traces"):
        load(tmp_path)


@needs_traces
def test_real_trace_loads() -> None:
    workload = load_workload(DagSchedulingSettings(workload="alibaba"))
    assert len(workload.job_names) == 1881  # of 2,120
    assert "197 with names cut" in workload.description
    assert "42 with unfinished tasks" in workload.description
    assert workload.bank.demand.max(axis=0).tolist() == [1, 1]
    assert workload.stages_max == 203
