"""Spark applications on this machine, from the wheel of PyPI and the installed Java.

`fetch_spark` keeps the wheel (430 MB to fetch) in the cache folder; `SparkJobs.scala` runs jobs of
a file at their times, with tasks that sleep. Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pandas as pd

from loadmaster.envs.compiled import cache_root
from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.spark.build import compile_jar

VERSION = "4.3.0"
SOURCE = Path(__file__).with_name("SparkJobs.scala")
READY_S, END_S = 180.0, 600.0
STOP_S = 10.0  # between SIGTERM and SIGKILL


def missing() -> str:
    """The reason for which no application can be started here, or nothing."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "java is not installed; expected OpenJDK 17"
    return ""


def fetch_spark(version: str = VERSION) -> Path:
    """Return the folder `pyspark` of a version, fetched by pip where the cache lacks it."""
    folder = cache_root() / "engines" / f"pyspark-{version}"
    found = folder / "pyspark"
    if (found / "jars").is_dir():
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile",
            "--disable-pip-version-check", "--target", work, f"pyspark=={version}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            last = " ".join(done.stderr.split())[-300:]
            raise InputError(f"pyspark {version} cannot be fetched: {last}")
        if not found.is_dir():
            shutil.copytree(work, folder, dirs_exist_ok=True)
    return found


@dataclass(frozen=True)
class SparkStage:
    """A stage with the time that each of its tasks sleeps; parents are places in the job.

    Of a recorded stage `pause_ms` is the driver's time from the end of the parents, or from the
    submission of the job, to the submission of the stage.
    """

    durations_ms: Sequence[int]
    parents: Sequence[int] = ()
    pause_ms: int = 0
    name: str = ""  # of a recorded stage


@dataclass(frozen=True)
class SparkJob:
    """A job; its last stage ends it, every other stage has a child."""

    name: str
    arrival_ms: int
    stages: Sequence[SparkStage]
    pool: str = "default"

    def record(self) -> dict[str, object]:
        stages = [
            {
                "name": f"{self.name} {place}",
                "durations_ms": list(stage.durations_ms),
                "parents": list(stage.parents),
            }
            for place, stage in enumerate(self.stages)
        ]
        return {
            "name": self.name, "pool": self.pool, "arrival_ms": self.arrival_ms, "stages": stages,
        }  # fmt: skip

    @property
    def work_ms(self) -> int:
        return sum(sum(stage.durations_ms) for stage in self.stages)


class SparkApplication:
    """A driver that runs jobs of a file, with its executor inside; a context that ends it.

    `scheduler_jar` is needed for masters of Loadmaster and for its plugin.
    """

    def __init__(
        self,
        spark: Path,
        jobs: Sequence[SparkJob],
        master: str,
        folder: Path,
        conf: Mapping[str, str] | None = None,
        scheduler_jar: Path | None = None,
        memory: str = "512m",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._spark = folder, spark
        self._out = folder / "jobs.csv"
        (folder / "jobs.json").write_text(json.dumps([job.record() for job in jobs]))
        program = compile_jar(spark, [SOURCE])
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.locality.wait": "0",
            "spark.log.level": "WARN",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            **(conf or {}),
        }
        self._command = [
            str(spark / "bin" / "spark-submit"), "--class", "loadmaster.bench.SparkJobs",
            "--master", master, "--driver-memory", memory,
            *(() if scheduler_jar is None else ("--driver-class-path", str(scheduler_jar))),
            *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
            str(program), str(folder / "jobs.json"), str(self._out),
        ]  # fmt: skip

    def __enter__(self) -> SparkApplication:
        environment = {
            **os.environ, "SPARK_HOME": str(self._spark), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }  # fmt: skip
        with (self.folder / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(self._process.pid, sign)  # the group that was started here
                try:
                    self._process.wait(STOP_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")

    def await_ready(self) -> None:
        """Wait until the context is warm."""
        assert self._process.stdout is not None
        with _deadline(self._process, READY_S):
            for line in self._process.stdout:
                if line.strip() == "ready":
                    return
        raise InputError(f"Spark did not start: {self.log[-500:]}")

    def begin(self) -> None:
        """Let the times of the jobs begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> pd.DataFrame:
        """Wait for the end; a row for each job, see `SparkJobs.scala`."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise InputError(f"Spark did not end within {END_S:g} s") from None
        if code != 0 or not self._out.is_file():
            raise InputError(f"Spark ended with {code}: {self.log[-500:]}")
        return pd.read_csv(self._out)


@contextmanager
def _deadline(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill the process if the block takes longer, which ends reading from it."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def equal_jobs(
    count: int, tasks: int, task_ms: int, stages: int = 1, gap_ms: int = 0
) -> list[SparkJob]:
    """Jobs a, b, c ... of chained stages with equal tasks."""
    return [
        SparkJob(
            chr(ord("a") + number),
            number * gap_ms,
            [SparkStage([task_ms] * tasks, range(place)[-1:]) for place in range(stages)],
        )
        for number in range(count)
    ]


def completion_s(frame: pd.DataFrame) -> np.ndarray:
    """Seconds from submission to end of each job."""
    spent: np.ndarray = (frame["ended_ms"] - frame["submitted_ms"]).to_numpy() / 1000
    return spent
