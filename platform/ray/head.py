"""A local Ray head with a dashboard that ends with the command, and more nodes on this machine.

`ray.init` gives every dashboard agent the same port, so that with another Ray on the machine jobs
are refused without a reason. `ray start` lets all ports be chosen.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.models.files import private_opener

START_S = 150.0
END_S = 20.0
HERE = "127.0.0.1"
LOG = "start.log"  # output of `ray start`, in the node's folder
# Of `ray start`, which gives up if its node is not part of the cluster within 30 s. On a busy
# machine that happens, and the next attempt, with everything in the page cache, is faster.
SLOW, TRIES = "timed out during startup", 3
STARTED = "Ray runtime started."  # in that output, once the node is part of the cluster
PORTS = range(20_000, 32_768)
# By default all nodes give the ports from 10002 on to their workers, each on its own: on one
# machine two nodes that start at the same time would choose the same one.
ANY_WORKER_PORT = ("--min-worker-port=0", "--max-worker-port=0")
# Ray ends a node whose dashboard agent is not up within 30 s, by default.
AGENT_START = {"RAY_agent_register_timeout_ms": "120000"}
# Whether other nodes may join; without, as on macOS and Windows, Ray binds to this machine only.
SEVERAL_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
DIES_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@contextlib.contextmanager
def own_head(
    folder: Path,
    cpus: int,
    metrics_port: int | None = None,
    system_config: Mapping[str, int] | None = None,
    several_nodes: bool = False,
) -> Iterator[str]:
    """Run a head that only this machine can reach; yield its address.

    `system_config` are settings of Ray's internals, for all nodes of the cluster. Others can join
    with `several_nodes`, or where the environment permits it.
    """
    variables = {SEVERAL_NODES: "1"} if several_nodes else {}
    with contextlib.ExitStack() as stack:
        for attempt in range(1, TRIES + 1):
            head, address, dashboard = _start_head(
                folder, cpus, metrics_port, system_config, variables
            )
            stack.callback(end, head)
            try:
                _wait_for(head, dashboard, folder)
                break
            except InputError:
                if attempt == TRIES or SLOW not in _output(folder):
                    raise
        yield address


def _start_head(
    folder: Path,
    cpus: int,
    metrics_port: int | None,
    system_config: Mapping[str, int] | None,
    variables: Mapping[str, str],
) -> tuple["subprocess.Popen[bytes]", str, int]:
    """Start a head; returns it, its address and the port of its dashboard."""
    gcs, dashboard, client, agent, metrics = free_ports(5)
    ports = {
        "port": gcs,
        "dashboard-port": dashboard,
        "ray-client-server-port": client,
        "dashboard-agent-listen-port": agent,
        "metrics-export-port": metrics_port or metrics,
    }
    options = [
        "--head", f"--num-cpus={cpus}", f"--dashboard-host={HERE}",
        *(f"--{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    if system_config:
        options.append(f"--system-config={json.dumps(dict(system_config))}")
    return _start(folder, options, variables), f"{HERE}:{gcs}", dashboard


def start_node(folder: Path, head: str, cpus: int) -> "subprocess.Popen[bytes]":
    """Start another node of that head's cluster on this machine; it joins within seconds.

    It needs a folder of its own: two nodes that start at the same time would choose the same names
    for their sockets.
    """
    agent, metrics = free_ports(2)
    options = [
        f"--address={head}", f"--num-cpus={cpus}", f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}",
    ]  # fmt: skip
    return _start(folder, options, {SEVERAL_NODES: "1"})


def end(node: "subprocess.Popen[bytes]") -> None:
    """Stop a node; after END_S seconds by force."""
    node.terminate()
    try:
        node.wait(END_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def _start(
    folder: Path, options: list[str], variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
        f"--node-ip-address={HERE}", f"--temp-dir={folder}", *ANY_WORKER_PORT, *options,
    ]  # fmt: skip
    with open(folder / LOG, "wb", opener=private_opener) as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the node
            preexec_fn=die_with_parent,
            env={**AGENT_START, **os.environ, "RAY_AUTH_MODE": "token", **variables},
        )


def _wait_for(head: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Wait until the node has started and its dashboard accepts connections."""
    began = time.monotonic()
    while head.poll() is None and time.monotonic() - began < START_S:
        if STARTED in _output(folder):
            with contextlib.suppress(OSError):
                socket.create_connection((HERE, port), 1.0).close()
                return
        time.sleep(0.2)
    lines = _output(folder).strip().splitlines()
    raise InputError(f"Ray did not start: {' '.join(lines[-3:])[-300:] or 'no output'}")


def _output(folder: Path) -> str:
    """What `ray start` has written so far."""
    return (folder / LOG).read_text(errors="replace")


def free_ports(count: int) -> list[int]:
    """Find ports that are free at every address; held until the last is found, so that they differ.

    None is in the range that the kernel gives to outgoing connections: until the caller listens
    there, nothing else is likely to take it.
    """
    numbers = random.SystemRandom().sample(PORTS, len(PORTS))  # tests seed the common generator
    found = list[int]()
    with contextlib.ExitStack() as held:
        for number in numbers:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("", number))
                found.append(number)
            if len(found) == count:
                return found
    raise InputError(f"no {count} free ports between {PORTS[0]} and {PORTS[-1]}")


def die_with_parent() -> None:
    """Request SIGTERM from the kernel for when the parent dies, so that no process is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGTERM)
