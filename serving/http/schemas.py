"""Schemas of responses and of admin requests, for OpenAPI and for tests."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from loadmaster.serving.decisions.policy_memory import FORMAT_PATTERN, MAX_FORMATS, MAX_NUMBERS
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TENANT_FIELD, TenantName
from loadmaster.serving.system import Profile, Record, field_error


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
    notes: list[str] = Field(
        default=[], description="what was missing in the state, and what was taken instead"
    )


class PolicySchema(Response):
    name: str
    version: str


class ShadowSchema(Response):
    policy: PolicySchema
    decision: dict[str, Any] | None = Field(description="null if it made none")
    agrees: bool | None = Field(description="whether both decisions are equal")
    agreement: float | None = Field(
        default=None, ge=0, le=1, description="how close the decisions are; 1: equal"
    )
    fault: str | None


class DecisionResponse(Response):
    id: str
    tenant: str = DEFAULT_TENANT
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
    tenant: str
    decisions: list[ListedDecision]


class FeedbackResponse(Response):
    accepted: bool
    reward: float
    tenant: str


class SteeringResponse(Response):
    accepted: bool
    tenant: str


class SteeringSchema(Response):
    """The last step of `loadmaster steer` for the tenant."""

    engine: str
    mode: Literal["watch", "shadow", "act"]
    result: str
    line: str
    time: str


class SystemBrief(Response):
    system: str
    tenant: str
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
    tenants: list[str] | None = Field(description="that the token is limited to; null: it is not")


class SystemsResponse(Response):
    service: ServiceSchema
    systems: list[SystemBrief]


class EstimateSchema(Response):
    mean: float
    lower: float
    source: str
    episodes: int


class LifecycleSchema(Response):
    state: Literal["OFFLINE", "ONLINE", "SERVING"]
    since: str
    why: str
    evidence: str = Field(description="what keeps the policy in its state now")
    estimate: EstimateSchema | None = Field(description="of the serving bundle's reward")
    profile: Profile


class ActiveTenant(Response):
    tenant: str
    decisions: int
    lifecycle: str
    paused: bool


class TenantsSchema(Response):
    known: int
    by_state: dict[str, int]
    most_active: list[ActiveTenant]


class StatusResponse(Response):
    """See docs/serving.md for the meaning of each part."""

    system: str
    tenant: str
    tenants: TenantsSchema = Field(description="all tenants of the system that the token may use")
    summary: str
    lifecycle: LifecycleSchema
    paused: bool
    paused_scope: Literal["system", "tenant"] | None = Field(description="what is paused")
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
    steering: SteeringSchema | None = Field(description="null: none since the gateway started")


class HistoryResponse(Response):
    tenant: str
    interval_s: float
    intervals: list[dict[str, Any]]


class AdminRequest(Record):
    """Body of an admin action."""

    reason: str | None = Field(default=None, max_length=300, description="for the log")


class PauseRequest(AdminRequest):
    tenant: TenantName | None = Field(default=None, description="null: the whole system")


class PromoteRequest(AdminRequest):
    bundle: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="name of a pretrained bundle, or a folder on the service's machine; null: the "
        "shadow bundle",
    )
    to: Literal["shadow", "serving"] = "serving"


class EstimateRequest(AdminRequest):
    """Off-policy estimate of the reward of the serving bundle for a tenant."""

    tenant: TenantName = TENANT_FIELD
    mean: float = Field(description="in the unit of the rewards")
    lower: float = Field(description="confidence bound, at most the mean")
    source: str = Field(min_length=1, max_length=100, description="method or job")
    episodes: int = Field(ge=1, le=10**9, description="logged episodes that it is from")
    version: str | None = Field(
        default=None, max_length=64, description="of the bundle; null: the one that serves"
    )

    @model_validator(mode="after")
    def check_bound(self) -> Self:
        if self.lower > self.mean:
            message = f"{self.lower:g} is above the mean {self.mean:g}; expected at most that"
            raise field_error(("lower",), message)
        return self


Numbers = Annotated[list[float], Field(max_length=MAX_NUMBERS)]
FormatName = Annotated[str, StringConstraints(pattern=f"^{FORMAT_PATTERN}$")]


class EpisodesSchema(Record):
    """What the policy needs to learn from further episodes."""

    format: FormatName
    numbers: Numbers


class MemoryRequest(AdminRequest):
    """What the serving bundle remembers of a tenant, as `loadmaster adapt` finds it."""

    tenant: TenantName = TENANT_FIELD
    version: str | None = Field(
        default=None, max_length=64, description="of the bundle; null: the one that serves"
    )
    memory: dict[FormatName, Numbers] = Field(
        min_length=1, max_length=MAX_FORMATS, description="numbers by their format"
    )
    episodes: EpisodesSchema | None = None


class ProfileRequest(AdminRequest):
    tenant: TenantName = TENANT_FIELD
    profile: Profile | None = Field(default=None, description="null: as configured")
