"""Who acts and who only watches: the policy that serves, one in its shadow, the rule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from loadmaster.serving.decisions import request as said
from loadmaster.serving.policies.store import Version, as_record, from_record


class Routing(NamedTuple):
    """The parts in one decision."""

    acting: Version | None  # None: the rule
    cause: str | None  # why the rule acts
    beside: Version | None  # decides as well, and nobody acts on it


@dataclass(frozen=True)
class PolicySlots:
    """The bundles of a system by their place. Every change makes a new one."""

    serving: Version
    shadow: Version | None = None
    previous: Version | None = None
    paused: str | None = None  # why; None: it is not
    refused: frozenset[str] = field(default_factory=frozenset)  # versions that were rolled back

    def cast(self, mode: str, rules_act: bool) -> Routing:
        """For one request. `rules_act`: the lifecycle keeps the policy from acting."""
        if self.paused is not None:
            return Routing(None, said.PAUSED, None)
        if mode == said.SHADOW:
            return Routing(None, said.IN_SHADOW, self.serving)
        if rules_act:
            return Routing(None, said.LIFECYCLE, self.shadow or self.serving)
        return Routing(self.serving, None, self.shadow)

    def acts(self, rules_act: bool) -> tuple[str, str]:
        """Who acts on a plain request now, and why."""
        if self.paused is not None:
            return said.FALLBACK, f"paused: {self.paused}"
        if rules_act:
            return said.FALLBACK, "the lifecycle lets the rule act"
        return said.POLICY, f"the bundle {self.serving.name} {self.serving.version} serves"

    def with_pause(self, why: str | None) -> PolicySlots:
        return replace(self, paused=why)

    def with_shadow(self, version: Version | None) -> PolicySlots:
        return replace(self, shadow=version)

    def promoted(self, now: str) -> PolicySlots:
        """The shadow takes the place of the one that serves."""
        assert self.shadow is not None
        return self.serving_now(self.shadow, now)

    def serving_now(self, version: Version, now: str) -> PolicySlots:
        shadow = self.shadow
        if shadow is not None and shadow.version == version.version:
            shadow = None
        previous = self.previous if version.version == self.serving.version else self.serving
        return replace(self, serving=replace(version, since=now), shadow=shadow, previous=previous)

    def rolled_back(self, now: str) -> PolicySlots:
        """The previous one serves again; the one that served is remembered as refused."""
        assert self.previous is not None
        return replace(
            self,
            serving=replace(self.previous, since=now),
            previous=self.serving,
            refused=self.refused | {self.serving.version},
        )

    @property
    def versions(self) -> set[str]:
        places = (self.serving, self.shadow, self.previous)
        return {place.version for place in places if place is not None}

    def record(self) -> dict[str, Any]:
        return {
            "serving": as_record(self.serving),
            "shadow": as_record(self.shadow),
            "previous": as_record(self.previous),
            "paused": self.paused,
            "refused": sorted(self.refused),
        }


def roles_from(record: Any, configured: Version) -> PolicySlots:
    """As they were written down, or with what is configured where that cannot be read."""
    if not isinstance(record, dict):
        return PolicySlots(configured)
    paused, refused = record.get("paused"), record.get("refused")
    return PolicySlots(
        serving=from_record(record.get("serving")) or configured,
        shadow=from_record(record.get("shadow")),
        previous=from_record(record.get("previous")),
        paused=paused if isinstance(paused, str) else None,
        refused=frozenset(v for v in refused if isinstance(v, str))
        if isinstance(refused, list)
        else frozenset(),
    )
