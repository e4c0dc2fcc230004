"""A Flink session cluster on 127.0.0.1, from the jars of a PyPI wheel and the installed Java.

`fetch_flink` keeps the jars (329 MB to fetch) in the cache folder; `flink_cluster` starts one
JobManager and some TaskManagers and ends exactly these. `LoadJob.java` is a job whose load a
`Load` sets.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.compiled import cache_root
from loadmaster.envs.errors import InputError

VERSION = "2.3.0"
JOB_SOURCE = Path(__file__).with_name("LoadJob.java")
HOST = "127.0.0.1"
START_S = 180.0  # for processes on a busy machine

_OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "java.lang.reflect", "java.text", "java.time",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)  # fmt: skip
_OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
_LOG4J = """rootLogger.level=INFO
rootLogger.appenderRef.console.ref=Console
appender.console.name=Console
appender.console.type=CONSOLE
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n
"""
_ADAPTIVE = "jobmanager.adaptive-scheduler"
RESCALE_DELAY = f"{_ADAPTIVE}.rescale-trigger.max-delay"  # unset: at the next checkpoint
# Rescales happen soon after the request, and the metrics are refreshed every second.
QUICK = {
    "jobmanager.scheduler": "adaptive",
    f"{_ADAPTIVE}.executing.cooldown-after-rescaling": "1 s",
    f"{_ADAPTIVE}.executing.resource-stabilization-timeout": "1 s",
    f"{_ADAPTIVE}.submission.resource-stabilization-timeout": "1 s",
    RESCALE_DELAY: "1 s",
    "web.adaptive-scheduler.rescale-history.size": "50",
    "execution.checkpointing.interval": "5 s",
    "metrics.fetcher.update-interval": "500",
    "web.refresh-interval": "500",
}


def missing() -> str:
    """The reason for which no cluster can be started here, or nothing."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not installed; expected OpenJDK 11, 17 or 21"
    return ""


def fetch_flink() -> Path:
    """Return the folder `pyflink` of the wheel, fetched by pip where the cache lacks it."""
    folder = cache_root() / "engines" / f"flink-{VERSION}"
    found = folder / "pyflink"
    if (found / "lib").is_dir():
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch,
            f"apache-flink-libraries=={VERSION}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            line = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise InputError(f"apache-flink-libraries {VERSION} cannot be fetched: {line}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(unpacked)
        try:
            unpacked.rename(folder)  # another process may have been faster
        except OSError:
            if not (found / "lib").is_dir():
                raise
    return found


def load_jar(flink: Path) -> Path:
    """Compile `LoadJob.java` against the jars of Flink; kept beside them."""
    jar = flink.parent / f"load-job-{int(JOB_SOURCE.stat().st_mtime)}.jar"
    if jar.is_file():
        return jar
    with tempfile.TemporaryDirectory(dir=flink.parent) as scratch:
        classes = Path(scratch) / "classes"
        command = ["javac", "-nowarn", "-cp", f"{flink}/lib/*", "-d", str(classes), str(JOB_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{JOB_SOURCE.name} cannot be compiled: {done.stderr.strip()}")
        built = Path(scratch) / jar.name
        with zipfile.ZipFile(built, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nMain-Class: LoadJob\n")
            for one in sorted(classes.iterdir()):
                archive.write(one, one.name)
        built.rename(jar)
    return jar


@dataclass
class FlinkCluster:
    """A running cluster."""

    url: str
    folder: Path
    flink: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _jar_id: str = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Parsed answer of the REST interface."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def start_load_job(
        self, load: Load, name: str, parse_us: int, enrich_us: int, parallelism: int
    ) -> str:
        """Run `LoadJob.java`; returns the job's id once all its tasks run."""
        if not self._jar_id:
            self._jar_id = self._upload(load_jar(self.flink))
        arguments = [str(load.file), str(parse_us), str(enrich_us), name]
        body = {"programArgsList": arguments, "parallelism": parallelism}
        job = str(self.call("POST", f"/jars/{self._jar_id}/run", body)["jobid"])
        self.wait(lambda: self.is_running(job), f"job {name!r}")
        return job

    def is_running(self, job: str) -> bool:
        """Whether all tasks of the job run."""
        found = self.call("GET", f"/jobs/{job}")
        return bool(found["vertices"]) and all(
            vertex["tasks"]["RUNNING"] == vertex["parallelism"] for vertex in found["vertices"]
        )

    def cancel(self, job: str) -> None:
        self.call("PATCH", f"/jobs/{job}?mode=cancel")
        ended = ("CANCELED", "FAILED", "FINISHED")
        self.wait(lambda: self.call("GET", f"/jobs/{job}")["state"] in ended, f"end of job {job}")

    def wait(self, ready: Callable[[], bool], name: str, seconds: float = START_S) -> None:
        """Wait until a condition holds; refused connections and missing pages count as not yet."""
        end, last = time.monotonic() + seconds, ""
        while True:
            try:
                if ready():
                    return
                last = ""
            except (OSError, KeyError, ValueError) as fault:
                last = f" ({type(fault).__name__}: {fault})"
            for program, process in self.processes.items():
                if process.poll() is not None:
                    raise InputError(f"{program} ended: see {self.folder / 'log' / program}")
            if time.monotonic() > end:
                where = f"{self.folder}/log"
                raise InputError(f"{name}: not ready after {seconds:g} s{last}; see {where}")
            time.sleep(0.1)

    def _upload(self, jar: Path) -> str:
        boundary = "loadmaster-jar"
        body = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="jarfile"; '
            f'filename="{jar.name}"\r\nContent-Type: application/x-java-archive\r\n\r\n'
        ).encode()
        body += jar.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        request = urllib.request.Request(f"{self.url}/jars/upload", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.loads(answer.read())["filename"]).rsplit("/", 1)[-1]


@contextmanager
def flink_cluster(
    folder: Path,
    task_managers: int = 2,
    slots: int = 4,
    settings: Mapping[str, str] = QUICK,
) -> Iterator[FlinkCluster]:
    """Start a cluster whose configuration and logs are in `folder`; it ends with the block."""
    if reason := missing():
        raise InputError(reason)
    flink, folder = fetch_flink(), folder.resolve()
    for part in ("conf", "log", "tmp", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rest, rpc, blob = _free_ports(3)
    _write_settings(folder, (rest, rpc, blob), slots, settings)
    cluster = FlinkCluster(f"http://{HOST}:{rest}", folder, flink)
    with ExitStack() as stack:
        stack.callback(_end, cluster.processes)
        log = [f"-Dlog4j.configurationFile=file:{folder}/conf/log4j.properties"]
        memory, dynamic = _memory_options(flink, folder, "GET_JM_RESOURCE_PARAMS")
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        _start(cluster, "jobmanager", [*memory, *_OPENS, *log], entry, dynamic)
        # TaskManagers that start earlier try again after 10 s only.
        cluster.wait(lambda: bool(cluster.call("GET", "/overview")), "REST interface")
        memory, dynamic = _memory_options(flink, folder, "GET_TM_RESOURCE_PARAMS")
        entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        for number in range(1, task_managers + 1):
            name = f"taskmanager{number}"
            own = [*dynamic, "-D", f"taskmanager.resource-id={name}"]
            _start(cluster, name, [*memory, *_OPENS, *log], entry, own)
        total = task_managers * slots
        cluster.wait(lambda: cluster.call("GET", "/overview")["slots-total"] == total, "slots")
        yield cluster


def _write_settings(
    folder: Path, ports: tuple[int, int, int], slots: int, settings: Mapping[str, str]
) -> None:
    rest, rpc, blob = ports
    values = {
        "env.java.opts.all": " ".join(_OPENS),
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": HOST,
        "jobmanager.memory.process.size": "1000m",
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": rest,
        "rest.bind-port": rest,
        "blob.server.port": blob,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.memory.process.size": "1500m",
        "taskmanager.memory.network.min": "128m",
        "taskmanager.memory.network.max": "128m",
        "taskmanager.memory.managed.size": "64m",
        "io.tmp.dirs": folder / "tmp",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "parallelism.default": 1,
        **settings,
    }
    text = "".join(f"{name}: {value}\n" for name, value in values.items())
    (folder / "conf" / "config.yaml").write_text(text)
    (folder / "conf" / "log4j.properties").write_text(_LOG4J)


def _memory_options(flink: Path, folder: Path, program: str) -> tuple[list[str], list[str]]:
    """Options of the JVM and of the program; Flink's own helper computes them."""
    jars = f"{flink}/bin/bash-java-utils.jar:{flink}/lib/*"
    command = [
        "java", "-cp", jars, "org.apache.flink.runtime.util.bash.BashJavaUtils", program,
        "--configDir", f"{folder}/conf",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    mark = "BASH_JAVA_UTILS_EXEC_RESULT:"
    lines = [line[len(mark) :].split() for line in done.stdout.splitlines() if mark in line]
    return lines[0], lines[1] if len(lines) > 1 else []


def _start(
    cluster: FlinkCluster, name: str, java: Sequence[str], entry: str, options: Sequence[str]
) -> None:
    command = ["java", *java, "-cp", f"{cluster.flink}/lib/*", entry]
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and shutil.which("setpriv"):  # it ends with this process, even one that is killed
        command = ["setpriv", "--pdeathsig", "TERM", *command]
    command += ["--configDir", f"{cluster.folder}/conf", *options]
    with (cluster.folder / "log" / name).open("wb") as log:
        cluster.processes[name] = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "FLINK_CONF_DIR": f"{cluster.folder}/conf"},
            start_new_session=True,  # an interrupt from the terminal is for Python alone
        )


def _end(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.terminate()
    for process in processes.values():
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> tuple[int, ...]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return tuple(int(probe.getsockname()[1]) for probe in probes)


class Counts(NamedTuple):
    """Records of a load job so far."""

    due: int
    following: int  # the next one of the source
    at_sink: int  # arrived there, repeated ones included
    last: int  # number of the last one there


class Load:
    """Records that are due for a load job: a thread adds `rate(seconds)` a second.

    Counts are in a file that the job maps into memory.
    """

    STEP_S = 0.05

    def __init__(self, file: Path, rate: Callable[[float], float]) -> None:
        self.file, self._rate = file, rate
        file.write_bytes(bytes(64))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 64)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def counts(self) -> Counts:
        return Counts(*struct.unpack_from("=4q", self._memory))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        began = last = time.monotonic()
        due = float(self.counts().due)
        while not self._stopped.wait(self.STEP_S):
            now = time.monotonic()
            due += self._rate(now - began) * (now - last)
            last = now
            struct.pack_into("=q", self._memory, 0, int(due))
