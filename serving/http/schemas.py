"""Schemas of responses and of admin requests, for OpenAPI and for tests."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadmaster.serving.system import Record


class Response(BaseModel):
    """Base of responses: a later version may add fields."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ErrorResponse(Response):
    error: str = Field(description="one line: what was wrong, and what was expected")
    field: str | None = Field(description="path of the field in the request")


class ProbeResponse(Response):
    status: Literal["ok"]


class OptionSchema(Response):
    name: str
    score: float | None
    uncertainty: float | None = Field(description="standard deviation of the score")
    probability: float | None


class ReasonSchema(Response):
    summary: str
    choices: dict[str, list[OptionSchema]]


class PolicySchema(Response):
    name: str
    version: str


class ShadowSchema(Response):
    policy: PolicySchema
    decision: dict[str, Any] | None = Field(description="null if it made none")
    agrees: bool | None
    fault: str | None


class DecisionResponse(Response):
    id: str
    decision: dict[str, Any]
    source: Literal["policy", "fallback"]
    cause: str | None = Field(description="why the fallback decided")
    reason: ReasonSchema
    policy: PolicySchema
    guard: list[str] = Field(description="what the guard changed, and why")
    shadow: ShadowSchema | None
    latency_ms: float


class ListedDecision(DecisionResponse):
    time: str
    mode: str


class DecisionsResponse(Response):
    decisions: list[ListedDecision]


class FeedbackResponse(Response):
    accepted: bool
    reward: float


class SystemBrief(Response):
    system: str
    summary: str
    lifecycle: str
    paused: bool
    acting: Literal["policy", "fallback"]
    policy: PolicySchema
    rule: str
    decisions: int


class ServiceSchema(Response):
    version: str
    started_at: str
    uptime_s: float
    tokens: bool = Field(description="whether a token is needed")
    scope: Literal["read", "admin"] = Field(description="of the client's token")


class SystemsResponse(Response):
    service: ServiceSchema
    systems: list[SystemBrief]


class LifecycleSchema(Response):
    state: Literal["OFFLINE", "ONLINE", "SERVING"]
    since: str
    why: str


class StatusResponse(Response):
    """See docs/serving.md for the meaning of each part."""

    system: str
    summary: str
    lifecycle: LifecycleSchema
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


class HistoryResponse(Response):
    interval_s: float
    intervals: list[dict[str, Any]]


class AdminRequest(Record):
    """Body of an admin action."""

    reason: str | None = Field(default=None, max_length=300, description="for the log")


class PromoteRequest(AdminRequest):
    bundle: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="name of a pretrained bundle, or a folder on the service's machine; null: the "
        "shadow bundle",
    )
    to: Literal["shadow", "serving"] = "serving"
