"""Responses of the service as dataclasses, and their decoding from JSON.

Times are ISO 8601 in UTC, as the service writes them.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]  # (value, path) -> decoded; raises DecodeError

_EXPECTED = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}


@dataclass(frozen=True)
class PolicyName:
    name: str
    version: str = ""
    since: str | None = None  # in a status only


@dataclass(frozen=True)
class Choice:
    """An option of a decision."""

    name: str
    score: float | None = None
    uncertainty: float | None = None  # standard deviation of the score
    probability: float | None = None  # of being chosen


@dataclass(frozen=True)
class Reason:
    summary: str
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)  # best first
    notes: tuple[str, ...] = ()  # what was missing in the state, and what was taken instead


@dataclass(frozen=True)
class Shadow:
    """The decision of the policy that does not act."""

    decision: Mapping[str, Any] | None = None
    agrees: bool | None = None  # whether both decisions are equal
    agreement: float | None = None  # how close they are, from 0 to 1
    policy: PolicyName | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`source` is "policy", "fallback" (the service's rule) or "local" (this client's fallback)."""

    id: str
    decision: Mapping[str, Any]
    source: str
    cause: str | None = None  # why the policy did not decide
    reason: Reason
    policy: PolicyName
    guard: tuple[str, ...] = ()  # descriptions of what the guard changed
    shadow: Shadow | None = None
    tenant: str = "default"
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
    """Receipt for a report; of an outcome, with the reward computed from it."""

    accepted: bool
    reward: float | None = None


@dataclass(frozen=True)
class Service:
    version: str
    started_at: str
    uptime_s: float
    tokens: bool  # whether they are required
    tenants: tuple[str, ...] | None = None  # that the token is limited to


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
    evidence: str = ""  # what keeps the policy in its state now
    estimate: Mapping[str, Any] | None = None  # of the serving policy's reward
    profile: Mapping[str, Any] = field(default_factory=dict)  # of the tenant


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
    agreement: float | None = None  # mean over its decisions
    faults: int = 0


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of a system. Untyped parts are as the service wrote them."""

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
    steering: Mapping[str, Any] | None = None  # last step of `loadmaster steer` for the tenant
    tenant: str = "default"
    tenants: Mapping[str, Any] = field(default_factory=dict)  # number by state, most active ones


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


class DecodeError(ValueError):
    """A value that does not match its annotation; the message has its path."""

    def __init__(self, path: str, expected: str, found: object) -> None:
        super().__init__(f"{path or 'the response'} is {_shown(found)}; expected {expected}")


def decode(record: type[T], data: object) -> T:
    """Build the dataclass `record` from parsed JSON.

    Unknown fields are ignored, so that an older client understands a newer service. Missing ones
    take their default.
    """
    hint: Any = record
    found: T = _decoder(hint)(data, "")
    return found


@cache
def _decoder(hint: Any) -> Decoder:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, path: value
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    if origin in (Union, types.UnionType):
        (other,) = (kind for kind in inner if kind is not types.NoneType)
        decoder = _decoder(other)
        return lambda value, path: None if value is None else decoder(value, path)
    if origin is tuple:
        item = _decoder(inner[0])
        return lambda value, path: tuple(
            item(each, f"{path}[{index}]")
            for index, each in enumerate(_expect(list, value, path, "a list"))
        )
    if origin is Mapping:
        entry = _decoder(inner[1])
        return lambda value, path: {
            name: entry(each, f"{path}.{name}")
            for name, each in _expect(dict, value, path, "an object").items()
        }

    def scalar(value: Any, path: str) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise DecodeError(path, _EXPECTED[hint], value)

    return scalar


def _expect(kind: type[T], value: Any, path: str, expected: str) -> T:
    if type(value) is not kind:  # parsed JSON has no subclasses, and true is not a number
        raise DecodeError(path, expected, value)
    return value


def _record(record: type[Any]) -> Decoder:
    hints = get_type_hints(record)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(record)}
    required = {
        field.name
        for field in fields(record)
        if field.default is MISSING and field.default_factory is MISSING
    }

    def decode_record(value: Any, path: str) -> Any:
        found = _expect(dict, value, path, "an object")
        if missing := required - found.keys():
            raise DecodeError(path, f"{min(missing)!r} in it", value)
        prefix = f"{path}." if path else ""
        return record(
            **{
                name: decoder(found[name], prefix + name)
                for name, decoder in decoders.items()
                if name in found
            }
        )

    return decode_record


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object with " + (", ".join(sorted(map(str, value))[:8]) or "no fields")
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
