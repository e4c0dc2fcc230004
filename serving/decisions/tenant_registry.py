"""The tenants of a system that a gateway owns: a bounded number in memory, the others on disk.

The least recently used tenants leave memory first, and are read again when they return. Tenants
with requests under way stay. A request is the only thing that creates a tenant; reading one that is
unknown shows it as a new one.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any

from loadmaster.serving.decisions.tenant import Tenant, TenantParts
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TenantAccess, TenantSettings
from loadmaster.serving.monitoring import metrics
from loadmaster.serving.policies.versions import PolicySlots

SAVE_S = 10.0  # period of saving the record of a tenant that is used
SAVED_AT_ONCE = 20  # records in each round, so that no round takes long
SHOWN_TENANTS = 20
POLL_S = 0.002  # while requests under way are waited for
RESIZED_EVERY = 8  # changes: estimating the memory of a tenant takes a few microseconds


class TenantRegistry:
    """Tenants by name. Called by the event loop only."""

    def __init__(
        self, settings: TenantSettings, parts: TenantParts, clock: Callable[[], float]
    ) -> None:
        self.parts, self._settings, self._clock = parts, settings, clock
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()  # the least recently used first
        self._sizes: dict[str, int] = {}  # memory of each
        self._bytes = 0
        self._unsaved: dict[str, float] = {}  # since when, the oldest first
        # Tenants that left memory, until their record is written: number of the batch
        self._leaving: dict[str, tuple[Tenant, int]] = {}
        self._loading: dict[str, asyncio.Task[Tenant]] = {}
        self._bundles: tuple[str, str | None] = "", None
        self._promoted = False
        self._dropped = 0  # rows of the log
        self.shadow_counts: Counter[str] = Counter()  # of the shadow bundle, since the last report

    def __iter__(self) -> Iterator[Tenant]:
        """The tenants in memory."""
        return iter(self._tenants.values())

    def find(self, name: str) -> Tenant | None:
        """A tenant in memory, which becomes the most recently used."""
        tenant = self._tenants.get(name)
        if tenant is not None:
            self._tenants.move_to_end(name)
        return tenant

    async def get(self, name: str) -> Tenant:
        """The tenant of a request, which becomes the most recently used."""
        while (tenant := self.find(name)) is None:
            if name in self._leaving:
                return self._add(self._leaving.pop(name)[0])
            task = self._loading.get(name)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._load_and_add(name))
                self._loading[name] = task
            await asyncio.shield(task)  # several requests may wait for it
        return tenant

    async def _load_and_add(self, name: str) -> Tenant:
        try:
            tenant, is_new = await self._load(name)
            self._add(tenant)
            if is_new:
                self.save(tenant)
            return tenant
        finally:
            del self._loading[name]

    def _add(self, tenant: Tenant) -> Tenant:
        self._match_bundles(tenant)
        self._tenants[tenant.name] = tenant
        self._resize(tenant)
        self._evict()
        return tenant

    async def peek(self, name: str) -> Tenant:
        """A tenant to read. One that is not in memory is a copy, and is not kept.

        The default tenant always exists.
        """
        if (tenant := self._tenants.get(name)) is not None:
            return tenant
        if name == DEFAULT_TENANT:
            return await self.get(name)
        tenant = self._leaving[name][0] if name in self._leaving else (await self._load(name))[0]
        self._match_bundles(tenant)
        return tenant

    async def _load(self, name: str) -> tuple[Tenant, bool]:
        """A tenant as it was saved, or a new one; and whether it is new."""
        saved = await self.parts.store.load(name)
        tenant = Tenant(name, self.parts, self._clock())
        tenant.restore(saved)
        return tenant, saved.record is None

    async def release(self, moves: Callable[[str], bool]) -> None:
        """Write the tenants that another gateway will own, and remove them from memory.

        Waits for their requests under way; the caller lets no further ones begin. Raises OSError if
        they cannot be written.
        """
        while any(tenant.pins for tenant in self if moves(tenant.name)) or any(
            moves(name) for name in self._loading
        ):
            await asyncio.sleep(POLL_S)
        for tenant in [tenant for tenant in self if moves(tenant.name)]:
            self._remove(tenant)
        if not await self.parts.store.flush():
            raise OSError(f"tenants could not be written: {self.parts.store.fault}")
        self._forget_written()

    def changed(self, tenant: Tenant, now: float) -> None:
        """Save a tenant soon; at once if its lifecycle state changed."""
        tenant.used = now
        if tenant.name not in self._unsaved:
            self._unsaved[tenant.name] = now
        if tenant.recorder.transitions != tenant.saved_transitions:
            self.save(tenant)
        if tenant.changes % RESIZED_EVERY == 0:
            self._resize(tenant)
            if self._bytes > self._settings.memory_bytes:
                self._evict()
        tenant.changes += 1

    # Bundles, which all tenants share.

    def set_bundles(self, old: PolicySlots | None, new: PolicySlots, *, by: str | None) -> None:
        """Let the tenants in memory refer to other bundles. `by`: the action that let the bundle
        serve; None: the configuration."""
        shadow = None if new.shadow is None else new.shadow.version
        self._bundles, self._promoted = (new.serving.version, shadow), by is not None
        if old is None or (old.serving, old.shadow) == (new.serving, new.shadow):
            return
        self.shadow_counts.clear()
        now = self._clock()
        for tenant in self:
            if old.serving != new.serving and by is not None:
                tenant.bundles = self._bundles
                tenant.recorder.replaced(by, now)
            elif old.serving != new.serving:
                self._match_bundles(tenant)
            else:
                tenant.bundles = self._bundles
                tenant.recorder.monitor.shadow_changed()
            self.changed(tenant, now)

    def _match_bundles(self, tenant: Tenant) -> None:
        """Drop what a tenant measured of other bundles than those that serve and shadow now."""
        known, tenant.bundles = tenant.bundles, self._bundles
        if not known[0] or known == self._bundles:
            return
        if known[0] != self._bundles[0]:
            why = f"the bundle {self._bundles[0]} is new"
            tenant.recorder.replaced(why, self._clock(), promoted=self._promoted)
        else:
            tenant.recorder.monitor.shadow_changed()

    # Bounds and persistence.

    def _resize(self, tenant: Tenant) -> None:
        size = tenant.memory_bytes
        self._bytes += size - self._sizes.get(tenant.name, 0)
        self._sizes[tenant.name] = size

    def _evict(self) -> None:
        """Write the least recently used tenants to disk. The default one stays, uncounted: else
        `most` others that are used in turn would each be gone when they return."""
        settings = self._settings
        most = settings.most + (DEFAULT_TENANT in self._tenants)
        while len(self._tenants) > most or self._bytes > settings.memory_bytes:
            idle = (one for one in self._tenants.values() if not one.pins)
            oldest = next((one for one in idle if one.name != DEFAULT_TENANT), None)
            if oldest is None or oldest is next(reversed(self._tenants.values())):
                return
            self._remove(oldest)

    def _remove(self, tenant: Tenant) -> None:
        name = tenant.name
        number = self.save(tenant)
        del self._tenants[name]
        self._bytes -= self._sizes.pop(name)
        self._unsaved.pop(name, None)
        self._leaving[name] = tenant, number
        self._forget_written()

    def _forget_written(self) -> None:
        """Free the tenants that left memory and are on disk by now."""
        store = self.parts.store
        while self._leaving:
            oldest, (_, written) = next(iter(self._leaving.items()))
            failing = store.fault is not None or store.is_full
            lost = failing and len(self._leaving) > self._settings.most
            if written > store.done and not lost:
                return
            del self._leaving[oldest]

    def save(self, tenant: Tenant) -> int:
        """Start writing the record of a tenant; returns the number of its batch."""
        state = tenant.recorder.state
        self._unsaved.pop(tenant.name, None)
        tenant.saved_transitions = tenant.recorder.transitions
        return self.parts.store.put_record(tenant.name, tenant.used, state, tenant.record())

    async def tick(self, *, paused: bool) -> None:
        """Set the gauges and save tenants that were used. Called every few seconds."""
        labels, now = self.parts.labels, self._clock()
        for tenant in list(self._tenants.values()):
            if labels.has(tenant.name):
                tenant.recorder.report(paused=paused or tenant.paused is not None)
                await asyncio.sleep(0)
        dropped = self.parts.log.status().dropped
        if dropped > self._dropped:
            new = dropped - self._dropped
            metrics.record("loadmaster_log_dropped_total", new, self.parts.system)
        self._dropped = dropped
        self._forget_written()
        due = [name for name, since in self._unsaved.items() if now - since >= SAVE_S]
        for name in due[:SAVED_AT_ONCE]:
            if name in self._unsaved:
                self.save(self._tenants[name])
                await asyncio.sleep(0)

    async def close(self) -> None:
        for name in list(self._unsaved):
            self.save(self._tenants[name])
        await self.parts.store.close()
        self.parts.log.close()

    # Views.

    def most_active(self) -> list[dict[str, Any]]:
        """The tenants in memory with the most decisions."""
        return most_active(_entry(tenant) for tenant in self)

    async def summary(self, access: TenantAccess, others: Mapping[str, Any]) -> dict[str, Any]:
        """The tenants that a client may use: their number by state, and the most active ones.

        `others`: number of all tenants by state, and the most active ones of other gateways.
        """
        if access.tenants is None:
            states = Counter(others["states"])
            active = [*self.most_active(), *others["active"]]
        else:
            found = [await self.peek(name) for name in access.tenants]
            shown = [tenant for tenant in found if tenant.recorder.monitor.total]
            states = Counter(tenant.recorder.state for tenant in shown)
            active = [_entry(tenant) for tenant in shown]
        return {
            "known": states.total(),
            "by_state": dict(states),
            "most_active": most_active(active),
        }


def most_active(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return nlargest(SHOWN_TENANTS, entries, key=lambda entry: entry["decisions"])


def _entry(tenant: Tenant) -> dict[str, Any]:
    return {
        "tenant": tenant.name,
        "decisions": tenant.recorder.monitor.total,
        "lifecycle": tenant.recorder.state,
        "paused": tenant.paused is not None,
    }
