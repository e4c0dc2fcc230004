"""A gateway among others: the tenants that it owns, and the way to the owners of all others."""

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.serving.http.body import RETRY_SOON, HttpError
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.policies.control_view import ControlState
from loadmaster.serving.replicas.control import LEASE_S
from loadmaster.serving.replicas.control_client import ControlClient, Where
from loadmaster.serving.replicas.link import (
    Handler,
    LinkLostError,
    LinkSlot,
    Listener,
    MovedError,
    Peer,
    cancel,
    connect,
)
from loadmaster.serving.replicas.membership import (
    Assignment,
    Member,
    Signal,
    own_process,
    restore_assignment,
)
from loadmaster.serving.replicas.routed_system import HERE, Place, RoutedSystem
from loadmaster.serving.worker.pool import WorkerPool
from loadmaster.serving.worker.rpc import RpcAddress

log = logging.getLogger(__name__)

WAIT_S = 5.0  # how long a request waits for the owner of its tenant
LEAVE_S = 4.0
READY_S = 0.05


class Replica:
    """One gateway. Called by one event loop only."""

    def __init__(
        self,
        control: ControlClient,
        systems: Mapping[str, RoutedSystem],
        workers: Mapping[str, WorkerPool],
        callers: KnownCallers,
        host: str | None = None,
        where: Where | None = None,
    ) -> None:
        """`host`: address of this machine that other gateways reach, `where`: finds the control
        process; None: there are no others."""
        self._control, self._systems, self._workers = control, systems, workers
        self._callers, self._host, self._where, self._key = callers, host, where, b""
        self.name = uuid.uuid4().hex
        self._member = Member(self.name, "", 0, own_process())
        self._assignment, self._next = Assignment(0, []), None  # type: Assignment, Assignment | None
        self._lease_until = 0.0
        self._changed = Signal()
        self._links: dict[str, asyncio.Task[Peer]] = {}  # to other gateways
        self._is_ready = False
        self._tasks: list[asyncio.Task[Any]] = []
        for system in systems.values():
            system.use(self)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Calls of the control process."""
        return {
            "state": self._apply_state,
            "workers": self._set_workers,
            "release": self._release,
            "assign": self._assign,
        }

    async def start(self) -> None:
        works = [self._control.run(self.handlers, self._join)]
        if self._host is not None and self._where is not None:
            _, _, self._key = await self._where()
            listener = Listener(self._host, self._key, self._forwarded)
            self._member = Member(self.name, *listener.address, self._member.process)
            works.append(listener.run())
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def own_when_ready(self) -> None:
        """Own tenants once all systems are ready. Until then it does so only if no other gateway
        is there."""
        while not all(system.ready for system in self._systems.values()):
            await asyncio.sleep(READY_S)
        self._is_ready = True
        while True:
            try:
                await self._control.call("ready")
                return
            except LinkLostError:  # joining again repeats it
                await asyncio.sleep(READY_S)

    async def wait_member(self) -> None:
        """Return once this gateway owns tenants."""
        while self.name not in self._assignment.members:
            await self._changed.wait(1.0)

    async def leave(self) -> None:
        """Let other gateways own the tenants, if there are any."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._control.call("leave", wait_s=1.0)
        except Exception as fault:
            log.warning("left without the control process: %r", fault)

    async def close(self) -> None:
        for task in (*self._tasks, *self._links.values()):
            await cancel(task)

    async def call_control(self, name: str, body: Any) -> Any:
        return await self._control.call(name, body)

    # Ownership.

    def place(self, tenant: str) -> Place | None:
        """Where the tenant is decided for: HERE, or the name of a gateway; None: not known now."""
        if time.monotonic() > self._lease_until:
            return None
        owner = self._assignment.owner(tenant)
        if self._next is not None and self._next.owner(tenant) != owner:
            return None  # it is moving
        return HERE if owner == self.name else owner

    async def wait_place(self, until: float) -> None:
        """Wait for a change of places; raises HttpError after the time `until`."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            line = "no gateway can decide for the tenant now"
            raise HttpError(503, line, headers=RETRY_SOON)
        await self._changed.wait(min(left_s, 0.1))

    def wait_until(self) -> float:
        return time.monotonic() + WAIT_S

    def fire(self) -> None:
        self._changed.fire()

    # Calls of the control process.

    async def _join(self, peer: Peer) -> None:
        sent = time.monotonic()
        body = {"member": self._member, "ready": self._is_ready}
        reply = await peer.call("join", body)
        for system, state in reply["states"].items():
            await self._apply_state([system, state])
        for system, addresses in reply["workers"].items():
            self._add_workers(system, addresses, keep=True)
        self._callers.merge(reply["callers"])
        self._next = reply["next"] and restore_assignment(reply["next"])
        self._set_assignment(restore_assignment(reply["assignment"]))
        self._lease_until = sent + LEASE_S
        self.fire()

    async def _apply_state(self, body: Any) -> None:
        system, state = body
        if system in self._systems:
            await self._systems[system].apply_control(ControlState.restored(state))

    async def _set_workers(self, body: Any) -> None:
        self._add_workers(*body, keep=False)

    def _add_workers(self, system: str, addresses: Sequence[Any], *, keep: bool) -> None:
        if system in self._workers:
            found = [RpcAddress(*one) for one in addresses]
            self._workers[system].set_workers(found, self._key, keep=keep)

    async def _release(self, body: Any) -> None:
        """Finish, write and give up the tenants that will move away."""
        self._next = new = restore_assignment(body)

        def moves(tenant: str) -> bool:
            return new.owner(tenant) != self.name

        for system in self._systems.values():
            await system.release(moves)

    async def _assign(self, body: Any) -> None:
        new = restore_assignment(body)
        if self._next is not None and self._next.number <= new.number:
            self._next = None
        self._set_assignment(new)
        self.fire()

    def _set_assignment(self, new: Assignment) -> None:
        self._assignment = new
        here = self._member.process.machine
        near = sorted(name for name, one in new.members.items() if one.process.machine == here)
        if self.name in near:
            for pool in self._workers.values():
                pool.prefer(near.index(self.name), len(near))
        for name in set(self._links) - set(new.members):
            task = self._links.pop(name)
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()

    async def report(self) -> None:
        """Report to the control process, which extends the lease. Called every BEAT_S."""
        if not self._lease_until:
            return  # not joined yet
        try:
            sent = time.monotonic()
            systems = {name: one.report() for name, one in self._systems.items()}
            body = {"systems": systems, "callers": self._callers.unsaved()}
            async with asyncio.timeout(LEASE_S):
                await self._control.call("beat", body)
            self._lease_until = max(self._lease_until, sent + LEASE_S)
        except Exception as fault:
            log.warning("report to the control process: %r", fault)
            self._control.renew()

    # Other gateways.

    def _forwarded(self, _: LinkSlot) -> Mapping[str, Handler]:
        """Handlers for calls of other gateways."""

        def handler(name: str) -> Handler:
            async def handle(body: Any) -> Any:
                system, *arguments = body
                return await self._systems[system].handle(name, arguments)

            return handle

        return {name: handler(name) for name in RoutedSystem.OPERATIONS}

    async def call_gateway(self, gateway: str, name: str, body: Any) -> Any:
        """Call the owner of a tenant; raises LinkLostError or MovedError if it is not that now."""
        task = self._links.get(gateway)
        if task is None or (task.done() and not _is_up(task)):
            if gateway not in self._assignment.members:
                raise MovedError("the gateway is gone")
            opening = self._open(self._assignment.members[gateway])
            task = self._links[gateway] = asyncio.get_running_loop().create_task(opening)
        return await (await asyncio.shield(task)).call(name, body)

    async def _open(self, member: Member) -> Peer:
        try:
            return await connect(member.host, member.port, self._key, {})
        except OSError as fault:  # also a timeout
            raise LinkLostError(str(fault)) from None


def _is_up(task: "asyncio.Task[Peer]") -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_up
