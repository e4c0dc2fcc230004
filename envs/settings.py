"""Typed settings: closed records, one-line errors, and parsing of `a.b=c` overrides."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from loadmaster.envs.errors import InputError, unknown_name


class Settings(BaseModel):
    """Base of all settings: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = {}  # former name of a field -> its name
    removed: ClassVar[Mapping[str, str]] = {}  # name of a field that is gone -> the reason


SettingsType = TypeVar("SettingsType", bound=Settings)


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse `["a.b=1", "c=x"]` into a nested mapping; values are YAML."""
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
    """Validate `values`; the first fault becomes a one-line InputError."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as fault:
        first = fault.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise _unknown_setting(kind, first["loc"]) from None
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"setting {path or 'combination'}: {message}") from None


def over_defaults(default: BaseModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `values` into the fields that `default` sets, group by group.

    Validated alone, a group given in part would lose the rest of its default, as in
    `learning_rate: Schedule = Schedule(first=1e-3, last=1e-3)` with only `last` given.
    """
    tree = default.model_dump(exclude_unset=True)
    for key, value in values.items():
        inside = getattr(default, key, None)
        if isinstance(inside, BaseModel) and isinstance(value, Mapping):
            tree[key] = over_defaults(inside, value)
        else:
            tree[key] = value
    return tree


def in_words(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of settings as text, for titles and names of folders."""
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in values.items()
    ]


def changed_in_words(
    settings: BaseModel, excluded: Set[str], **described: str
) -> list[tuple[str, str]]:
    """Names and values of settings away from their defaults; those `described` in these words."""
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=set(excluded))
    return in_words(values | {name: words for name, words in described.items() if words})


def one_or_more(value: Any) -> Any:
    """A single item, as a text or a mapping, as a list of one; for validators of lists."""
    return [value] if isinstance(value, (str, Mapping)) else value


def _unknown_setting(kind: type[BaseModel], path: Sequence[int | str]) -> InputError:
    """Name the new name of a renamed setting, or the nearest one."""
    for key in path[:-1]:
        field = kind.model_fields.get(str(key))
        inside = record_in(field.annotation) if field is not None else None
        if inside is None:
            break  # inside a list or a free mapping
        kind = inside
    prefix = "".join(f"{key}." for key in path[:-1])
    name = str(path[-1])
    if issubclass(kind, Settings) and name in kind.renamed:
        return InputError(f"setting {prefix}{name} is now called {prefix}{kind.renamed[name]}")
    if issubclass(kind, Settings) and name in kind.removed:
        return InputError(f"setting {prefix}{name} was removed: {kind.removed[name]}")
    return unknown_name("setting", f"{prefix}{name}", [f"{prefix}{n}" for n in kind.model_fields])


def record_in(annotation: Any) -> type[BaseModel] | None:
    """Return the record type in `Record` or `Record | None`."""
    for choice in get_args(annotation) or (annotation,):
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            return choice
    return None
