"""Which systems the service knows by name; others are given as "module:object"."""

from __future__ import annotations

from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import resolve
from loadmaster.serving.endpoint import Endpoint

BUILT_IN = {
    "das": "loadmaster.serving.das.endpoint:ENDPOINT",
    "decima": "loadmaster.serving.decima.endpoint:ENDPOINT",
}


def find_endpoint(system: str, reference: str = "") -> Endpoint[Any, Any, Any]:
    """The endpoint of a system: that of `reference`, or a built-in one."""
    if not reference and system not in BUILT_IN:
        raise unknown_name("system", system, BUILT_IN)
    where = reference or BUILT_IN[system]
    try:
        found = resolve(where)
    except (ImportError, AttributeError, ValueError) as fault:
        raise InputError(
            f"endpoint {where!r} of system {system!r} cannot be loaded: {fault}; "
            "expected module:object"
        ) from None
    if not isinstance(found, Endpoint):
        raise InputError(f"{where!r} is no Endpoint; expected one for system {system!r}")
    return found
