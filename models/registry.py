"""Networks and descriptions of bundles, by the name of their system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from loadmaster.envs.registry import find_system
from loadmaster.models.manifest import Manifest

if TYPE_CHECKING:
    from torch import nn


class NetworkSpec(NamedTuple):
    """How to build the networks of a system, and describe what a bundle was trained on."""

    build: Callable[[Mapping[str, Any]], nn.Module]  # settings -> network, or an InputError
    trained_on: Callable[[Manifest], str]


def find_network(system: str) -> NetworkSpec:
    """Find a system's network; an InputError suggests the nearest name."""
    found = find_system(system)
    describe = found.load("trained_on") if found.has("trained_on") else lambda manifest: ""
    return NetworkSpec(found.load("network"), describe)
