"""Typed settings: unknown keys are refused with the nearest name, `a.b=c` overrides are parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from loadmaster.envs.errors import InputError, unknown_name


class Settings(BaseModel):
    """Base of every settings record: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


SettingsType = TypeVar("SettingsType", bound=Settings)


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """`["a.b=1", "c=x"]` as a nested mapping; values are read as YAML."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise InputError(f"--set {assignment!r} is malformed; expected key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"--set {path}: cannot read {text!r} as a YAML value") from None
        branch = tree
        for key in keys[:-1]:
            branch = branch.setdefault(key, {})
            if not isinstance(branch, dict):
                raise InputError(f"--set {assignment!r}: {key!r} was given a plain value before")
        branch[keys[-1]] = value
    return tree


def build_settings(kind: type[SettingsType], values: Mapping[str, Any]) -> SettingsType:
    """Validate `values`; the first fault becomes one clear line."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as fault:
        first = fault.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise unknown_name("setting", path, kind.model_fields) from None
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"setting {path or 'combination'}: {message}") from None
