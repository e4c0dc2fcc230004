"""Configurations from YAML files, and one laid over another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError


def read_config(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror}; expected a YAML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; expected a YAML file") from None
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(fault, "problem", None) or "not YAML"
        raise InputError(f"{path}{where}: {problem}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a {type(values).__name__}; expected settings as key: value")
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, branch by branch."""
    whole = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(whole.get(name), Mapping):
            whole[name] = merged(whole[name], value)
        else:
            whole[name] = value
    return whole
