"""A training whose processes and nodes are killed at random, beside an undisturbed one.

The training runs under the supervisor of `submit --retries`, which resumes it when its process
dies.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import yaml

from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.bench.fault_cluster import (
    CPUS,
    HEALTH_CHECKS,
    NODES,
    POLL_S,
    FaultCluster,
    fault_cluster,
    kill_process,
    process_tree,
)
from loadmaster.platform.bench.faults import (
    QUIET_END,
    Faults,
    Kill,
    PlannedKill,
    Seen,
    recovered,
    schedule,
    with_consequences,
)
from loadmaster.platform.cli import retries
from loadmaster.platform.ray.head import SEVERAL_NODES, die_with_parent
from loadmaster.platform.training.run_folder import RunFolder

WORKERS = 3  # so that the nodes have room for one more, and a node can hold two
CHECKPOINT_EVERY = 4
STALL_S = 300.0  # without a recorded iteration, until the run is given up


def settings_of(seed: int, kills: int) -> dict[str, Any]:
    """Settings of a short training of Decima, long enough for so many kills."""
    return {
        "seed": seed,
        "environment": {"jobs": 10, "executors": 20},
        "rollouts": {"workers": WORKERS, "sequences": 6, "per_sequence": 4},
        "training": {"iterations": 2 * kills + QUIET_END},
        "validation": {"every": CHECKPOINT_EVERY, "sequences": 6},
        "checkpoints": {"every": CHECKPOINT_EVERY},
    }


class Training:
    """A training under the supervisor of `submit --retries`, as its files show it."""

    def __init__(self, settings: Mapping[str, Any], address: str, run: Path, count: int) -> None:
        """`count`: how often it is resumed at most."""
        self.run = RunFolder(run)
        config = run.with_suffix(".yaml")
        config.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
        train = ["train", "decima", "--config", str(config), "--output", str(run)]
        arguments = [str(count), "--", *train, "--address", address]
        scratch = run.with_suffix(".tmp")  # killed drivers leave their temporary files
        scratch.mkdir()
        with run.with_suffix(".log").open("wb") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", retries.__name__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                env={**os.environ, "TMPDIR": str(scratch), SEVERAL_NODES: "1"},
            )
        self.began = time.monotonic()
        self.seen: list[Seen] = []

    def poll(self) -> int | None:
        return self._supervisor.poll()

    def look(self) -> None:
        """Read the run's files; keep what changed."""
        try:
            rows, manifest = self.run.rows(), self.run.manifest
        except (OSError, InputError):  # the folder is being made
            return
        if not rows:
            return
        found = Seen(
            second=time.monotonic() - self.began,
            iteration=int(rows[-1]["iteration"]),
            workers=rows[-1].get("workers", 0.0),
            resumed=tuple(int(each["iteration"]) for each in manifest.get("resumed", [])),
        )
        if not self.seen or found[1:] != self.seen[-1][1:]:
            self.seen.append(found)

    def silent_s(self) -> float:
        """Seconds since its files changed last."""
        last = self.seen[-1].second if self.seen else 0.0
        return time.monotonic() - self.began - last

    def drivers(self) -> list[psutil.Process]:
        """The training's own process, unless it is between two starts."""
        try:
            children = psutil.Process(self._supervisor.pid).children()
            return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def checkpoint(self) -> int:
        return retries.latest_checkpoint(self.run.path) or 0

    def iteration_s(self) -> float:
        """Mean time between two records."""
        first, *_, last = self.seen
        return (last.second - first.second) / (last.iteration - first.iteration)

    def stop(self) -> None:
        """End it at once if it still runs; the supervisor first, so that it resumes nothing."""
        if self._supervisor.poll() is None:
            for process in process_tree(self._supervisor.pid):
                kill_process(process)
            self._supervisor.wait()


def run_faults(
    seed: int, kills: int, runs: Path, report_step: Callable[..., None]
) -> tuple[Faults, dict[str, Any]]:
    """Train undisturbed, then again under kills; also the settings of both, for the summary.

    `runs` is the folder of both runs.
    """
    settings = settings_of(seed, kills)
    iterations = settings["training"]["iterations"]
    report_step(f"starting a cluster of a head and {NODES} nodes")
    with fault_cluster() as cluster, ExitStack() as stack:

        def start(name: str, count: int) -> Training:
            training = Training(settings, cluster.address, runs / name, count)
            stack.callback(training.stop)
            return training

        report_step(f"undisturbed: {iterations} iterations")
        undisturbed = start("undisturbed", 0)
        if (code := _watch(undisturbed, cluster)) != 0:
            ended = "stalled" if code is None else f"ended with exit code {code}"
            log = (runs / "undisturbed.log").read_text(errors="replace").strip()[-300:]
            raise InputError(f"the undisturbed training {ended}: {log}; {cluster.describe()}")
        training = start("run", 2 * kills)  # more than planned, as any failure is resumed
        done: list[Kill] = []
        for planned in schedule(seed, kills, iterations):
            if not _inject(planned, done, training, cluster, undisturbed.iteration_s()):
                break
            report_step(_in_words(done[-1], kills), True)
        report_step("training to the end")
        code = _watch(training, cluster)
    found = Faults(
        iterations=iterations,
        workers=WORKERS,
        planned=kills,
        kills=tuple(with_consequences(done, training.seen, WORKERS)),
        seen=tuple(training.seen),
        rows=tuple(training.run.rows()),
        exit_code=code,
        bundle_iterations=_bundle_iterations(training.run.path / "last"),
        undisturbed=tuple(undisturbed.run.rows()),
        undisturbed_s=undisturbed.seen[-1].second,
    )
    about_cluster = {
        "nodes": NODES,
        "cpus_per_node": CPUS,
        "nodes_failed_to_start": cluster.failed,
        "system_config": HEALTH_CHECKS,
    }
    return found, {"kills": kills, "cluster": about_cluster, "training": settings}


def _watch(
    training: Training, cluster: FaultCluster, until: Callable[[], bool] = lambda: False
) -> int | None:
    """Record progress until the training ends or `until` is true; its exit code.

    None: `until` is true, or nothing was recorded for STALL_S.
    """
    while (code := training.poll()) is None:
        training.look()
        cluster.replace_failed()
        if until() or training.silent_s() > STALL_S:
            return None
        time.sleep(POLL_S)
    training.look()
    return code


def _inject(
    planned: PlannedKill,
    done: list[Kill],
    training: Training,
    cluster: FaultCluster,
    iteration_s: float,
) -> bool:
    """Kill as planned, but not before an iteration was recorded after the last kill.

    Appends to `done`; false if the training ended or stalled before.
    """

    def due() -> bool:
        if not training.seen or training.seen[-1].iteration < planned.iteration:
            return False
        if not done:
            return True
        before = [one for one in training.seen if one.second <= done[-1].second]
        return recovered(done[-1], before[-1].resumed, training.seen[len(before) :]) is not None

    def delayed() -> bool:
        return time.monotonic() >= at

    def killed() -> bool:
        found = _kill_one(planned, len(done) + 1, training, cluster)
        done.extend([] if found is None else [found])
        return found is not None

    number = len(done)
    if _watch(training, cluster, due) is None and due():
        at = time.monotonic() + planned.delay * iteration_s
        _watch(training, cluster, delayed)
        _watch(training, cluster, killed)
    return len(done) > number


def _in_words(kill: Kill, kills: int) -> str:
    return (
        f"kill {kill.number} of {kills}: {kill.kind}, after {kill.second:.0f} s, in iteration "
        f"{kill.iteration + 1}, latest checkpoint {kill.checkpoint}"
    )


def _kill_one(
    planned: PlannedKill, number: int, training: Training, cluster: FaultCluster
) -> Kill | None:
    """Kill a process or a node, chosen by `planned.choice`; None if there is none of that kind."""
    nodes, second = cluster.rollout_workers(), time.monotonic() - training.began
    if planned.kind == "driver":
        if not (drivers := training.drivers()):
            return None
        kill_process(drivers[0])
        drivers[0].wait()  # what it wrote last counts
        lost = 0
    elif planned.kind == "worker":
        if not (workers := [one for node in nodes for one in node]):
            return None
        kill_process(workers[int(planned.choice * len(workers))])
        lost = 1
    else:
        if not (busy := [place for place, node in enumerate(nodes) if node]):
            return None
        place = busy[int(planned.choice * len(busy))]
        lost = len(nodes[place])
        cluster.kill_node(place)
    # Read after the kill: a killed driver leaves the files as they are for two seconds.
    training.look()
    reached = training.seen[-1].iteration
    return Kill(number, planned.kind, second, reached, training.checkpoint(), lost)


def _bundle_iterations(folder: Path) -> int | str:
    """Iterations of the bundle's training, or why it cannot be loaded."""
    try:
        return int(load_bundle(folder).trained["iterations"])
    except (InputError, OSError, KeyError) as fault:
        return f"{type(fault).__name__}: {fault}"
