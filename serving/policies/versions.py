"""Policy slots of a system (serving, shadow, previous), and routing of requests to them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.serving.decisions.request import (
    FALLBACK,
    IN_SHADOW,
    LIFECYCLE,
    PAUSED,
    POLICY,
    SHADOW,
)
from loadmaster.serving.policies.store import Version


class Conflict(Exception):  # noqa: N818 - not an error of the service
    """An admin action is not possible in the present state; nothing has changed."""


class Routing(NamedTuple):
    """Versions that decide on one request."""

    acting: Version | None  # None: the rule
    cause: str | None  # why the rule acts
    shadow: Version | None  # decides too, without effect


@dataclass(frozen=True)
class PolicySlots:
    """Bundles of a system by slot; immutable."""

    serving: Version
    shadow: Version | None = None
    previous: Version | None = None
    paused: str | None = None  # reason; None: not paused

    def cast(self, mode: str, rules_act: bool, paused: str | None = None) -> Routing:
        """Route a request. `rules_act`: the lifecycle lets the rule act; `paused`: reason of a
        pause of the request's tenant."""
        if self.paused is not None or paused is not None:
            return Routing(None, PAUSED, None)
        if mode == SHADOW:
            return Routing(None, IN_SHADOW, self.serving)
        if rules_act:
            return Routing(None, LIFECYCLE, self.shadow or self.serving)
        return Routing(self.serving, None, self.shadow)

    def acts(self, rules_act: bool, paused: str | None = None) -> tuple[str, str]:
        """Source of the decision on a plain request of a tenant, and why."""
        if (reason := self.paused if self.paused is not None else paused) is not None:
            return FALLBACK, f"paused: {reason}"
        if rules_act:
            return FALLBACK, "the lifecycle lets the rule act"
        return POLICY, f"the bundle {self.serving.name} {self.serving.version} serves"

    def promoted(self, now: str) -> PolicySlots:
        """Move the shadow version to the serving slot."""
        assert self.shadow is not None
        return self.serving_now(self.shadow, now)

    def serving_now(self, version: Version, now: str) -> PolicySlots:
        shadow = self.shadow
        if shadow is not None and shadow.version == version.version:
            shadow = None
        previous = self.previous if version.version == self.serving.version else self.serving
        return replace(self, serving=replace(version, since=now), shadow=shadow, previous=previous)

    def rolled_back(self, now: str) -> PolicySlots:
        """Swap the serving and the previous version."""
        assert self.previous is not None
        return replace(self, serving=replace(self.previous, since=now), previous=self.serving)

    @property
    def versions(self) -> set[str]:
        slots = (self.serving, self.shadow, self.previous)
        return {slot.version for slot in slots if slot is not None}

    def record(self) -> dict[str, Any]:
        return asdict(self)


def restore_slots(record: Any, configured: Version) -> PolicySlots:
    """Restore slots from `record()`; unreadable parts take the configured version or None."""
    if not isinstance(record, dict):
        return PolicySlots(configured)
    slots = ("serving", "shadow", "previous")
    serving, shadow, previous = (_restore(record.get(slot)) for slot in slots)
    paused = record["paused"] if isinstance(record.get("paused"), str) else None
    return PolicySlots(serving or configured, shadow, previous, paused)


def _restore(record: Any) -> Version | None:
    """Restore a version; None if the record is damaged or its folder is gone."""
    try:
        version = Version(**record)
        return version if Path(version.folder).is_dir() else None
    except (TypeError, OSError):
        return None
