"""Versions of Spark, profiles from event logs, and the simulation of Spark's orders."""

import json
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.spark_cluster import SparkJob, SparkStage
from loadmaster.platform.bench.engines.spark_simulation import simulate
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
