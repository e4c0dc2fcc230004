"""JSON into dataclasses, as their annotations say.

Fields that a dataclass does not have are passed over, so that an older client understands a newer
service; missing ones take their default.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any, str], Any]  # the value and where it stands; raises UnreadableError

_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


class UnreadableError(ValueError):
    """A value that is not as annotated; one line that says where."""

    def __init__(self, where: str, expected: str, found: object) -> None:
        super().__init__(f"{where or 'the answer'} is {_shown(found)}; expected {expected}")


def read(record: type[T], data: object) -> T:
    """The dataclass `record` from a parsed JSON object."""
    hint: Any = record
    found: T = _reader(hint)(data, "")
    return found


@cache
def _reader(hint: Any) -> Reader:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, where: value
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    if origin in (Union, types.UnionType):
        (other,) = (kind for kind in inner if kind is not types.NoneType)
        given = _reader(other)
        return lambda value, where: None if value is None else given(value, where)
    if origin is tuple:
        return _sequence(_reader(inner[0]))
    if origin is Mapping:
        return _mapping(_reader(inner[1]))
    return _plain(hint)


def _record(record: type[Any]) -> Reader:
    hints = get_type_hints(record)
    readers = {field.name: _reader(hints[field.name]) for field in fields(record)}
    required = {
        field.name
        for field in fields(record)
        if field.default is MISSING and field.default_factory is MISSING
    }

    def read_record(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise UnreadableError(where, "an object", value)
        if lacking := required - value.keys():
            raise UnreadableError(where, f"{min(lacking)!r} in it", value)
        prefix = f"{where}." if where else ""
        return record(
            **{
                name: reader(value[name], prefix + name)
                for name, reader in readers.items()
                if name in value
            }
        )

    return read_record


def _sequence(reader: Reader) -> Reader:
    def read_sequence(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise UnreadableError(where, "a list", value)
        return tuple(reader(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read_sequence


def _mapping(reader: Reader) -> Reader:
    def read_mapping(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise UnreadableError(where, "an object", value)
        return {name: reader(item, f"{where}.{name}") for name, item in value.items()}

    return read_mapping


def _plain(kind: type[Any]) -> Reader:
    accepted = (int, float) if kind is float else kind

    def read_plain(value: Any, where: str) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise UnreadableError(where, _WORDS[kind], value)
        return kind(value)

    return read_plain


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object with " + (", ".join(sorted(map(str, value))[:8]) or "nothing in it")
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
