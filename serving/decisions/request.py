"""Messages between client, gateway and worker: their schemas, and the validation of requests.

Decide requests are JSON or MessagePack, all others JSON, never a pickle. The gateway passes the
bytes of a request on unchanged; the worker validates them and replies. Validation is strict: "5",
true and 5.0 are not integers. Of a name given twice in an object the last one counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import SchemaValidator, core_schema, from_json
from pydantic_core import to_json as encode_json
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from loadmaster.envs.errors import unknown_name
from loadmaster.serving.decisions.policy_memory import EncodedStep
from loadmaster.serving.decisions.tenant_names import (
    DEFAULT_TENANT,
    TENANT_FIELD,
    TenantName,
    tenant_of,
)
from loadmaster.serving.system import Endpoint, Quantity, Record

ACTIVE, SHADOW = "active", "shadow"  # modes
POLICY, FALLBACK = "policy", "fallback"  # sources

# Causes of a fallback: failures, a policy that leaves the decision to the rule, and routing.
TIMEOUT, EXCEPTION, NOT_FINITE, ILLEGAL = "timeout", "exception", "not finite", "illegal"
DOWN, OPEN = "worker down", "breaker open"
UNKNOWN = "unknown"
PAUSED, LIFECYCLE, IN_SHADOW = "paused", "lifecycle", "shadow"

EXTRA_FORBIDDEN = "extra_forbidden"  # pydantic's error type of an unknown field
SEQUENCES = ("list", "tuple", "set", "frozenset")  # in a schema of pydantic
NOT_SCHEMAS = ("default", "expected", "metadata", "config", "serialization")
MAX_LINE = 300  # characters of an error message
FAST_CHECK_VALUES = 20_000  # requests with more values are first checked by `shape_validator`

Model = TypeVar("Model", bound=BaseModel)


class RequestError(Exception):
    """A request that is refused, with the field at fault."""

    def __init__(self, line: str, field: str | None = None) -> None:
        super().__init__(line)
        self.line, self.field = line[:MAX_LINE], field


class RequestOptions(NamedTuple):
    """Options of a request beside the state."""

    mode: str = ACTIVE
    deadline_ms: float | None = None
    request_id: str | None = None
    tenant: str = DEFAULT_TENANT


DEFAULT_OPTIONS = RequestOptions()


class PolicyRef(TypedDict):
    """The policy or rule that decided."""

    name: str
    version: str


# Replies of a worker.


class Decided(NamedTuple):
    """A decision of the policy, or of the rule if the policy failed or was not called. The gateway
    replaces it by what the guard makes of it."""

    decision: dict[str, Any]
    reason: dict[str, Any]
    source: str
    cause: str | None  # of a fallback
    detail: str  # of a failure, or why a policy leaves the decision to the rule
    policy: PolicyRef
    quantities: tuple[Quantity, ...]
    features: dict[str, float]
    memory: str = ""  # line of what the policy remembers of the tenant from now on
    step: EncodedStep | None = None  # of an episode that the policy will learn from
    guard: tuple[str, ...] = ()  # changes by the guard
    guarded: tuple[str, ...] = ()  # kinds of the same changes


QUANTITIES, STEP, GUARD = map(Decided._fields.index, ("quantities", "step", "guard"))


class Invalid(NamedTuple):
    """A request that does not fit the schema."""

    line: str
    field: str | None


def encode_reply(reply: Decided | Invalid) -> bytes:
    """Encode as a JSON array, without what the guard adds later.

    With pydantic models instead of tuples, encoding and decoding take about 16 microseconds
    longer (Decima, small state).
    """
    values = reply[:GUARD] if isinstance(reply, Decided) else reply
    return encode_json((isinstance(reply, Decided), *values), inf_nan_mode="constants")


def decode_reply(raw: bytes) -> Decided | Invalid:
    """Decode what `encode_reply` made; both ends are of one version."""
    is_decided, *values = from_json(raw)
    if not is_decided:
        return Invalid(*values)
    values[QUANTITIES] = tuple(map(Quantity._make, values[QUANTITIES]))
    if values[STEP] is not None:
        values[STEP] = EncodedStep(*values[STEP])
    return Decided(*values)


class Proposed(BaseModel):
    """What a policy in the shadow decided, or why it made no decision."""

    decision: dict[str, Any] | None = None
    fault: str | None = None
    detail: str = ""
    memory: str = ""  # as of `Decided`, and so is the step
    step: EncodedStep | None = None


class Loaded(BaseModel):
    """Why a bundle cannot be used; None: the worker has loaded it."""

    refused: str | None


# Schemas of requests.


class DecisionRequest(Record):
    """Options of a decide request; `request_model` adds the state of a system."""

    mode: Literal["active", "shadow"] = Field(
        default="active", description="shadow: the rule acts, the policy decides beside it"
    )
    deadline_ms: float | None = Field(
        default=None, gt=0, le=60_000, description="default: the endpoint's deadline"
    )
    request_id: str | None = Field(
        default=None,
        max_length=100,
        pattern=r"^[A-Za-z0-9_.:-]+$",
        description="id of the decision; a repeated request gets the same answer",
    )
    tenant: TenantName = TENANT_FIELD


class _Options(DecisionRequest):
    model_config = ConfigDict(extra="ignore")  # skips the state, which is then not built

    def as_tuple(self) -> RequestOptions:
        return RequestOptions(self.mode, self.deadline_ms, self.request_id, self.tenant)


# Of msgspec: lists and objects are refused at once, which bounds the work for wrong ones.
Scalar = str | int | float | bool | None
OPTION_TYPES = [(name, Scalar, msgspec.UNSET) for name in DecisionRequest.model_fields]
MSGSPEC_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _decoders(name: str, fields: Any) -> tuple[Any, Any]:
    """Decoders of JSON and of MessagePack that skip all other fields."""
    struct = msgspec.defstruct(name, fields, gc=False)
    return msgspec.json.Decoder(struct), msgspec.msgpack.Decoder(struct)


@cache
def _option_decoders(tenant_field: str) -> tuple[Any, Any]:
    """Decoders of the options, and of the field of the state that names the tenant, if any."""
    if not tenant_field:
        return _decoders("Options", OPTION_TYPES)
    state = msgspec.defstruct("Named", [(tenant_field, Scalar, msgspec.UNSET)], gc=False)
    return _decoders("Options", [*OPTION_TYPES, ("state", state, msgspec.UNSET)])


STATE = _decoders("Encoded", [("state", msgspec.Raw)])


def is_msgpack(raw: bytes) -> bool:
    """Whether a request is MessagePack: its maps start with a byte that no JSON text starts with.

    `check_format` makes sure of it.
    """
    return raw[:1] >= b"\x80"


def check_format(raw: bytes, as_msgpack: bool) -> None:
    """Raise RequestError for a body that is not in the format that its content type names."""
    if as_msgpack and not is_msgpack(raw):
        raise RequestError("Invalid MessagePack: expected a map")
    if is_msgpack(raw) and not as_msgpack:
        read(_Options, raw)  # raises the error of invalid JSON


def encoded_state(raw: bytes) -> bytes:
    """The state of a valid request as JSON: the bytes as received, or converted."""
    state = STATE[is_msgpack(raw)].decode(raw).state
    return msgspec.json.encode(msgspec.msgpack.decode(state)) if is_msgpack(raw) else bytes(state)


def request_model(endpoint: Endpoint[Any, Any, Any]) -> type[DecisionRequest]:
    """Build the schema of a decide request of this system."""
    name = f"{endpoint.system.title().replace('_', '')}Request"
    return create_model(name, __base__=DecisionRequest, state=(endpoint.state, ...))


def feedback_model(endpoint: Endpoint[Any, Any, Any]) -> type[Record]:
    """Build the schema of feedback on a decision of this system."""
    name = f"{endpoint.system.title().replace('_', '')}Feedback"
    model: type[Record] = create_model(
        name,
        __base__=Record,
        id=(str | None, Field(default=None, max_length=100, description="of the decision")),
        outcome=(endpoint.outcome, ...),
        tenant=(TenantName, TENANT_FIELD),
    )
    return model


# Validation.


def parse_options(raw: bytes, tenant_field: str = "") -> RequestOptions:
    """Read the options of a request. Raises RequestError for a wrong option, and for a body that
    cannot be parsed: it names no tenant. The worker checks the rest.

    `tenant_field` of the state names the tenant of a request that names none.
    """
    try:
        values = msgspec.structs.asdict(_option_decoders(tenant_field)[is_msgpack(raw)].decode(raw))
        name = getattr(values.pop("state", None), tenant_field, None) if tenant_field else None
        options = options_from(values)
        if values["tenant"] is msgspec.UNSET and isinstance(name, str):
            options = options._replace(tenant=tenant_of(name))
        return options
    except MSGSPEC_ERRORS as fault:
        error = as_request_error(fault)
    except RequestError as fault:
        error = fault
    if not is_msgpack(raw):
        try:
            return _Options.model_validate_json(raw, strict=True).as_tuple()
        except ValidationError as fault:
            error = bad_request(fault, _Options)
    raise error


def options_from(values: Mapping[str, Any]) -> RequestOptions:
    """Validate the options among decoded fields; those that were not given are UNSET."""
    given = {name: value for name, value in values.items() if value is not msgspec.UNSET}
    if not given:
        return DEFAULT_OPTIONS
    try:
        return _Options.model_validate(given, strict=True).as_tuple()
    except ValidationError as fault:
        raise bad_request(fault, _Options) from None


def as_request_error(fault: Exception) -> RequestError:
    """Convert an error of msgspec, such as "Expected `int` - at `$.state.jobs[0].age_s`"."""
    line, _, where = str(fault).partition(" - at `$")
    field = where.rstrip("`").removeprefix(".")
    if not isinstance(fault, msgspec.ValidationError):
        line = f"Invalid MessagePack: {line}"
    return RequestError(f"{field}: {line}" if field else line, field or None)


def read(model: type[Model], raw: bytes) -> Model:
    """Validate JSON against a model; raises RequestError with the field at fault."""
    try:
        if raw.count(b",") > FAST_CHECK_VALUES:
            shape_validator(model).validate_json(raw, strict=True)
        return model.model_validate_json(raw, strict=True)
    except ValidationError as fault:
        raise bad_request(fault, model) from None
    except UnknownFieldError as fault:
        field = path_of(fault.args)
        raise RequestError(f"{field}: there is no such field", field) from None


class UnknownFieldError(Exception):
    """An unknown field, by its name. Not a ValueError, which pydantic would collect."""


@cache
def shape_validator(model: type[BaseModel]) -> SchemaValidator:
    """Build a validator that stops at the first error and creates no instances.

    Pydantic collects every error. For 400,000 wrong items that takes 1.9 s of CPU time, during
    which the worker decides nothing. This validator, derived from the same schema, takes 0.04 s. It
    checks types, names and lengths, not how values go together.
    """
    return SchemaValidator(_fail_fast(model.__pydantic_core_schema__))


def _fail_fast(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_fail_fast(one) for one in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in ("model", "function-after"):
        reference = {"ref": schema["ref"]} if "ref" in schema else {}
        return _fail_fast(schema["schema"]) | reference
    copy = {key: one if key in NOT_SCHEMAS else _fail_fast(one) for key, one in schema.items()}
    if kind in SEQUENCES:
        copy["fail_fast"] = True
    if kind == "model-fields":
        copy["extra_behavior"] = "allow"
        copy["extras_keys_schema"] = core_schema.no_info_plain_validator_function(_raise_unknown)
    return copy


def _raise_unknown(name: str) -> str:
    raise UnknownFieldError(name)


def bad_request(
    fault: ValidationError, model: type[BaseModel], within: tuple[str, ...] = ()
) -> RequestError:
    """The first error of a validation, of the field `within` a request. A missing field is reported
    as misspelt if the same object has an unknown one."""
    errors = fault.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "missing":
        parent = first["loc"][:-1]
        unknown = (e for e in errors if e["type"] == EXTRA_FORBIDDEN and e["loc"][:-1] == parent)
        first = next(unknown, first)
    field, line = path_of((*within, *first["loc"])), first["msg"].removeprefix("Value error, ")
    if first["type"] == EXTRA_FORBIDDEN:
        name = path_of(first["loc"][-1:])
        line = str(unknown_name("field", name, _fields_at(model, first["loc"][:-1])))
    return RequestError(f"{field}: {line}" if field else line, field or None)


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models in an annotation such as `tuple[Stage, ...]` or `Source | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def path_of(location: Sequence[int | str]) -> str:
    """Path of a field as in `state.jobs[0].tasks`, in printable ASCII."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return re.sub(r"[^\x20-\x7e]", "?", "".join(parts).removeprefix("."))[:200]


# JSON.


def to_json(value: Any) -> bytes:
    """Encode as JSON; NaN and infinity, which JSON does not have, become strings."""
    return encode_json(value, inf_nan_mode="strings")


def json_to_msgpack(content: bytes) -> bytes:
    """Convert a response to MessagePack."""
    return msgspec.msgpack.encode(msgspec.json.decode(content))


def iso(time: float, precision: str = "milliseconds") -> str:
    """Format seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec=precision)


def line_of(fault: BaseException) -> str:
    """Describe an exception in one line."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:MAX_LINE]
