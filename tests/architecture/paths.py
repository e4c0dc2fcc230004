"""Trace which files three operations enter: `python -m tests.architecture.paths`.

A decision over HTTP, a training iteration of Decima and an evaluation run in this process under a
profiler. A file counts once, where it is first entered; calls while a module is imported, and code
compiled by numba, do not count. docs/architecture.md lists the same files.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY_TRAINING = {
    "environment.workload": "toy",
    "environment.jobs": 3,
    "environment.executors": 4,
    "rollouts.sequences": 2,
    "rollouts.per_sequence": 2,
    "training.iterations": 1,
    "validation.every": 1,
    "validation.sequences": 2,
}


class FileTrace:
    """Files of the packages in the order in which they are first entered while `active`."""

    def __init__(self, packages: tuple[str, ...], within: str | None = None) -> None:
        """`within`: only calls below this function count, by its qualified name."""
        self.files: dict[str, str] = {}
        self._packages, self._within = packages, within
        self._names: dict[str, str | None] = {}
        self._importing = threading.local()
        self._depth = 0
        self.active = within is None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code, step = frame.f_code, 1 if event == "call" else -1
        importing = getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = importing + step
            return
        if code.co_qualname == self._within:
            self._depth += step
            self.active = self._depth > 0
        if self.active and not importing and event == "call":
            name = self._file(code.co_filename)
            if name is not None:
                self.files.setdefault(name, code.co_qualname)

    def _file(self, path: str) -> str | None:
        if path not in self._names:
            real = Path(os.path.realpath(path))
            inside = real.relative_to(ROOT).as_posix() if real.is_relative_to(ROOT) else ""
            self._names[path] = inside if inside.split("/")[0] in self._packages else None
        return self._names[path]

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def _run(command: list[str]) -> None:
    from loadmaster.platform.cli.main import main

    with open(os.devnull, "w") as ignored, redirect_stdout(ignored), redirect_stderr(ignored):
        assert main(command) == 0


def evaluate_path() -> list[str]:
    """Files of platform/ that `loadmaster evaluate` enters."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["evaluate", "dag_scheduling", "--policy", "fair", "--policy", "fifo"]
        command += ["--workload", "toy", "--seeds", "2", "--output", f"{folder}/out"]
        _run(command)  # whatever is imported and compiled late
        trace = FileTrace(("platform",))
        with trace.installed():
            _run([*command[:-1], f"{folder}/again"])
    return list(trace.files)


def training_path() -> list[str]:
    """Files of platform/ and models/ that one training iteration of Decima enters."""
    importlib.import_module("loadmaster.platform.training.loop")  # faster without the trace
    trace = FileTrace(("platform", "models"), within="Trainer.step")
    with tempfile.TemporaryDirectory() as folder, trace.installed():
        given = [part for name, v in TINY_TRAINING.items() for part in ("--set", f"{name}={v}")]
        _run(["train", "decima", "--workers", "0", *given, "--output", f"{folder}/run"])
    return list(trace.files)


def decide_path() -> list[str]:
    """Files of serving/ that one decision over HTTP enters, from the listener to the response.

    The gateway and the worker, which are processes of their own on Ray, run in this one, with the
    socket between them. A file counts if every one of some decisions enters it: periodic calls of
    the service may fall into any of them.
    """
    from loadmaster.envs.settings import build_settings
    from loadmaster.serving.http.app_factory import assemble
    from loadmaster.serving.settings import ServeSettings
    from loadmaster.serving.worker.pool import WorkerPool
    from loadmaster.serving.worker.worker import SystemWorker
    from tests.serving import toy
    from tests.serving.live import free_port

    trace = FileTrace(("serving",))
    trace.active = False
    entered: list[list[str]] = []

    async def trace_decision(folder: Path) -> None:
        bundle, port = toy.make_bundle(folder / "bundle"), free_port()
        system = {"endpoint": toy.REFERENCE, "bundle": str(bundle)}
        values = {"systems": {"toy": system}, "folder": folder / "state", "port": port}
        worker = SystemWorker("toy", toy.REFERENCE, "hold", str(bundle))
        pool: Any = WorkerPool()
        pool.load = worker.load
        service = assemble(build_settings(ServeSettings, values), {"toy": pool})
        async with service.lifespan(service.app):
            pool.set_workers([worker.rpc.listen("toy", "127.0.0.1", b"")], b"")
            while not all(system.ready for system in service.systems.values()):
                await asyncio.sleep(0.02)
            for turn in range(6):
                traced = turn >= 3  # the first ones connect
                if traced:
                    await asyncio.sleep(0.2)  # what they changed is written by a thread
                trace.files = {}
                trace.active = traced
                reply = await _post(port, b'{"state":{"version":1,"load":42,"replicas":3}}')
                trace.active = False
                assert reply["source"] == "policy", reply
                if traced:
                    entered.append(list(trace.files))

    with tempfile.TemporaryDirectory() as folder, trace.installed():
        asyncio.run(trace_decision(Path(folder)))
    first, *others = entered
    return [file for file in first if all(file in other for other in others)]


async def _post(port: int, body: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/toy/decide HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
    reply: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    return reply


PATHS: dict[str, Callable[[], list[str]]] = {
    "decide": decide_path,
    "training": training_path,
    "evaluate": evaluate_path,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PATHS:
        files = PATHS[name]()
        print(f"{name}: {len(files)} files", *files, sep="\n  ")
