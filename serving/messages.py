"""What crosses between client, gateway and worker: JSON in bytes, never a pickle.

The gateway passes a request's bytes on as they came. The worker reads them, and answers in bytes
again: a `Verdict`, or what was wrong with the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic_core
from pydantic import Field, ValidationError, create_model

from loadmaster.serving.endpoint import Endpoint, Proposal, Record

ACTIVE, SHADOW = "active", "shadow"
POLICY, FALLBACK = "policy", "fallback"

# Why a rule decided and no policy.
TIMEOUT, EXCEPTION, NOT_FINITE, ILLEGAL = "timeout", "exception", "not finite", "illegal"
DOWN, OPEN, PAUSED, LIFECYCLE, IN_SHADOW = (
    "worker down",
    "breaker open",
    "paused",
    "lifecycle",
    "shadow",
)
CAUSES = (TIMEOUT, EXCEPTION, NOT_FINITE, ILLEGAL, DOWN, OPEN, PAUSED, LIFECYCLE, IN_SHADOW)
FAULTS = (TIMEOUT, EXCEPTION, NOT_FINITE, ILLEGAL, DOWN, OPEN)  # those that nobody wanted

LONGEST_LINE = 300  # characters of an error that are told


class RequestError(Exception):
    """A request that cannot be answered, with the field that is wrong."""

    def __init__(self, line: str, field: str | None = None) -> None:
        super().__init__(line)
        self.line, self.field = line[:LONGEST_LINE], field


class Asked(Record):
    """The frame of a request for a decision; `request_model` adds the state of a system."""

    mode: Literal["active", "shadow"] = Field(
        default="active", description="shadow: the rule acts, the policy only says what it would do"
    )
    deadline_ms: float | None = Field(
        default=None, gt=0, le=60_000, description="the endpoint's own where none is given"
    )
    request_id: str | None = Field(
        default=None, max_length=100, pattern=r"^[\w.:-]+$", description="to know it again in logs"
    )


def request_model(endpoint: Endpoint[Any, Any, Any]) -> type[Asked]:
    """The schema of a request for a decision of this system."""
    name = f"{endpoint.system.title().replace('_', '')}Request"
    return create_model(name, __base__=Asked, state=(endpoint.state, ...))


def feedback_model(endpoint: Endpoint[Any, Any, Any]) -> type[Record]:
    """The schema of what a client tells of how a decision turned out."""
    name = f"{endpoint.system.title().replace('_', '')}Feedback"
    asked: type[Record] = create_model(
        name,
        __base__=Record,
        id=(str | None, Field(default=None, max_length=100, description="of the decision")),
        outcome=(endpoint.outcome, ...),
    )
    return asked


def read(model: type[Record], raw: bytes) -> Any:
    """An instance of the model; a RequestError names the first field that is wrong."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as fault:
        raise bad_request(fault) from None


def bad_request(fault: ValidationError) -> RequestError:
    first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    field = path_of(first["loc"])
    line = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{field}: {line}" if field else line, field or None)


def path_of(location: Sequence[int | str]) -> str:
    """ "state.jobs[0].tasks": as a client's programmer would write it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return re.sub(r"[^\x20-\x7e]", "?", "".join(parts).removeprefix("."))[:200]


def told(proposal: Proposal) -> dict[str, Any]:
    """A proposal as JSON has it."""
    return {
        "decision": proposal.decision.model_dump(mode="json"),
        "reason": {
            "summary": proposal.reason.summary,
            "choices": {
                kind: [
                    {key: _short(value) for key, value in one._asdict().items()} for one in choices
                ]
                for kind, choices in proposal.reason.choices.items()
            },
        },
    }


def to_json(value: Any) -> bytes:
    """Refuses numbers that JSON cannot hold."""
    return pydantic_core.to_json(value, inf_nan_mode="strings")


def from_json(raw: bytes) -> Any:
    return pydantic_core.from_json(raw)


def is_finite(value: Any) -> bool:
    """Whether every number in plain JSON data is one."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(is_finite(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_finite(one) for one in value)
    return True


def _short(value: Any) -> Any:
    """Six digits are plenty for a log."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
