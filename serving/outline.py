"""The outline of a schema: tells quickly whether a large request has the right shape.

Pydantic reports all that is wrong: ten seconds' work for a body with a million wrong fields. The
outline stops at the first. It checks kinds, names and lengths, not how values go together.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaValidator, core_schema

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
