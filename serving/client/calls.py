"""What can be asked of the service: each call as a request and a way to read its answer.

Both clients send these; how is their affair.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from loadmaster.serving.client.decode import read
from loadmaster.serving.client.errors import ServiceError
from loadmaster.serving.client.http1 import Answer, Request
from loadmaster.serving.client.responses import (
    Accepted,
    Decision,
    History,
    LoggedDecision,
    LoggedDecisions,
    Status,
    Systems,
)

T = TypeVar("T")
Mode = Literal["active", "shadow"]
Payload = Any  # a mapping, a pydantic model (whatever has model_dump_json), or JSON as bytes


@dataclass(frozen=True)
class Call(Generic[T]):
    request: Request
    read: Callable[[Any], T]  # from parsed JSON; a ValueError where it is not as expected

    def result(self, answer: Answer) -> T:
        """What was answered; a ServiceError where that is a refusal or cannot be read."""
        try:
            data = json.loads(answer.body)
        except (ValueError, RecursionError):
            data = None
        if not 200 <= answer.status < 300:
            _refuse(answer.status, data)
        try:
            return self.read(data)
        except ValueError as fault:
            message = f"the service's answer is not as expected: {fault}"
            raise ServiceError(message, answer.status) from None


def with_original(call: Call[T]) -> Call[tuple[T, Mapping[str, Any]]]:
    """The same call; its answer also as the service wrote it, fields unknown here included."""
    return Call(call.request, lambda data: (call.read(data), data))


def systems() -> Call[Systems]:
    return Call(Request("GET", "/v1/systems"), partial(read, Systems))


def decide(
    system: str, state: Payload, mode: Mode, deadline_ms: float | None, request_id: str
) -> Call[Decision]:
    """Safe to repeat: the service knows the request again by its id."""
    rest: dict[str, Any] = {"mode": mode, "request_id": request_id}
    if deadline_ms is not None:
        rest["deadline_ms"] = deadline_ms
    # The state stands first: whatever given bytes hold, the mode that counts is the last one.
    body = b'{"state":%b,%b' % (_json(state, "state"), _json(rest, "request")[1:])
    return Call(Request("POST", _path(system, "decide"), body), partial(read, Decision))


def feedback(system: str, outcome: Payload, decision_id: str | None) -> Call[Accepted]:
    """Never sent twice: the outcome would count twice."""
    start = b"{" if decision_id is None else b'{"id":%b,' % json.dumps(decision_id).encode()
    body = b'%b"outcome":%b}' % (start, _json(outcome, "outcome"))
    request = Request("POST", _path(system, "feedback"), body, repeat=False)
    return Call(request, partial(read, Accepted))


def status(system: str) -> Call[Status]:
    return Call(Request("GET", _path(system, "status")), partial(read, Status))


def decisions(system: str, limit: int) -> Call[tuple[LoggedDecision, ...]]:
    target = _path(system, "decisions", limit=limit)
    return Call(Request("GET", target), lambda data: read(LoggedDecisions, data).decisions)


def history(system: str) -> Call[History]:
    return Call(Request("GET", _path(system, "history")), partial(read, History))


def example(system: str, name: str) -> Call[Mapping[str, Any]]:
    return Call(Request("GET", _path(system, "example", name=name)), _object)


def admin(verb: str, system: str, **content: str | None) -> Call[Status]:
    """pause, resume, promote or rollback."""
    body = _json({name: value for name, value in content.items() if value is not None}, "request")
    request = Request("POST", _path(system, verb), body, repeat=False, fresh=True)
    return Call(request, partial(read, Status))


def _path(system: str, verb: str, **query: str | int) -> str:
    question = f"?{urlencode(query)}" if query else ""
    return f"/v1/{quote(system, safe='')}/{verb}{question}"


def _json(value: Payload, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    if not isinstance(value, Mapping):
        raise ServiceError(
            f"it is a {type(value).__name__}; expected a mapping, a pydantic model or JSON bytes",
            field=what,
        )
    try:
        return json.dumps(dict(value), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as fault:
        raise ServiceError(f"it is not JSON: {fault}", field=what) from None


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


def _refuse(status: int, data: Any) -> NoReturn:
    """By the service's own words; something between may answer too, in words of its own."""
    message, field = None, None
    if isinstance(data, dict):
        message, field = data.get("error"), data.get("field")
    if not isinstance(message, str) or not message:
        message = f"the request was answered with HTTP status {status}"
    raise ServiceError(message, status, field if isinstance(field, str) else None)
