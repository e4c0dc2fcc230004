"""What the service answers, as schemas: for its own tests, for OpenAPI and for clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadmaster.serving.system import Record


class Told(BaseModel):
    """Base of answers: a later version may tell more."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Error(Told):
    error: str = Field(description="one line: what was wrong, and what was expected")
    field: str | None = Field(description="where in the request")


class ChoiceTold(Told):
    name: str
    score: float | None
    uncertainty: float | None = Field(description="standard deviation of the score")
    probability: float | None


class ReasonTold(Told):
    summary: str
    choices: dict[str, list[ChoiceTold]]


class PolicyTold(Told):
    name: str
    version: str


class ShadowTold(Told):
    policy: PolicyTold
    decision: dict[str, Any] | None = Field(description="null where it made none")
    agrees: bool | None
    fault: str | None


class DecisionAnswer(Told):
    id: str
    decision: dict[str, Any]
    source: Literal["policy", "fallback"]
    cause: str | None = Field(description="why the fallback decided")
    reason: ReasonTold
    policy: PolicyTold
    guard: list[str] = Field(description="what the guard changed, and why")
    shadow: ShadowTold | None
    latency_ms: float


class LoggedDecision(DecisionAnswer):
    time: str
    mode: str


class DecisionList(Told):
    decisions: list[LoggedDecision]


class FeedbackAnswer(Told):
    accepted: bool
    reward: float


class SystemBrief(Told):
    system: str
    summary: str
    lifecycle: str
    paused: bool
    acting: Literal["policy", "fallback"]
    policy: PolicyTold
    rule: str
    decisions: int


class ServiceTold(Told):
    version: str
    started_at: str
    uptime_s: float
    tokens: bool = Field(description="whether they are asked for")
    scope: Literal["read", "admin"] = Field(description="what the one who asks may do")


class SystemList(Told):
    service: ServiceTold
    systems: list[SystemBrief]


class LifecycleTold(Told):
    state: Literal["OFFLINE", "ONLINE", "SERVING"]
    since: str
    why: str


class StatusAnswer(Told):
    """See docs/serving.md for what each part means."""

    system: str
    summary: str
    lifecycle: LifecycleTold
    paused: bool
    acting: Literal["policy", "fallback"]
    acting_because: str
    policies: dict[str, Any]
    rule: str
    deadline_ms: float
    decisions: dict[str, Any]
    guard: dict[str, int]
    latency_ms: dict[str, float | None]
    rewards: dict[str, Any]
    drift: dict[str, Any]
    shadow: dict[str, Any]
    retraining: dict[str, Any] | None
    log: dict[str, Any]
    breaker: Literal["open", "closed"]


class HistoryAnswer(Told):
    interval_s: float
    intervals: list[dict[str, Any]]


class VerbOrder(Record):
    """An admin's order."""

    reason: str | None = Field(default=None, max_length=300, description="for the log")


class PromoteOrder(VerbOrder):
    bundle: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="a pretrained one's name or a folder on the service's machine; null: the "
        "shadow bundle",
    )
    to: Literal["shadow", "serving"] = "serving"
