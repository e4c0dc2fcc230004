"""The systems that this installation can serve."""

from __future__ import annotations

from importlib.util import find_spec

from loadmaster.platform.systems.registry import systems


def _is_there(reference: str) -> bool:
    return bool(reference) and find_spec(reference.partition(":")[0]) is not None


SYSTEMS = {name: one.endpoint_at for name, one in systems().items() if _is_there(one.endpoint_at)}
ALL = ("toy", *SYSTEMS)
