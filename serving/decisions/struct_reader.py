"""Fast reading of decide requests: JSON or MessagePack to structs, decoded and checked in one pass.

The pydantic model of a state remains its schema. `struct_type` derives msgspec types from the
model's core schema, or nothing if they cannot express it exactly. What msgspec accepts is valid by
the model too; JSON that msgspec refuses is read again by the model, which has the error messages.

`loadmaster bench reading` measures both: large states take about 0.4 of the model's time.
"""

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from pydantic import ValidationError

from loadmaster.serving.decisions.request import (
    MAX_LINE,
    MSGSPEC_ERRORS,
    OPTION_TYPES,
    RequestError,
    as_request_error,
    bad_request,
    is_msgpack,
    options_from,
    read,
    request_model,
)
from loadmaster.serving.system import Endpoint, State

# MessagePack that is converted to JSON for the model has at most as many values as bytes.
CONVERTED_BYTES = 400_000

LENGTHS = frozenset({"min_length", "max_length"})
BOUNDS = frozenset({"ge", "le", "gt", "lt"})
SCALARS = {"str": str, "int": int, "float": float}
LARGEST = sys.float_info.max
MODEL_CONFIG = {"extra_fields_behavior": "forbid", "allow_inf_nan": False}

# Keys of the nodes of a core schema: those that do not affect validity, and the understood ones.
NEUTRAL = frozenset({"type", "ref", "metadata", "serialization"})
KEYS: dict[str, frozenset[str]] = {
    "definitions": frozenset({"schema", "definitions"}),
    "definition-ref": frozenset({"schema_ref"}),
    "function-after": frozenset({"schema", "function"}),
    "model": frozenset({"cls", "schema", "config", "custom_init", "root_model"}),
    "model-fields": frozenset({"fields", "computed_fields", "model_name"}),
    "model-field": frozenset({"schema"}),
    "default": frozenset({"schema", "default"}),
    "nullable": frozenset({"schema"}),
    "literal": frozenset({"expected"}),
    "bool": frozenset(),
    "str": LENGTHS,
    "int": BOUNDS,
    "float": BOUNDS,
    "tuple": LENGTHS | {"items_schema", "variadic_item_index"},
    "dict": LENGTHS | {"keys_schema", "values_schema"},
}


class NotExpressibleError(Exception):
    """A node of a core schema that has no exact counterpart in msgspec."""


class StateReader:
    """Reads the states in decide requests of one system."""

    def __init__(self, endpoint: Endpoint[Any, Any, Any]) -> None:
        self.model = request_model(endpoint)
        self._state: type[State] = endpoint.state
        self._json: msgspec.json.Decoder[Any] | None = None
        self._msgpack: msgspec.msgpack.Decoder[Any] | None = None
        struct = struct_type(endpoint.state) if endpoint.state.as_structs else None
        if struct is not None:
            request: Any = msgspec.defstruct(
                self.model.__name__,
                [("state", struct), *OPTION_TYPES],
                kw_only=True,
                gc=False,
                forbid_unknown_fields=True,
            )
            self._json = msgspec.json.Decoder(request)
            self._msgpack = msgspec.msgpack.Decoder(request)

    def read(self, raw: bytes) -> Any:
        """The state in a request; raises RequestError if the request is invalid.

        Records inside a state that was read as structs have the fields of the model's, and none of
        its methods.
        """
        if is_msgpack(raw):
            return self._read_msgpack(raw)
        if self._json is not None:
            try:
                return self._checked(self._json.decode(raw))
            except MSGSPEC_ERRORS:
                return self._read_json(raw)  # the model finds the field and the message
        return self._read_json(raw)

    def _read_json(self, raw: bytes) -> Any:
        return read(self.model, raw).state  # type: ignore[attr-defined]

    def _read_msgpack(self, raw: bytes) -> Any:
        if self._msgpack is None:
            if len(raw) > CONVERTED_BYTES:
                line = f"the body has {len(raw):,} bytes; expected at most {CONVERTED_BYTES:,} of "
                raise RequestError(f"{line}MessagePack for this system, or JSON")
            return self._read_json(to_json_text(raw))
        try:
            return self._checked(self._msgpack.decode(raw))
        except MSGSPEC_ERRORS as fault:
            error = as_request_error(fault)
        if len(raw) <= CONVERTED_BYTES:
            try:
                text = to_json_text(raw)
            except RequestError:  # JSON has no such values: no error of the model is nearer
                raise error from None
            self._read_json(text)  # raises the model's error
        raise error

    def _checked(self, request: Any) -> Any:
        fields = msgspec.structs.asdict(request)
        state = self._state.model_construct(**msgspec.structs.asdict(fields.pop("state")))
        options_from(fields)
        try:
            state.check()
        except ValidationError as fault:
            raise bad_request(fault, self.model, ("state",)) from None
        return state


def to_json_text(raw: bytes) -> bytes:
    """Convert MessagePack to JSON; raises RequestError if JSON has no such values."""
    try:
        value = msgspec.msgpack.decode(raw)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except MSGSPEC_ERRORS as fault:
        raise as_request_error(fault) from None
    except TypeError as fault:  # binary data, an extension, a key that is a list
        raise RequestError(f"Invalid MessagePack: {fault}"[:MAX_LINE]) from None


def struct_type(model: type[State]) -> type[Struct] | None:
    """Derive a struct that accepts what the model accepts, apart from its `check`.

    Returns None if the schema has a part without an exact counterpart: a validator function, a
    pattern, an alias.
    """
    try:
        schema: Any = model.__pydantic_core_schema__
        found: type[Struct] = _Derivation(schema).type_of(schema)
    except NotExpressibleError:
        return None
    return found


class _Derivation:
    """Types for the nodes of one core schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = {one["ref"]: one for one in schema.get("definitions", ())}
        self._structs: dict[type, type[Struct] | None] = {}  # None: being derived

    def type_of(self, node: Mapping[str, Any]) -> Any:
        kind = _known(node)
        match kind:
            case "definitions":
                return self.type_of(node["schema"])
            case "definition-ref":
                return self.type_of(self._definitions[node["schema_ref"]])
            case "function-after" if node["function"]["function"] is State.run_check:
                return self.type_of(node["schema"])
            case "model":
                return self._struct(node)
            case "nullable":
                return self.type_of(node["schema"]) | None
            case "bool":
                return bool
            case "literal" if all(type(one) in (str, int) for one in node["expected"]):
                return Literal[tuple(node["expected"])]
            case "str" | "int" | "float":
                return _limited(SCALARS[kind], node)
            case "tuple" if node.get("variadic_item_index") == 0 and len(node["items_schema"]) == 1:
                items: Any = self.type_of(node["items_schema"][0])
                return _limited(tuple[items, ...], node)
            case "dict":
                keys: Any = self.type_of(node["keys_schema"])
                values: Any = self.type_of(node["values_schema"])
                return _limited(dict[keys, values], node)
        raise NotExpressibleError(kind)

    def _struct(self, node: Mapping[str, Any]) -> type[Struct]:
        model, inside = node["cls"], node["schema"]
        if model in self._structs:
            known = self._structs[model]
            if known is None:
                raise NotExpressibleError("a model inside itself")
            return known
        config = {name: value for name, value in node["config"].items() if name != "title"}
        if config != MODEL_CONFIG or node["custom_init"] or node["root_model"]:
            raise NotExpressibleError("model")
        if _known(inside) != "model-fields":
            raise NotExpressibleError(inside["type"])
        self._structs[model] = None
        fields = [(name, *self._field(one)) for name, one in inside["fields"].items()]
        self._structs[model] = found = msgspec.defstruct(
            model.__name__, fields, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True
        )
        return found

    def _field(self, node: Mapping[str, Any]) -> tuple[Any, ...]:
        """Type of a field, and its default if it has one."""
        _known(node)
        inside = node["schema"]
        if inside["type"] != "default":
            return (self.type_of(inside),)
        _known(inside)
        default = inside.get("default", [None])
        if isinstance(default, list | dict | set) and default:
            raise NotExpressibleError("a default that may change")
        return self.type_of(inside["schema"]), default


def _known(node: Mapping[str, Any]) -> str:
    """The kind of a node; raises if it, or one of its keys, is not understood."""
    kind: str = node["type"]
    if kind not in KEYS or node.keys() - NEUTRAL - KEYS[kind]:
        raise NotExpressibleError(kind)
    return kind


def _limited(base: Any, node: Mapping[str, Any]) -> Any:
    """A type with the limits of a node."""
    limits = {name: node[name] for name in LENGTHS | BOUNDS if node.get(name) is not None}
    if base is float:  # MessagePack has NaN and infinity; a comparison with a bound refuses them
        limits |= {} if limits.keys() & {"ge", "gt"} else {"ge": -LARGEST}
        limits |= {} if limits.keys() & {"le", "lt"} else {"le": LARGEST}
    return Annotated[base, Meta(**limits)] if limits else base
