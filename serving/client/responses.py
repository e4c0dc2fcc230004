"""What the service answers. Times are ISO 8601 in UTC, as the service writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PolicyName:
    name: str
    version: str = ""
    since: str | None = None  # in a status only


@dataclass(frozen=True)
class Choice:
    """One of the options a decision had."""

    name: str
    score: float | None = None
    uncertainty: float | None = None  # standard deviation of the score
    probability: float | None = None  # of being chosen


@dataclass(frozen=True)
class Reason:
    summary: str
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)  # the best ones first


@dataclass(frozen=True)
class Shadow:
    """What the policy would have done that does not act."""

    decision: Mapping[str, Any] | None = None
    agrees: bool | None = None
    policy: PolicyName | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`source` is "policy", "fallback" (the service's rule) or "local" (this client's own)."""

    id: str
    decision: Mapping[str, Any]
    source: str
    cause: str | None = None  # why it is not the policy's
    reason: Reason
    policy: PolicyName
    guard: tuple[str, ...] = ()  # what the guard changed, in words
    shadow: Shadow | None = None
    latency_ms: float


@dataclass(frozen=True, kw_only=True)
class LoggedDecision(Decision):
    time: str
    mode: str


@dataclass(frozen=True)
class LoggedDecisions:
    decisions: tuple[LoggedDecision, ...]  # newest first


@dataclass(frozen=True)
class Accepted:
    """The service took note of an outcome, and judged it."""

    accepted: bool
    reward: float | None = None


@dataclass(frozen=True)
class Service:
    version: str
    started_at: str
    uptime_s: float
    tokens: bool  # whether it asks for any


@dataclass(frozen=True)
class System:
    system: str
    summary: str
    lifecycle: str  # OFFLINE, ONLINE or SERVING
    paused: bool
    acting: str  # "policy" or "fallback"
    policy: PolicyName | None = None
    rule: str = ""
    decisions: int = 0


@dataclass(frozen=True)
class Systems:
    service: Service
    systems: tuple[System, ...]


@dataclass(frozen=True)
class Lifecycle:
    state: str  # OFFLINE, ONLINE or SERVING
    since: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Policies:
    serving: PolicyName | None = None
    shadow: PolicyName | None = None
    previous: PolicyName | None = None


@dataclass(frozen=True)
class Counts:
    total: int = 0
    policy: int = 0
    fallback: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Latency:
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class ShadowCounts:
    decisions: int = 0
    agreement: float | None = None  # share of the decisions in which both were the same
    faults: int = 0


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a system fares. Parts that only people read stay as the service wrote them."""

    system: str
    summary: str = ""
    lifecycle: Lifecycle
    paused: bool
    acting: str
    acting_because: str = ""
    policies: Policies
    rule: str = ""
    deadline_ms: float | None = None
    decisions: Counts = Counts()
    guard: Mapping[str, int] = field(default_factory=dict)
    latency_ms: Latency = Latency()
    rewards: Mapping[str, Any] = field(default_factory=dict)
    drift: Mapping[str, Any] = field(default_factory=dict)
    shadow: ShadowCounts | None = None
    retraining: Mapping[str, Any] | None = None
    log: Mapping[str, Any] = field(default_factory=dict)
    breaker: str = ""


@dataclass(frozen=True)
class Interval:
    time: str
    decisions: int = 0
    fallbacks: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)
    p50_ms: float | None = None
    p99_ms: float | None = None
    reward_mean: float | None = None
    drift: int = 0
    shadow_agreement: float | None = None


@dataclass(frozen=True)
class History:
    interval_s: float
    intervals: tuple[Interval, ...]  # oldest first
