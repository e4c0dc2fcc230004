"""A system's deployment: it decides in a thread of its own, so that it can tell when that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.policy_runner import PolicyRunner, line_of
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.freeze_gc import freeze_gc
from loadmaster.serving.system import Policy, find_endpoint
from loadmaster.serving.worker.rpc import DECIDE, PROPOSE, RpcServer

HANGS_S = 5.0  # a call that takes longer will never end: the replica is started anew

Result = TypeVar("Result")


class SystemWorker:
    """Two deciders: one for decisions that are acted on, one for what others would have done.

    Whatever a shadow bundle does, it is never in the way. Policies have scratch tables, so either
    is used by one thread at a time: its own, or that of a gateway's line.
    """

    def __init__(
        self, system: str, reference: str, rule: str, folder: str, warm: bool = True
    ) -> None:
        _one_thread_for_torch()
        endpoint = find_endpoint(system, reference)
        self._acting, self._beside = PolicyRunner(endpoint, rule), PolicyRunner(endpoint, rule)
        deciders = (self._acting, self._beside)
        self._threads = {decider: ThreadPoolExecutor(1) for decider in deciders}
        self._locks = {decider: threading.Lock() for decider in deciders}
        self._busy_since: float | None = None
        self._door = RpcServer({DECIDE: self._decide_all, PROPOSE: self._propose_all})
        policies = [self._acting.rule]
        # A worker that is started anew may find that the bundle it was once given is gone. The
        # gateway keeps copies of those that serve, and names one with every request.
        with contextlib.suppress(InputError):
            policies.append(self._acting.load(folder))
        if warm:
            endpoint.warm_up(*policies)
            freeze_gc()

    async def decide(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        return await self._in_thread(self._acting, lambda: self._decide_all(version, folder, raw))

    def _decide_all(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        with self._locks[self._acting]:
            self._busy_since = time.monotonic()
            try:
                return [self._decided(one, version, folder) for one in raw]
            finally:
                self._busy_since = None

    def _decided(self, raw: bytes, version: str, folder: str) -> bytes:
        """Where even the rule fails, the others of the crowd shall have their answers."""
        try:
            return to_json(self._acting.decide(raw, version, folder))
        except Exception as fault:
            return to_json({"failed": line_of(fault)})

    async def propose(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        return await self._in_thread(self._beside, lambda: self._propose_all(version, folder, raw))

    def _propose_all(self, version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        with self._locks[self._beside]:
            return [to_json(self._beside.propose(one, version, folder)) for one in raw]

    async def load(self, folder: str) -> bytes:
        """Whether the bundle in a folder can be used here; if so, no decision waits for it."""

        def for_both() -> Policy:
            self._acting.keep(self._acting.endpoint.policy(Path(folder)))
            with self._locks[self._beside]:
                return self._beside.load(folder)

        try:
            policy = await self._in_thread(self._beside, for_both)
        except InputError as fault:
            return to_json({"refused": str(fault)})
        return to_json({"name": policy.name, "version": policy.version})

    async def door(self, known: list[str]) -> list[str]:
        """Where the gateway may lay a line to this worker; see `Door.open`."""
        return list(self._door.open(known))

    async def check_health(self) -> None:
        """Called by Serve: a replica that raises here is replaced."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > HANGS_S:
            raise RuntimeError("a decision hangs")

    async def _in_thread(self, decider: PolicyRunner, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads[decider], work)


def _one_thread_for_torch() -> None:
    """Networks are small; threads that wait for one another would take the gateway's core."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(1)
