"""What crosses between client, gateway and worker: JSON in bytes, never a pickle.

The gateway passes a request's bytes on as they came. The worker reads them, and answers in bytes
again: a `Verdict`, or what was wrong with the request.

Requests are read strictly: "5", true and 5.0 are no integers. Of a name given twice in an object
the last one counts, as in most languages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal, get_args

import pydantic_core
from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import SchemaValidator, core_schema

from loadmaster.envs.errors import unknown_name
from loadmaster.models.policy import Option, Proposal
from loadmaster.serving.system import Endpoint, Record

# The outline of a schema: tells quickly whether a large request has the right shape.
#
# Pydantic reports all that is wrong: ten seconds' work for a body with a million wrong fields. The
# outline stops at the first. It checks kinds, names and lengths, not how values go together.


LISTS = ("list", "tuple", "set", "frozenset")
OPAQUE = ("default", "expected", "metadata", "config", "serialization")  # no schemas are in there


class UnknownFieldError(Exception):
    """No ValueError: those are gathered, this one ends the reading."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@cache
def outline(model: type[BaseModel]) -> SchemaValidator:
    return SchemaValidator(_outlined(model.__pydantic_core_schema__))


def _outlined(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_outlined(one) for one in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in ("model", "function-after"):  # no instance is made
        named = {"ref": schema["ref"]} if "ref" in schema else {}
        return _outlined(schema["schema"]) | named
    copy = {key: one if key in OPAQUE else _outlined(one) for key, one in schema.items()}
    if kind in LISTS:
        copy["fail_fast"] = True
    if kind == "model-fields":
        copy["extra_behavior"] = "allow"
        copy["extras_keys_schema"] = core_schema.no_info_plain_validator_function(_refuse)
    return copy


def _refuse(name: str) -> str:
    raise UnknownFieldError(name)


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

UNKNOWN = "extra_forbidden"  # pydantic's word for a field that the schema has not
LONGEST_LINE = 300  # characters of an error that are told
MANY = 20_000  # values: with more of them, faults are looked for one by one


class RequestError(Exception):
    """A request that cannot be answered, with the field that is wrong."""

    def __init__(self, line: str, field: str | None = None) -> None:
        super().__init__(line)
        self.line, self.field = line[:LONGEST_LINE], field


class DecisionRequest(Record):
    """The frame of a request for a decision; `request_model` adds the state of a system."""

    mode: Literal["active", "shadow"] = Field(
        default="active", description="shadow: the rule acts, the policy only says what it would do"
    )
    deadline_ms: float | None = Field(
        default=None, gt=0, le=60_000, description="the endpoint's own where none is given"
    )
    request_id: str | None = Field(
        default=None,
        max_length=100,
        pattern=r"^[A-Za-z0-9_.:-]+$",
        description="to know it again in logs",
    )


FRAME_NAMES = tuple(f'"{name}"'.encode() for name in DecisionRequest.model_fields)


def request_model(endpoint: Endpoint[Any, Any, Any]) -> type[DecisionRequest]:
    """The schema of a request for a decision of this system."""
    name = f"{endpoint.system.title().replace('_', '')}Request"
    return create_model(name, __base__=DecisionRequest, state=(endpoint.state, ...))


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


def is_state_alone(raw: bytes) -> bool:
    """Whether a request, if it is a valid one, surely names nothing beside the state.

    A name may be written with escapes as well; where there are any, nothing is sure.
    """
    return b"\\" not in raw and not any(name in raw for name in FRAME_NAMES)


def read(model: type[Record], raw: bytes) -> Any:
    """An instance of the model; a RequestError names a field that is wrong."""
    try:
        if raw.count(b",") > MANY:
            outline(model).validate_json(raw, strict=True)
        return model.model_validate_json(raw, strict=True)
    except ValidationError as fault:
        raise bad_request(fault, model) from None
    except UnknownFieldError as fault:
        field = path_of([fault.name])
        raise RequestError(f"{field}: there is no such field", field) from None


def bad_request(fault: ValidationError, model: type[BaseModel]) -> RequestError:
    faults = fault.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    if first["type"] == "missing":  # or rather misspelt
        beside = first["loc"][:-1]
        strange = (one for one in faults if one["type"] == UNKNOWN and one["loc"][:-1] == beside)
        first = next(strange, first)
    field, line = path_of(first["loc"]), first["msg"].removeprefix("Value error, ")
    if first["type"] == UNKNOWN:
        name = path_of(first["loc"][-1:])
        line = str(unknown_name("field", name, _names_at(model, first["loc"][:-1])))
    return RequestError(f"{field}: {line}" if field else line, field or None)


def _names_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The fields there are in the object at that place."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those in `tuple[Stage, ...]` or `Source | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in get_args(annotation):
        yield from _models_in(inside)


def path_of(location: Sequence[int | str]) -> str:
    """ "state.jobs[0].tasks": as a client's programmer would write it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return re.sub(r"[^\x20-\x7e]", "?", "".join(parts).removeprefix("."))[:200]


def told(proposal: Proposal) -> dict[str, Any]:
    """A proposal as JSON has it."""
    return {
        "decision": proposal.decision.model_dump(mode="json"),
        "reason": {
            "summary": proposal.explanation.summary,
            "choices": {
                kind: [_told_choice(one) for one in choices]
                for kind, choices in proposal.explanation.choices.items()
            },
        },
    }


def _told_choice(choice: Option) -> dict[str, Any]:
    return {
        "name": choice.name,
        "score": _short(choice.score),
        "uncertainty": _short(choice.uncertainty),
        "probability": _short(choice.probability),
    }


def to_json(value: Any) -> bytes:
    """Refuses numbers that JSON cannot hold."""
    return pydantic_core.to_json(value, inf_nan_mode="strings")


def from_json(raw: bytes) -> Any:
    return pydantic_core.from_json(raw)


def is_finite(value: Any) -> bool:
    """Whether every number in plain JSON data is one."""
    text = pydantic_core.to_json(value, inf_nan_mode="constants")
    if b"NaN" not in text and b"Infinity" not in text:
        return True
    left = [value]  # it may be no more than a name
    for one in left:  # grows while it is walked
        if isinstance(one, float):
            if not math.isfinite(one):
                return False
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return True


def _short(value: float | None) -> float | None:
    """Six digits are plenty for a log."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
