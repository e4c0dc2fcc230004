"""Jobs on a real cluster, started with `ray start --head`."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from loadmaster.envs.compiled import cache_root
from loadmaster.models.bundle import load_bundle
from loadmaster.serving.jobs.client import Jobs, UnreachableError

pytestmark = pytest.mark.slow

TIMEOUT_S = 120.0
COMPILE_S = 300.0  # with an empty cache of compiled code
COMMAND = [sys.executable, "-P", "-m", "loadmaster.platform.cli.main"]
TINY = {
    "environment.workload": "toy",
    "environment.jobs": 3,
    "environment.executors": 4,
    "rollouts.sequences": 1,
    "rollouts.per_sequence": 2,
    "validation.sequences": 2,
    "training.iterations": 100_000,
    "checkpoints.every": 1,
}


Submitted = dict[str, subprocess.Popen[str]]


class Cluster(NamedTuple):
    address: str
    gcs: str  # address of Ray's control service
    env: Mapping[str, str]  # with the token
    storage: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose head has no virtual environment in its PATH."""
    home = tmp_path_factory.mktemp("home")
    # Directly under /tmp: paths of sockets are limited to 107 bytes.
    folder = tempfile.mkdtemp(prefix="lm-", dir="/tmp")
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        gcs, dashboard, client, agent = (each.getsockname()[1] for each in sockets)
    token = secrets.token_hex(32)
    secure = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "HOME": str(home)}
    options = [
        "--head", "--block", "--num-cpus=2", "--object-store-memory=134217728",
        "--disable-usage-stats", "--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1",
        f"--temp-dir={folder}", f"--port={gcs}", f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
    ]  # fmt: skip
    head = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", *options],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **secure},
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{dashboard}"
    env = {**os.environ, **secure, "RAY_API_SERVER_ADDRESS": address, "NO_COLOR": "1"}
    env.pop("RAY_ADDRESS", None)
    try:
        wait_for(address, token, head)
        yield Cluster(address, f"127.0.0.1:{gcs}", env, home / "storage")
    finally:
        end(head)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(address: str, token: str, head: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + TIMEOUT_S
    while time.monotonic() < limit:
        assert head.poll() is None, "the head ended"
        with contextlib.suppress(UnreachableError):
            Jobs(address, token).list()
            return
        time.sleep(0.5)
    pytest.fail("the head did not come up in time")


def restore_sigint() -> None:
    """Processes in the background of a shell ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(head: subprocess.Popen[bytes]) -> None:
    """Kill the head and its children, by id, as other Rays may run on this machine."""
    processes = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=15)
    head.wait()


def begin(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=cluster.env,
        cwd=cluster.env["HOME"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_sigint,
    )


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    output = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, *output)


def submit(*options: str, command: list[str]) -> list[str]:
    """Arguments of `submit`, with this machine's cache of compiled code."""
    return ["submit", "--env", f"LOADMASTER_CACHE={cache_root().parent}", *options, "--", *command]


@pytest.fixture(scope="module")
def submitted(cluster: Cluster) -> Submitted:
    """Three jobs at once."""
    options = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    train = ["train", "decima", "--workers", "1", "--output", "run", *options]
    nonsense = ["train", "decima", "--set", "environment.workload=nonsense"]
    return {
        "checking": begin(cluster, *submit(command=["doctor", "--json"])),
        "failing": begin(cluster, *submit(command=nonsense)),
        "training": begin(cluster, *submit("--storage", str(cluster.storage), command=train)),
    }


def test_job_runs_the_code_of_this_checkout(cluster: Cluster, submitted: Submitted) -> None:
    done = ended(submitted["checking"])
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout[done.stdout.index('{\n  "checks"') :])["checks"]
    found = {check["name"]: check["status"] for check in checks}
    assert found["standard library"] == "ok"
    assert found["torch"] == "ok"  # the requirements are known on the node
    job = re.match(r"Job: (\S+), in \$HOME/loadmaster-jobs/\1 on", done.stdout)
    assert job is not None
    assert (Path(cluster.env["HOME"]) / "loadmaster-jobs" / job[1]).is_dir()


def test_failed_job_is_reported(submitted: Submitted) -> None:
    done = ended(submitted["failing"])
    assert done.returncode == 1
    assert "error: unknown workload 'nonsense'" in done.stdout
    assert re.fullmatch(r"error: job \S+ failed \(exit code 2\)\n", done.stderr)


def test_training_survives_ctrl_c_and_is_stopped(cluster: Cluster, submitted: Submitted) -> None:
    process = submitted["training"]
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("iteration "):
            break
    limit = time.monotonic() + COMPILE_S
    while not list(cluster.storage.glob("*/run/best/manifest.json")):
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    job = re.findall(r"loadmaster jobs stop (\S+)", stderr)[0]
    jobs = Jobs(cluster.address, cluster.env["RAY_AUTH_TOKEN"])
    assert {each.id: each.status for each in jobs.list()}[job] == "running"
    stopped = ended(begin(cluster, "jobs", "stop", job[-4:]))
    assert stopped.returncode == 0, stopped.stderr
    assert f"{job} was stopped; what it wrote is in {cluster.storage / job}" in stopped.stdout
    run = cluster.storage / job / "run"
    assert load_bundle(run / "best").system == "decima"
    assert "iteration " in jobs.logs(job)


def test_wrong_token_is_refused(cluster: Cluster) -> None:
    other = cluster._replace(env={**cluster.env, "RAY_AUTH_TOKEN": "guessed"})
    done = ended(begin(other, *submit("--no-wait", command=["list"])))
    assert (done.returncode, done.stdout) == (2, "")
    assert "refuses the token" in done.stderr
    assert done.stderr.count("\n") == 1


PRIORITY = """
import sys
from loadmaster.platform.ray.session import set_ray_env, ray_session
set_ray_env(sys.argv[1])
with ray_session(sys.argv[1]):
    import os, ray
    print(ray.get(ray.remote(lambda: os.nice(0)).remote()))
"""


@pytest.mark.parametrize("nice", [0, 19])
def test_workers_inherit_a_low_priority(cluster: Cluster, nice: int) -> None:
    before = int(os.nice(0))
    done = subprocess.run(
        ["nice", "-n", str(nice), sys.executable, "-P", "-c", PRIORITY, cluster.gcs],
        env=cluster.env,
        cwd=cluster.env["HOME"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    own = 15  # Ray's default for workers
    assert done.stdout.split() == [str(19 if nice + before >= 19 else own)], done.stderr[-2000:]
