"""The control process: the state that all gateways apply, and which gateway owns which tenants.

There is one, kept so by a lock on the folder of the service. Gateways and workers hold a link to
it. A change of state is confirmed once every gateway has applied it, or cannot decide any more: its
process has ended, or its lease has run out. A tenant moves to another gateway in two steps: its
owner finishes its requests, writes its state and lets go ("release"), then all gateways get the new
assignment ("assign"). Gateways keep deciding for LEASE_S without the control process, which Serve
restarts in seconds.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.request import line_of
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.policies.control_view import ControlState
from loadmaster.serving.policies.manager import Workers
from loadmaster.serving.replicas.control_files import (
    load_assignment,
    load_key,
    save_assignment,
)
from loadmaster.serving.replicas.link import (
    Handler,
    LinkLostError,
    LinkSlot,
    Listener,
    LocalLink,
    Peer,
    cancel,
)
from loadmaster.serving.replicas.linked import Gateway, LinkedWorkers
from loadmaster.serving.replicas.membership import (
    Assignment,
    Member,
    ProcessId,
    Signal,
    own_process,
)
from loadmaster.serving.replicas.system_control import SystemControl
from loadmaster.serving.settings import ServeSettings

log = logging.getLogger(__name__)

LEASE_S = 15.0  # how long a gateway may decide after its last contact
BEAT_S = 2.0  # between two reports of a gateway
TICK_S = 2.0
WATCH_S = 0.1  # between two looks at gateways without a link
LEAVE_S, LEFT_S = 1.5, 5.0  # how long gateways may take to begin and to end leaving


class Control:
    """State of the service. Called by one event loop only."""

    def __init__(
        self, settings: ServeSettings, lock: int, workers: Mapping[str, Workers] | None = None
    ) -> None:
        """`lock`: of the folder, from `lock_folder`; `workers`: those of this process, None if
        workers join. Raises InputError."""
        self._folder, self._lock = settings.folder, lock
        self.key = load_key(self._folder)
        self._workers = {name: LinkedWorkers() for name in settings.systems}
        self.systems = {
            name: SystemControl(name, settings, (workers or self._workers)[name], self._publish)
            for name in settings.systems
        }
        self._callers = KnownCallers(self._folder / "known-callers.json")
        self._assignment = load_assignment(self._folder)
        self._next: Assignment | None = None  # tenants are being released for it
        until = time.monotonic() + LEASE_S
        # A gateway in the process of its control ended with it.
        self._gateways = {
            name: Gateway(member, until)
            for name, member in self._assignment.members.items()
            if member.process != own_process()
        }
        self._changed, self._assigned = asyncio.Event(), Signal()
        self._changed.set()
        self._is_stopped = False
        self._slots: set[LinkSlot] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._calls: set[asyncio.Task[None]] = set()  # the event loop keeps weak references only
        self.address: tuple[str, int] | None = None

    async def start(self, host: str | None = None) -> None:
        """Start the work of the process; with `host`, accept links at that address."""
        works = [self._watch(), self._assign(), self._tick()]
        if host is not None:
            listener = Listener(host, self.key, self._handlers)
            self.address = listener.address
            works.append(listener.run())
        for system in self.systems.values():
            await system.start()
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def close(self) -> None:
        """Let the gateways leave, and write the state."""
        if self._is_stopped:
            return
        began = time.monotonic()
        while linked := [one for one in self._gateways.values() if one.peer is not None]:
            # If only this process is replaced, no gateway leaves.
            left_s = LEFT_S if any(one.is_leaving for one in linked) else LEAVE_S
            if time.monotonic() - began > left_s:
                break
            await asyncio.sleep(0.02)
        await self._close_links()
        for system in self.systems.values():
            await system.close()
        self._save_callers()
        os.close(self._lock)

    async def stop(self) -> None:
        """Stop without a last write, as if the process were killed."""
        self._is_stopped = True
        await self._close_links()
        os.close(self._lock)

    async def _close_links(self) -> None:
        for task in self._tasks:
            await cancel(task)
        for slot in self._slots:
            if slot.link is not None:
                slot.link.close()

    def check(self) -> None:
        """Raise if a part of the process has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    def connect_here(self, handlers: Mapping[str, Handler]) -> Peer:
        """A link of a gateway in this process, which carries out calls with `handlers`."""
        slot, lost = LinkSlot(), asyncio.Event()
        slot.link = LocalLink(handlers, lost)
        return LocalLink(self._handlers(slot), lost)

    # Calls of gateways and workers.

    def _handlers(self, slot: LinkSlot) -> Mapping[str, Handler]:
        self._slots = {one for one in self._slots if one.link is None or one.link.is_up} | {slot}

        def bound(method: Callable[[LinkSlot, Any], Any]) -> Handler:
            async def handler(body: Any) -> Any:
                return await method(slot, body)

            return handler

        def of_system(method: Callable[[SystemControl, Any], Any]) -> Handler:
            async def handler(body: Any) -> Any:
                return await method(self.systems[body[0]], body[1])

            return handler

        return {
            "join": bound(self._join),
            "ready": bound(self._ready),
            "beat": bound(self._beat),
            "leave": bound(self._leave),
            "join worker": bound(self._join_worker),
            "worker ready": bound(self._worker_ready),
            "write": of_system(SystemControl.write),
            "load": of_system(SystemControl.load),
            "summary": of_system(SystemControl.summary),
            "retrain": of_system(SystemControl.retrain),
            "admin": of_system(SystemControl.admin),
        }

    async def _join(self, slot: LinkSlot, body: Any) -> dict[str, Any]:
        name, host, port, process = body["member"]
        member = Member(name, host, port, ProcessId(*process))
        until = time.monotonic() + LEASE_S
        self._gateways[name] = Gateway(member, until, slot, body["ready"])
        slot.name = name
        self._changed.set()
        return {
            "states": {name: one.manager.state.record() for name, one in self.systems.items()},
            "workers": {name: list(one.addresses.values()) for name, one in self._workers.items()},
            "callers": list(self._callers),
            "assignment": self._assignment.record(),
            "next": self._next and self._next.record(),
        }

    def _gateway(self, slot: LinkSlot) -> Gateway:
        found = self._gateways.get(slot.name)
        if found is None or found.slot is not slot:
            raise LinkLostError("the gateway must join again")
        return found

    async def _ready(self, slot: LinkSlot, _: Any) -> None:
        self._gateway(slot).is_ready = True
        self._changed.set()

    async def _beat(self, slot: LinkSlot, body: Any) -> None:
        """A gateway reports; its lease begins anew."""
        self._gateway(slot).lease_until = time.monotonic() + LEASE_S
        for system, report in body["systems"].items():
            self.systems[system].take_report(slot.name, report)
        self._callers.merge(body["callers"] or ())

    async def _leave(self, slot: LinkSlot, _: Any) -> None:
        """Return when the gateway owns no tenants."""
        self._gateway(slot).is_leaving = True
        self._changed.set()
        while slot.name in self._assignment.members:
            await self._assigned.wait(1.0)

    async def _join_worker(self, slot: LinkSlot, body: Any) -> str:
        """Returns the folder of the bundle to load."""
        slot.name = body["name"]
        self._workers[body["system"]].slots[slot.name] = slot
        return self.systems[body["system"]].manager.roles.serving.folder

    async def _worker_ready(self, slot: LinkSlot, body: Any) -> None:
        self._workers[body["system"]].addresses[slot.name] = body["address"]
        self._announce_workers(body["system"])

    def _announce_workers(self, system: str) -> None:
        self._send_all("workers", [system, list(self._workers[system].addresses.values())])

    def _send_all(self, name: str, body: Any) -> None:
        """Call all gateways that have a link, in order of the calls; does not wait for them."""

        async def call(peer: Peer) -> None:
            try:
                await peer.call(name, body)
            except Exception as fault:  # it gets all when it joins again
                log.info("%s: %s", name, line_of(fault))

        for gateway in self._gateways.values():
            if gateway.peer is not None:
                task = asyncio.get_running_loop().create_task(call(gateway.peer))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)

    async def _publish(self, system: str, state: ControlState) -> None:
        """Return when every gateway has applied the state, or decides no more."""
        gateways, body = list(self._gateways), [system, state.record()]
        await asyncio.gather(*(self._call_until_gone(one, "state", body) for one in gateways))

    async def _call_until_gone(self, gateway: str, name: str, body: Any) -> None:
        """Call a gateway, again after it has joined again, until it has answered or is gone."""
        while (found := self._gateways.get(gateway)) is not None and not found.is_gone:
            try:
                if found.peer is not None:
                    left_s = max(0.01, found.lease_until - time.monotonic())
                    await asyncio.wait_for(found.peer.call(name, body), left_s)
                    return
            except (LinkLostError, TimeoutError) as fault:
                log.info("%s of gateway %s is repeated: %s", name, gateway, line_of(fault))
            except Exception as fault:
                log.warning("%s of gateway %s: %s", name, gateway, line_of(fault))
            await asyncio.sleep(WATCH_S / 2)

    # Ownership of tenants.

    def _chosen(self) -> list[Member]:
        """The gateways that should own tenants: those that are ready, or else any."""
        present = [one for one in self._gateways.values() if not one.is_leaving]
        owned = self._assignment.members
        ready = [
            one for one in present if one.is_ready or (not one.slot and one.member.name in owned)
        ]
        return sorted(one.member for one in ready or present)

    async def _assign(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            members = self._chosen()
            if [member.name for member in members] == sorted(self._assignment.members):
                continue
            self._next = new = Assignment(self._assignment.number + 1, members)
            owners, body = self._assignment.members, new.record()
            await asyncio.gather(*(self._call_until_gone(one, "release", body) for one in owners))
            await asyncio.to_thread(save_assignment, self._folder, new)
            self._assignment, self._next = new, None
            self._assigned.fire()
            self._send_all("assign", body)

    async def _watch(self) -> None:
        """Remove gateways and workers that have ended."""
        while True:
            await asyncio.sleep(WATCH_S)
            for name, gateway in list(self._gateways.items()):
                link = None if gateway.slot is None else gateway.slot.link
                ended = link is not None and link.has_ended
                if ended or gateway.is_gone:
                    del self._gateways[name]
                    for system in self.systems.values():
                        system.gateway_gone(name)
                    self._changed.set()
            for served, workers in self._workers.items():
                lost = [name for name, slot in workers.slots.items() if not slot.is_up]
                for name in lost:
                    del workers.slots[name]
                    workers.addresses.pop(name, None)
                if lost:
                    self._announce_workers(served)

    async def tick(self) -> None:
        """One round of what no call causes."""
        for name, system in self.systems.items():
            try:
                await system.manager.tick()
            except Exception:  # the next round may succeed
                log.exception("maintenance of %s", name)
        await asyncio.to_thread(self._save_callers)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    def _save_callers(self) -> None:
        if (callers := self._callers.unsaved()) is not None:
            self._callers.save(callers)
