"""The calls of the service's API: each is a request and the decoder of its response."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from . import responses
from .errors import ServiceError
from .http1 import Request, Response
from .responses import Decision, Status, decode

T = TypeVar("T")
Mode = Literal["active", "shadow"]
Payload = Any  # a mapping, a pydantic model (whatever has model_dump_json), or JSON as bytes


@dataclass(frozen=True)
class Call(Generic[T]):
    request: Request
    decode: Callable[[Any], T]  # of parsed JSON; raises ValueError

    def result(self, response: Response) -> T:
        """Decode a response; raise ServiceError for an error status or unexpected content."""
        try:
            data = json.loads(response.body)
        except (ValueError, RecursionError):
            data = None
        if not 200 <= response.status < 300:
            raise _error(response.status, data)
        try:
            return self.decode(data)
        except ValueError as fault:
            raise ServiceError(f"unexpected response: {fault}", response.status) from None


def with_original(call: Call[T]) -> Call[tuple[T, Mapping[str, Any]]]:
    """The same call; its result also has the parsed JSON, with fields unknown to this client."""
    return Call(call.request, lambda data: (call.decode(data), data))


def _get(record: type[T], target: str) -> Call[T]:
    return Call(Request("GET", target), partial(decode, record))


def systems(*, tenant: str | None = None) -> Call[responses.Systems]:
    """Describe the service and its systems, as they are for a tenant."""
    return _get(responses.Systems, f"/v1/systems{_query(tenant=tenant)}")


def decide(
    system: str,
    state: Payload,
    mode: Mode,
    deadline_ms: float | None,
    request_id: str,
    tenant: str | None = None,
) -> Call[Decision]:
    """Idempotent: the service recognises a repeated request by its id."""
    options: dict[str, Any] = {"mode": mode, "request_id": request_id}
    if deadline_ms is not None:
        options["deadline_ms"] = deadline_ms
    if tenant is not None:
        options["tenant"] = tenant
    # The state comes first: of duplicate fields the last counts, so given bytes cannot set mode.
    body = b'{"state":%b,%b' % (_json(state, "state"), _json(options, "request")[1:])
    return Call(Request("POST", _path(system, "decide"), body), partial(decode, Decision))


def feedback(
    system: str, outcome: Payload, id: str | None = None, *, tenant: str | None = None
) -> Call[responses.Accepted]:
    """Report the outcome of the decision `id`, or of the latest ones.

    Not idempotent: a repeated outcome would count twice.
    """
    given = {name: value for name, value in (("id", id), ("tenant", tenant)) if value is not None}
    # The outcome comes first: of duplicate fields the last counts.
    rest = b"," + _json(given, "request")[1:] if given else b"}"
    body = b'{"outcome":%b%b' % (_json(outcome, "outcome"), rest)
    request = Request("POST", _path(system, "feedback"), body, idempotent=False)
    return Call(request, partial(decode, responses.Accepted))


def steering(
    system: str, engine: str, mode: str, result: str, line: str = "", *, tenant: str | None = None
) -> Call[responses.Accepted]:
    """Report the last step of a steerer, which the status of the tenant shows."""
    content = {"engine": engine, "mode": mode, "result": result, "line": line}
    body = _json({**content, **({} if tenant is None else {"tenant": tenant})}, "request")
    return Call(
        Request("POST", _path(system, "steering"), body), partial(decode, responses.Accepted)
    )


def status(system: str, *, tenant: str | None = None) -> Call[Status]:
    """Return lifecycle, policies, counts, rewards and drift of a system, for a tenant."""
    return _get(Status, _path(system, "status", tenant=tenant))


def decisions(
    system: str, limit: int = 50, *, tenant: str | None = None
) -> Call[tuple[responses.LoggedDecision, ...]]:
    """Return the latest decisions for a tenant, newest first."""
    call = _get(responses.LoggedDecisions, _path(system, "decisions", limit=limit, tenant=tenant))
    return Call(call.request, lambda data: call.decode(data).decisions)


def history(system: str, *, tenant: str | None = None) -> Call[responses.History]:
    """Return counts and latencies by interval, oldest first."""
    return _get(responses.History, _path(system, "history", tenant=tenant))


def example(system: str, name: str = "small") -> Call[Mapping[str, Any]]:
    """Return an example of a valid state."""
    return Call(Request("GET", _path(system, "example", name=name)), _object)


def pause(system: str, reason: str | None = None, *, tenant: str | None = None) -> Call[Status]:
    """Let the rule decide until `resume`, for a tenant or for all.

    This and the calls below need an admin token.
    """
    return _admin("pause", system, reason=reason, tenant=tenant)


def resume(system: str, reason: str | None = None, *, tenant: str | None = None) -> Call[Status]:
    return _admin("resume", system, reason=reason, tenant=tenant)


def promote(
    system: str, bundle: str | None = None, to: Literal["shadow", "serving"] | None = None
) -> Call[Status]:
    """Let the shadow policy serve; with `bundle`, put that into shadow or let it serve."""
    return _admin("promote", system, bundle=bundle, to=to)


def rollback(system: str) -> Call[Status]:
    """Let the previously serving policy serve again."""
    return _admin("rollback", system)


def estimate(
    system: str,
    mean: float,
    lower: float,
    source: str,
    episodes: int,
    *,
    version: str | None = None,
    tenant: str | None = None,
) -> Call[Status]:
    """Report an off-policy estimate of the serving policy's reward, which may end OFFLINE."""
    figures = {"mean": mean, "lower": lower, "episodes": episodes}
    return _admin("estimate", system, source=source, version=version, tenant=tenant, **figures)


def profile(
    system: str, profile: Mapping[str, Any] | None, *, tenant: str | None = None
) -> Call[Status]:
    """Set the profile of a tenant: slo, utilisation, bootstrap, stakes, reward; None: none."""
    return _admin("profile", system, profile=profile, tenant=tenant)


def memory(
    system: str,
    memory: Mapping[str, Any],
    episodes: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    tenant: str | None = None,
) -> Call[Status]:
    """Set what the serving policy remembers of a tenant: numbers by their format.

    `episodes`: what it needs to learn from further ones, its format and numbers.
    """
    content = {"memory": memory, "episodes": episodes}
    return _admin("memory", system, version=version, tenant=tenant, **content)


def _admin(verb: str, system: str, **content: Any) -> Call[Status]:
    body = _json({name: value for name, value in content.items() if value is not None}, "request")
    request = Request("POST", _path(system, verb), body, idempotent=False, fresh=True)
    return Call(request, partial(decode, Status))


def _path(system: str, verb: str, **query: str | int | None) -> str:
    return f"/v1/{quote(system, safe='')}/{verb}{_query(**query)}"


def _query(**values: str | int | None) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _json(value: Payload, field: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    if not isinstance(value, Mapping):
        raise ServiceError(
            f"got {type(value).__name__}; expected a mapping, a pydantic model or JSON bytes",
            field=field,
        )
    try:
        return json.dumps(dict(value), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as fault:
        raise ServiceError(f"not JSON: {fault}", field=field) from None


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("expected a JSON object")
    return data


def _error(status: int, data: Any) -> ServiceError:
    """The service's error; a proxy's response may lack the message."""
    message, field = None, None
    if isinstance(data, dict):
        message, field = data.get("error"), data.get("field")
    if not isinstance(message, str) or not message:
        message = f"HTTP status {status}"
    return ServiceError(message, status, field if isinstance(field, str) else None)
