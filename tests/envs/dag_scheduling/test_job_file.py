"""Workload `jobs` of DAGs: what is written is read again, and bad lines are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, Job, RecordedJob, Stage
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import alibaba, load_workload
from loadmaster.envs.dag_scheduling.workloads.job_file import read_jobs, write_lines
from loadmaster.envs.errors import InputError

STAGES = (
    Stage(3, (), {1: [30]}, {1: [20, 10]}, {1: [50]}, cpu=0.5),
    Stage(1, (0,), {1: [7]}),
)
JOBS = [RecordedJob(0.0, Job("a", STAGES)), RecordedJob(1.5, Job("b", STAGES[:1]))]
STAGE: dict[str, Any] = {"tasks": 1, "parents": [], "first_ms": [5]}


def test_written_jobs_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(write_lines(JOBS)))
    assert read_jobs(path) == JOBS
    for data in (tmp_path, path):
        workload = load_workload(DagSchedulingSettings(workload="jobs", data=data))
        assert (workload.name, workload.job_names) == ("jobs", ("a", "b"))
        assert workload.bank.tasks.tolist() == [3, 1, 3]
        assert workload.bank.parent.tolist() == [0]
        bank = workload.bank
        lists = [
            bank.durations_ms[bank.wave_first[0, wave, 0] :][: bank.wave_count[0, wave, 0]].tolist()
            for wave in (FRESH, FIRST, REST)
        ]
        assert lists == [[50], [30], [20, 10]]
        assert bank.cold_start[:, 0].tolist() == [0, 1, 0]
        assert bank.demand[0].tolist() == [0.5, 0.0]


def test_alibaba_jobs_have_their_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "batch_task.csv"
    rows = ["R2_1,3,j_1,1,Terminated,110,130,50,0.1", "M1,2,j_1,1,Terminated,100,110,100,0.2"]
    path.write_text("\n".join(rows) + "\n")
    (recorded,), left_out = alibaba.read_jobs(path)
    assert (recorded.arrival_s, recorded.job.name, left_out) == (100.0, "j_1", "")
    assert [(each.tasks, each.parents) for each in recorded.job.stages] == [(3, (1,)), (2, ())]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        (json.dumps({"name": "a"}), "stages"),
        (json.dumps({"name": 3, "stages": [STAGE]}), "name 3"),
        (json.dumps({"name": "a", "stages": []}), "at least one"),
        (json.dumps({"name": "a", "stages": [STAGE], "x": 1}), "'x'"),
        (json.dumps({"name": "a", "stages": [STAGE], "arrival_s": -1}), "arrival_s -1"),
        (json.dumps({"name": "a", "stages": [{**STAGE, "tasks": 1.5}]}), "tasks 1.5"),
        (json.dumps({"name": "a", "stages": [{**STAGE, "parents": ["0"]}]}), "parents ['0']"),
        (json.dumps({"name": "a", "stages": [{**STAGE, "first_ms": [-1]}]}), "first_ms"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(write_lines(JOBS)) + line + "\n")
    with pytest.raises(InputError) as raised:
        read_jobs(path)
    text = str(raised.value)
    assert text.startswith(f"{path}, line 3: ")
    assert named in text


@pytest.mark.parametrize(
    "stage", [{**STAGE, "parents": [3]}, {**STAGE, "tasks": 0}, {"tasks": 1, "parents": []}]
)
def test_jobs_that_cannot_run_are_refused(tmp_path: Path, stage: dict[str, Any]) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps({"name": "a", "stages": [stage]}) + "\n")
    with pytest.raises(InputError, match="job 'a'"):
        load_workload(DagSchedulingSettings(workload="jobs", data=path))
