"""A system's configuration seen as a tree of settings that a sweep may set or search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import record_in
from loadmaster.platform.training.files import merged

Path = tuple[str, ...]  # of a setting: ("training", "clip")


@dataclass(frozen=True)
class Leaf:
    """A setting somebody gave a value."""

    path: Path
    value: Any
    where: str  # "file:line", or the option it came from

    def fault(self, message: str) -> InputError:
        joint = " " if self.where.startswith("--") else ": "
        return InputError(f"{self.where}{joint}{'.'.join(self.path)}: {message}")


def leaves(
    kind: type[BaseModel],
    values: Mapping[str, Any],
    where: Callable[[Path], str],
    is_leaf: Callable[[Any], bool] = lambda value: False,
    path: Path = (),
) -> Iterator[Leaf]:
    """Every value in the nested mapping, each checked to be a setting of `kind`.

    A mapping is a group of settings where the tree has a group, unless `is_leaf` claims it.
    """
    for key, value in values.items():
        leaf = Leaf((*path, key), value, where((*path, key)))
        if path and key not in kind.model_fields and is_leaf({key: value}):
            yield Leaf(path, {key: value}, leaf.where)  # of the group itself, beside its members
            continue
        if key not in kind.model_fields:
            group = f"setting of {'.'.join(path)}" if path else "setting"
            raise leaf.fault(str(unknown_name(group, key, kind.model_fields)))
        inner = group_of(kind, key)
        if inner is not None and isinstance(value, Mapping) and not is_leaf(value):
            yield from leaves(inner, value, where, is_leaf, leaf.path)
        else:
            yield leaf


def group_of(kind: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The settings below `key`, if it is a group of settings; an optional group is one too."""
    return record_in(kind.model_fields[key].annotation)


def nested(values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """The mapping that has each value at its path; groups given as a whole join their parts."""
    tree: dict[str, Any] = {}
    for path, value in values:
        for key in reversed(path):
            value = {key: value}
        tree = merged(tree, value)
    return tree


@dataclass(frozen=True)
class Complaint:
    """What a configuration was refused for: the setting, as far as it is known, and why."""

    path: Path
    message: str


def complaint(kind: type[BaseModel], values: Mapping[str, Any]) -> Complaint | None:
    """The first thing wrong with a configuration; None if it is sound."""
    try:
        kind.model_validate(values)
    except ValidationError as fault:
        first = fault.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "int_from_float":
            message = "expected a whole number: randint or choice"
        if first["type"] == "model_type":
            message = f"is a group of settings; expected one of them, or a mapping ({message})"
        return Complaint(tuple(str(part) for part in first["loc"]), message)
    return None
