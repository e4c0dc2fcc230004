"""A Ray cluster of several nodes on this machine, which can be killed.

The head has no CPUs for workers. A killed node loses all its processes at once; another node joins
in its place.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.head import LOG, STARTED, end, own_head, start_node
from loadmaster.platform.ray.session import own_token
from loadmaster.platform.ray.session_folder import session_folder
from loadmaster.platform.rl.workers import EngineRunner

NODES, CPUS = 2, 2  # beside the head; CPUs of each
JOIN_S = 600.0  # until a node or one in its place has joined
NODE_START_S = 100.0  # until one is replaced that has not joined
POLL_S = 0.05
TITLE = f"ray::{EngineRunner.__name__}"  # of rollout workers; the method they run follows
# With Ray's defaults a killed node counts as alive for about 15 seconds. A check of a killed node
# fails at once; the timeout is for nodes that are slow to reply on a busy machine.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}


class Node(NamedTuple):
    process: "subprocess.Popen[bytes]"
    log: Path
    began: float

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def joined(self) -> bool:
        return STARTED in self.output()


class FaultCluster:
    """Nodes of a head's cluster that can be killed."""

    def __init__(self, address: str, folders: ExitStack) -> None:
        """`folders`: deletes the nodes' folders at the end."""
        self.address, self._folders, self.failed = address, folders, 0
        self._failure = ""  # the end of the output of the last node that ended by itself
        self._nodes: list[Node] = []

    def add_node(self) -> None:
        folder = self._folders.enter_context(session_folder())
        process = start_node(folder, self.address, CPUS)
        self._nodes.append(Node(process, folder / LOG, time.monotonic()))

    def wait(self) -> None:
        """Wait until every node has joined."""
        began = time.monotonic()
        while not all(node.joined() for node in self._nodes):
            if time.monotonic() - began > JOIN_S:
                raise InputError(f"nodes did not join within {JOIN_S:.0f} s: {self.describe()}")
            time.sleep(POLL_S)
            self.replace_failed()

    def describe(self) -> str:
        """The end of each node's output, and of the last one that failed, in one line."""
        outputs = {f"node {place}": node.output() for place, node in enumerate(self._nodes, 1)}
        if self.failed:
            outputs[f"{self.failed} failed before"] = self._failure
        return "; ".join(
            f"{name}: {' '.join(text.split())[-200:] or 'no output'}"
            for name, text in outputs.items()
        )

    def rollout_workers(self) -> list[list[psutil.Process]]:
        """Processes of the rollout workers on each node."""
        return [
            [one for one in process_tree(node.process.pid) if _is_worker(one)]
            for node in self._nodes
        ]

    def kill_node(self, place: int) -> None:
        """Kill all processes of a node, and start another one in its place."""
        _kill_all(self._nodes.pop(place))
        self.add_node()

    def replace_failed(self) -> None:
        """Start another node for each that ended by itself or has not joined in time.

        On a busy machine Ray may not start.
        """
        for node in list(self._nodes):
            late = time.monotonic() - node.began > NODE_START_S and not node.joined()
            if late or node.process.poll() is not None:
                self._nodes.remove(node)
                _kill_all(node)
                self.failed, self._failure = self.failed + 1, node.output()
                self.add_node()

    def stop(self) -> None:
        for node in self._nodes:
            end(node.process)


def _kill_all(node: Node) -> None:
    for process in process_tree(node.process.pid):
        kill_process(process)
    node.process.wait()


def process_tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "".join(process.cmdline()[:1]).startswith(TITLE)
    except psutil.Error:  # it has just ended
        return False


def kill_process(process: psutil.Process) -> None:
    """Kill a process that may have ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


@contextmanager
def fault_cluster() -> Iterator[FaultCluster]:
    with ExitStack() as stack:
        folder = stack.enter_context(session_folder())
        stack.enter_context(own_token())
        address = stack.enter_context(
            own_head(folder, 0, system_config=HEALTH_CHECKS, several_nodes=True)
        )
        cluster = FaultCluster(address, stack.enter_context(ExitStack()))
        stack.callback(cluster.stop)
        for _ in range(NODES):
            cluster.add_node()
            # One after another: `ray start` gives up if its node has not joined within 30 s.
            cluster.wait()
        yield cluster
