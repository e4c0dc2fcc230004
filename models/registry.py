"""The families of networks that bundles hold, by the name of their system.

A package that adds a system makes its bundles loadable by an entry point in the group
`loadmaster.networks`, named as the system, that refers to a `Family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from torch import nn

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import build_settings
from loadmaster.models.das import settings as das_training
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.decima import settings as decima_training
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.models.manifest import Manifest

GROUP = "loadmaster.networks"


class NetworkSpec(NamedTuple):
    """The networks of a system."""

    build: Callable[[Mapping[str, Any]], nn.Module]  # settings -> a new one, or an InputError
    trained_on: Callable[[Manifest], str]  # in words


def build_decima(settings: Mapping[str, Any]) -> DecimaNetwork:
    return DecimaNetwork(build_settings(DecimaSettings, settings))


def build_das(settings: Mapping[str, Any]) -> DasNetwork:
    return DasNetwork(build_settings(DasSettings, settings))


BUILT_IN = {
    "das": NetworkSpec(build_das, das_training.trained_on),
    "decima": NetworkSpec(build_decima, decima_training.trained_on),
}


def find_network(system: str) -> NetworkSpec:
    """The family of that system; an InputError suggests the nearest."""
    added = {entry.name: entry for entry in entry_points(group=GROUP)}
    if system in BUILT_IN:
        return BUILT_IN[system]
    if system not in added:
        raise unknown_name("system", system, (*BUILT_IN, *added))
    try:
        family = added[system].load()
    except Exception as fault:  # somebody else's package may fail in any way
        raise InputError(f"the networks of {system!r} cannot be loaded: {fault}") from None
    if not isinstance(family, NetworkSpec):
        raise InputError(f"the networks of {system!r}: {added[system].value} is no Family")
    return family
