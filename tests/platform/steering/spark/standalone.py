"""A standalone Spark cluster on 127.0.0.1: a master and a worker, ended with the block."""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.platform.steering.spark.parts import free_port

READY_S = 120.0


@dataclass(frozen=True)
class Standalone:
    """`master` is the address for drivers, without a scheme; `web` that of the web interface."""

    master: str
    web: str

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.web}/json/", timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def cores(self) -> dict[str, int]:
        """Cores that applications hold, by name."""
        return {one["name"]: int(one["cores"]) for one in self.state()["activeapps"]}


@contextmanager
def standalone_cluster(spark: Path, folder: Path, cores: int) -> Iterator[Standalone]:
    host, port, web, worker_web = "127.0.0.1", free_port(), free_port(), free_port()
    environment = {
        **os.environ, "SPARK_HOME": str(spark), "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }  # fmt: skip
    with ExitStack() as stack:
        log = stack.enter_context((folder / "cluster.log").open("wb"))

        def start(*arguments: str) -> None:
            process = subprocess.Popen(
                [str(spark / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(
            "org.apache.spark.deploy.master.Master",
            *("--host", host, "--port", str(port), "--webui-port", str(web)),
        )
        cluster = Standalone(f"{host}:{port}", f"http://{host}:{web}")
        _await(cluster, 0)
        start(
            "org.apache.spark.deploy.worker.Worker", f"spark://{cluster.master}",
            *("--host", host, "--webui-port", str(worker_web)),
            *("--cores", str(cores), "--memory", "8g"),
        )  # fmt: skip
        _await(cluster, 1)
        yield cluster


def _await(cluster: Standalone, workers: int) -> None:
    end_s = time.monotonic() + READY_S
    while True:
        found: object
        try:
            if (found := cluster.state()["aliveworkers"]) >= workers:
                return
        except OSError as silent:
            found = silent
        assert time.monotonic() < end_s, f"{workers} workers expected; the master: {found}"
        time.sleep(0.2)
