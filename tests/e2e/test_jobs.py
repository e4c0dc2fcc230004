"""Jobs on a real cluster, started with `ray start --head`."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadmaster.envs.compiled import cache_root
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.serving.jobs.client import Jobs
from tests.e2e.cluster import TIMEOUT_S, Cluster, running_cluster

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose head has no virtual environment in its PATH."""
    with running_cluster(tmp_path_factory.mktemp("home"), "--num-cpus=2") as found:
        yield found


def restore_sigint() -> None:
    """Processes in the background of a shell ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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


@pytest.mark.long
def test_killed_training_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    """One run of all iterations, though its driver is killed in the middle."""
    settings = {**TINY, "training.iterations": 12}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    train = ["train", "decima", "--workers", "1", "--output", "run", *options]
    storage = cluster.storage / "retries"
    process = begin(cluster, *submit("--storage", str(storage), "--retries", "2", command=train))
    reach(storage, 2, process)
    (driver,) = in_folder(storage, COMMAND[-1])
    driver.kill()
    done = ended(process)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = re.findall(r"^loadmaster: (.*)$", done.stdout, re.MULTILINE)
    resumed = re.fullmatch(r"retry 1 of 2: .* killed by SIGKILL .* iteration (\d+) of run", line)
    assert resumed is not None
    (run,) = storage.glob("*/run")
    assert [row["iteration"] for row in RunFolder(run).rows()] == list(range(13))
    manifest = RunFolder(run).manifest
    assert (manifest["status"], manifest["iterations"]) == ("finished", 12)
    assert [each["iteration"] for each in manifest["resumed"]] == [int(resumed[1])]


def reach(storage: Path, iteration: int, process: subprocess.Popen[str]) -> None:
    """Wait for a checkpoint of that iteration or a later one."""
    limit = time.monotonic() + COMPILE_S
    while True:
        found = storage.glob("*/run/checkpoints/iteration-*[0-9]")
        if any(int(path.name[-6:]) >= iteration for path in found):
            return
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def in_folder(storage: Path, module: str) -> list[psutil.Process]:
    """Processes of a module that work in that folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if module in process.cmdline() and Path(process.cwd()).is_relative_to(storage):
                found.append(process)
    return found


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
