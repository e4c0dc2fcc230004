"""Resource quantities of Kubernetes (`500m`, `512Mi`), and resources of a container."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError

_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]?i?)")
MIB = 2.0**20


class Size(NamedTuple):
    """Limits of a pod's container: thousandths of a core, and MiB."""

    cpu_m: float
    memory_mib: float


def parse_quantity(text: Any, where: str) -> float:
    """The value of a quantity in cores or bytes."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _SUFFIXES:
        raise InputError(f"{where} is {text!r}; expected a quantity such as 500m or 512Mi")
    return float(match[1]) * _SUFFIXES[match[2]]


def cpu_text(cpu_m: float) -> str:
    """Whole thousandths of a core, rounded up: Kubernetes has no finer CPU."""
    return f"{math.ceil(cpu_m - 1e-6)}m"


def memory_text(memory_mib: float) -> str:
    """Whole MiB, rounded up."""
    return f"{math.ceil(memory_mib - 1e-6)}Mi"


def whole_replicas(replicas: float) -> int:
    """Rounded up, as HPA does."""
    return math.ceil(replicas - 1e-6)


def whole_size(size: Size) -> Size:
    """The size in the units that are written."""
    return Size(float(math.ceil(size.cpu_m - 1e-6)), float(math.ceil(size.memory_mib - 1e-6)))


def size_of(resources: Mapping[str, Any] | None, where: str) -> Size:
    """Limits in a container's `resources`."""
    limits = (resources or {}).get("limits") or {}
    for name in ("cpu", "memory"):
        if name not in limits:
            raise InputError(f"{where} has no {name} limit; expected limits of cpu and memory")
    return Size(
        round(1000 * parse_quantity(limits["cpu"], f"{where}: cpu limit"), 6),
        parse_quantity(limits["memory"], f"{where}: memory limit") / MIB,
    )


def resources_of(size: Size, before: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Limits of `size`; requests keep their share of the limits, and a pod its QoS class."""
    old = size_of(before, where)
    requests = (before or {}).get("requests") or {}
    written = {"limits": {"cpu": cpu_text(size.cpu_m), "memory": memory_text(size.memory_mib)}}
    kept: dict[str, str] = {}
    if "cpu" in requests:
        share = 1000 * parse_quantity(requests["cpu"], f"{where}: cpu request") / old.cpu_m
        kept["cpu"] = cpu_text(min(share, 1.0) * size.cpu_m)
    if "memory" in requests:
        request = parse_quantity(requests["memory"], f"{where}: memory request") / MIB
        kept["memory"] = memory_text(min(request / old.memory_mib, 1.0) * size.memory_mib)
    return {**written, "requests": kept} if kept else written
