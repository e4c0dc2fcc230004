"""A real Slurm on 127.0.0.1: watch, act, stop and move, the switch, a controller that is down."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.slurm_cluster import (
    SlurmCluster,
    is_running,
    slurm_cluster,
)
from loadmaster.platform.steering.core import Mode
from loadmaster.platform.steering.jobs import JobSteerer
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.slurm.commands import SlurmCommands
from loadmaster.platform.steering.slurm.engine import SPEC, SlurmEngine, SlurmSettings
from tests.platform.steering.slurm.test_engine import start
from tests.platform.steering.test_jobs import Decider

GRACE_S = 5
WAIT_S = 60.0  # on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.engine("slurm")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Three machines of 4 GPUs; jobs wait for the steerer for five seconds."""
    try:
        running = slurm_cluster(grace_s=GRACE_S)
        found = running.__enter__()
    except InputError as fault:
        pytest.skip(str(fault))
    try:
        yield found
    finally:
        pids = found.pids()
        running.__exit__(None, None, None)
        assert not any(map(is_running, pids.values()))


@pytest.fixture(autouse=True)
def _empty(cluster: SlurmCluster) -> None:
    """Cancel the jobs of the test before; those of the last one end with the cluster.

    Slurm takes 4 s to complete them, in which their machines are not free: that is not waited for.
    """
    if cluster.run("squeue", "-h", "-t", "PD,R"):
        cluster.run("scancel", "--full", "--signal=KILL", "--me")
        cluster.run("scancel", "--me")
        wait_for(lambda: not cluster.run("squeue", "-h", "-t", "PD,R"))


def wait_for(holds: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


def where(cluster: SlurmCluster, job: int) -> str:
    """State and machines of a job, or of the tasks of an array."""
    lines = cluster.run("squeue", "-h", "--states=all", "-o", "%A %F %T %N").splitlines()
    found = [line.split()[2:] for line in lines if str(job) in line.split()[:2]]
    return "; ".join(" ".join(one) for one in found)


def steered(cluster: SlurmCluster, recommender: object, mode: Mode = "act", **settings: object):  # type: ignore[no-untyped-def]
    """A function that runs one step."""
    engine = SlurmEngine(
        SlurmCommands(10, cluster.environment),
        SlurmSettings.model_validate({"grace_s": GRACE_S, **settings}),
    )
    steerer = JobSteerer(recommender, mode)  # type: ignore[arg-type]
    return lambda: steerer.step(engine, time.time())


def test_gang_and_shards_run_as_a_rule_places_them(cluster: SlurmCluster) -> None:
    array = cluster.submit("sleep 60", "--array=1-2", "--gres=gpu:1")  # left to Slurm
    wait_for(lambda: where(cluster, array).count("RUNNING") == 2)
    gang = cluster.submit("srun sleep 60", "-n", "6", "--gpus-per-task=1")
    quarter = cluster.submit("sleep 60", "--gres=shard:1")
    step = steered(cluster, find_recommender(["las-consolidate"], SPEC.endpoint))

    def running() -> bool:
        assert not step().degraded
        return all(where(cluster, one).startswith("RUNNING") for one in (gang, quarter))

    wait_for(running)
    assert len(set(where(cluster, gang).split()[1])) > 2  # such as n[1-2]


def test_watch_changes_nothing_and_act_starts_jobs_where_the_decision_says(
    cluster: SlurmCluster,
) -> None:
    submitted = time.monotonic()
    jobs = [cluster.submit("sleep 60", "--gres=gpu:4") for _ in range(2)]
    decider = Decider(start=[start(str(jobs[1]), n3=1)], stop=[], wait=1)
    assert steered(cluster, decider, "watch")().commands == (f"start {jobs[1]} on n3 x1",)
    assert where(cluster, jobs[1]) == "PENDING"
    step = steered(cluster, decider)
    step()
    wait_for(lambda: where(cluster, jobs[1]) == "RUNNING n3")
    while time.monotonic() < submitted + 1.3 * GRACE_S:  # the other one is put off
        assert not step().degraded
        time.sleep(0.5)
    assert where(cluster, jobs[0]) == "PENDING"
    # The steerer ends here: Slurm starts the job at its begin time.
    wait_for(lambda: where(cluster, jobs[0]).startswith("RUNNING"))


@pytest.mark.long
def test_job_moves_and_keeps_its_age(cluster: SlurmCluster) -> None:
    job = cluster.submit("sleep 60", "--gres=gpu:1")
    decider = Decider(start=[start(str(job), n1=1)], stop=[], wait=0)
    step = steered(cluster, decider, preempt=True)
    step()
    wait_for(lambda: where(cluster, job) == "RUNNING n1")
    time.sleep(1.1)
    decider.decision = {"start": [start(str(job), n2=1)], "stop": [str(job)], "wait": 0}

    def moved() -> bool:
        if where(cluster, job).startswith("PENDING"):
            assert decider.decision is not None
            decider.decision["stop"] = []
        step()
        return where(cluster, job) == "RUNNING n2"

    wait_for(moved)
    comment = cluster.run("scontrol", "show", "job", str(job))
    assert "first_submit=" in comment
    assert "ran_s=0" not in comment


@pytest.mark.long
def test_controller_that_is_down_is_silent_and_no_job_is_lost(cluster: SlurmCluster) -> None:
    jobs = [cluster.submit("sleep 60", "--gres=gpu:1") for _ in range(2)]
    step = steered(cluster, find_recommender(["fifo-consolidate"], SPEC.endpoint))
    pid = cluster.pids()["slurmctld"]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not is_running(pid))
    assert step().silent == "engine"
    cluster.start_controller()

    def running() -> bool:
        step()
        return all(where(cluster, job).startswith("RUNNING") for job in jobs)

    wait_for(running)
    assert not step().degraded


@pytest.mark.long
def test_command_that_is_killed_leaves_the_jobs_to_slurm(cluster: SlurmCluster) -> None:
    first, second = (cluster.submit("sleep 60", "--gres=gpu:4") for _ in range(2))
    command = [
        sys.executable, "-c", "from loadmaster.platform.cli.main import main; main()",
        "steer", "slurm", "--mode", "act", "--recommender", "las-consolidate", "--every", "0.3",
        "--set", f"grace_s={GRACE_S}",
    ]  # fmt: skip
    with subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert "start" in running.stdout.readline()
        running.kill()
    for job in (first, second):
        wait_for(lambda job=job: where(cluster, job).startswith("RUNNING"))
    listed = cluster.run("squeue", "-h", "-t", "PD,R", "-o", "%i").split()
    assert sorted(listed) == [str(first), str(second)]
