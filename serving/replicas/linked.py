"""The control process's record of each connected gateway and worker."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from loadmaster.serving.decisions.request import Loaded
from loadmaster.serving.replicas.link import LinkSlot, Peer
from loadmaster.serving.replicas.membership import Member


@dataclass
class Gateway:
    """A gateway that has joined, or was a member before this process started."""

    member: Member
    lease_until: float
    slot: LinkSlot | None = None
    is_ready: bool = False
    is_leaving: bool = False

    @property
    def peer(self) -> Peer | None:
        link = None if self.slot is None else self.slot.link
        return link if link is not None and link.is_up else None

    @property
    def is_gone(self) -> bool:
        """Whether it certainly decides no more."""
        if self.peer is not None:
            return time.monotonic() > self.lease_until
        return self.member.process.is_dead or time.monotonic() > self.lease_until


@dataclass
class LinkedWorkers:
    """The workers of a system that hold a link."""

    slots: dict[str, LinkSlot] = field(default_factory=dict)
    addresses: dict[str, Any] = field(default_factory=dict)  # of those that are ready

    async def load(self, folder: str) -> bytes:
        """Let every worker load a bundle; the reply is that of one that refused it, if any did."""
        links = [slot.link for slot in self.slots.values() if slot.link and slot.link.is_up]
        if not links:
            raise ConnectionError("no worker is up")
        replies: list[bytes] = await asyncio.gather(*(link.call("load", folder) for link in links))
        refused = (one for one in replies if Loaded.model_validate_json(one).refused is not None)
        return next(refused, replies[0])
