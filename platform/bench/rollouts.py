"""Speed of policies in the loop, system by system: rollouts, training and single decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from loadmaster.envs.errors import unknown_name
from loadmaster.platform.bench.results import Figure

SYSTEMS = {
    "decima": "loadmaster.platform.bench.decima",
    "das": "loadmaster.platform.bench.das",
}


def measure(say: Callable[[str], None], system: str | None = None) -> Iterator[Figure]:
    """All figures of one system, or of every one."""
    if system is not None and system not in SYSTEMS:
        raise unknown_name("system", system, SYSTEMS)
    for name in SYSTEMS if system is None else (system,):
        yield from import_module(SYSTEMS[name]).measure(say)
