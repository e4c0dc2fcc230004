"""Versions of Spark, profiles from event logs, and the simulation of Spark's orders."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.spark_cluster import SparkJob, SparkStage
from loadmaster.platform.bench.engines.spark_replay import SUBMITTED, predict, read_run
from loadmaster.platform.bench.engines.spark_simulation import Steering, simulate
from loadmaster.platform.steering.spark.build import TESTED, find_spark, main, spark_version
from loadmaster.platform.steering.spark.durations import read_profile


def distribution(folder: Path, version: str | None) -> Path:
    (folder / "jars").mkdir(parents=True)
    if version is not None:
        (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return folder


def test_versions_are_checked(tmp_path: Path) -> None:
    assert spark_version(distribution(tmp_path / "a", "4.3.0")) == "4.3.0"
    for name, version in (("b", "3.5.1"), ("c", "5.0.0")):
        with pytest.raises(InputError) as fault:
            spark_version(distribution(tmp_path / name, version))
        assert all(tested in str(fault.value) for tested in TESTED)
    with pytest.raises(InputError):
        spark_version(distribution(tmp_path / "d", None))
    with pytest.raises(InputError):
        find_spark(tmp_path / "e")


def test_the_command_prints_one_line_for_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--spark", str(distribution(tmp_path / "old", "3.5.1"))]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_a_profile_has_means_by_the_names_of_job_and_stage(tmp_path: Path) -> None:
    def task(stage: int, ms: int, reason: str = "Success") -> dict[str, object]:
        return {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": stage,
            "Task End Reason": {"Reason": reason},
            "Task Info": {"Launch Time": 1000, "Finish Time": 1000 + ms},
        }

    events = [
        {
            "Event": "SparkListenerJobStart",
            "Job ID": 0,
            "Properties": {"spark.job.description": "report"},
            "Stage Infos": [
                {"Stage ID": 0, "Stage Name": "scan"},
                {"Stage ID": 1, "Stage Name": "sum"},
            ],
        },
        task(0, 100),
        task(0, 300),
        task(0, 9000, "ExceptionFailure"),
        task(1, 50),
    ]
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert read_profile(log) == {("report", "scan"): 200.0, ("report", "sum"): 50.0}


def test_simulated_orders_by_hand() -> None:
    long = SparkJob("long", 0, [SparkStage([1000] * 4), SparkStage([1000], [0])])
    short = SparkJob("short", 0, [SparkStage([500, 500])])
    assert simulate([long, short], 2, "fifo") == [3.0, 3.0]  # beside the narrow last stage
    assert simulate([long, short], 2, "fair") == [4.0, 1.0]


def short_job_first(state: Any) -> dict[str, Any]:
    """A plan of the first stage of job 1 alone."""
    return {"assignments": [{"job": "job-1", "stage": "1", "executors": 1, "limit": 1}]}


@pytest.mark.parametrize(
    ("times", "pause_ms", "expected"),
    [
        ((), 0, [2.2, 1.15]),  # the second stage is newer than the plan, and goes with its job
        ([(60, 200)], 0, [2.2, 1.15]),
        ([(60, 1050)], 0, [2.0, 2.15]),  # the plan comes after the slot was given
        ((), 30, [2.1, 2.15]),  # the second stage comes after the slot was given
    ],
)
def test_simulated_plans_by_hand(
    times: list[tuple[int, int]], pause_ms: int, expected: list[float]
) -> None:
    long = SparkJob("long", 0, [SparkStage([1000, 1000])])
    short = SparkJob("short", 50, [SparkStage([100]), SparkStage([100], [0], pause_ms)])
    steering = Steering(short_job_first, {}, times=times)
    assert simulate([long, short], 1, "steered", steering) == expected


def test_a_recorded_run_has_the_delays_of_the_driver(tmp_path: Path) -> None:
    def info(stage: int, parents: list[int], at_ms: int | None = None) -> dict[str, Any]:
        return {
            "Stage ID": stage, "Stage Name": f"report {stage}", "Parent IDs": parents,
            "Submission Time": at_ms,
        }  # fmt: skip

    def submitted(stage: int, at_ms: int) -> dict[str, Any]:
        return {"Event": "SparkListenerStageSubmitted", "Stage Info": info(stage, [], at_ms)}

    def task(stage: int, start_ms: int, end_ms: int) -> dict[str, Any]:
        times = {"Launch Time": start_ms, "Finish Time": end_ms}
        return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Info": times}

    start = {
        "Event": "SparkListenerJobStart",
        "Job ID": 0,
        "Submission Time": 5010,
        "Properties": {"spark.job.description": "report", SUBMITTED: "5000"},
        "Stage Infos": [info(1, [0]), info(0, [])],
    }
    events = [
        start, submitted(0, 5020), task(0, 5030, 5130), task(0, 5025, 5225),
        submitted(1, 5240), task(1, 5245, 5445),
    ]  # fmt: skip
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(log, 1)
    assert run.began_ms == 5000
    assert run.jobs[0].stages == [
        SparkStage([200, 100], [], 20, "report 0"),
        SparkStage([200], [0], 15, "report 1"),
    ]
    measured = pd.DataFrame({"completion_s": [0.5]})
    steering = Steering(lambda state: {}, {}, times=[(5100, 5200)])
    found = {
        row["rule"]: row["predicted_s"] for row in predict(log, "own", 1, 2, measured, steering)
    }
    assert found == {"spark-steered": 0.435, "spark-steered-at-once": 0.4}
