"""A cluster's machines as everybody needs them who is asked about it.

Machines seldom change from one request to the next, so what follows from them is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from loadmaster.envs.gpu_scheduling.cluster import GPU_TYPES, WHOLE, Cluster, GpuType

if TYPE_CHECKING:
    from loadmaster.serving.systems.das.schema import Machine


# Faults that only show between fields, told of the field that is wrong.


def wrong_field(place: tuple[str | int, ...], given: Any, message: str) -> ValidationError:
    """For a validator of a whole record to raise; `place` leads from there to the field."""
    # The message is passed as a value: what a stranger wrote may hold braces.
    fault = PydanticCustomError("wrong_field", "{message}", {"message": message})
    details = InitErrorDetails(type=fault, loc=place, input=given)
    return ValidationError.from_exception_data("state", [details])


KEPT = 8  # clusters; one that loses and wins a machine now and then is a few

# All that is told of a machine, but for what changes from event to event.
_facts = attrgetter("name", "gpus", "gpu", "cpus", "rack", "speed", "price_per_hour")
_Facts = tuple[str, int, str, float, str, float | None, float | None]


class ClusterIndex(NamedTuple):
    """M machines. It is shared: nobody may write into it."""

    cluster: Cluster
    place_of: Mapping[str, int]  # of a machine by its name
    gpu: tuple[int, ...]  # (M,) GPUs and cores, percent
    cpu: tuple[int, ...]  # (M,)
    kinds: tuple[str, ...]  # (M,) types of GPU
    number: Mapping[str, int]  # of a type of GPU, of those that jobs may ask for
    own: tuple[GpuType, ...]  # types that only this cluster knows


def percent(resource: float) -> int:
    """Of one GPU or one core, as the tables count."""
    return round(WHOLE * resource)


def park_of(machines: Sequence[Machine]) -> ClusterIndex:
    """Raises what is wrong with them, with the field in which it stands."""
    return _park(tuple(map(_facts, machines)))


@lru_cache(maxsize=KEPT)
def _park(machines: tuple[_Facts, ...]) -> ClusterIndex:
    _check(machines)
    own = sorted({kind for _, _, kind, *_ in machines if kind not in GPU_TYPES})
    number = {kind: place for place, kind in enumerate((*GPU_TYPES, *own))}
    cluster = _cluster_of(machines, number)
    return ClusterIndex(
        cluster,
        place_of={name: place for place, (name, *_) in enumerate(machines)},
        gpu=tuple(cluster.gpu_capacity.tolist()),
        cpu=tuple(cluster.cpu_capacity.tolist()),
        kinds=tuple(kind for _, _, kind, *_ in machines),
        number=number,
        own=tuple(GpuType(name=kind, speed=1.0) for kind in own),
    )


def _check(machines: tuple[_Facts, ...]) -> None:
    names: set[str] = set()
    for place, (name, _, kind, _, _, speed, price) in enumerate(machines):
        if name in names:
            raise wrong_field(
                ("machines", place, "name"),
                name,
                f"machine {name!r} stands there twice; expected another name",
            )
        names.add(name)
        if kind not in GPU_TYPES and None in (speed, price):
            raise wrong_field(
                ("machines", place, "gpu"),
                kind,
                f"unknown GPU type {kind!r}; expected one of {', '.join(GPU_TYPES)}, or "
                "speed and price_per_hour beside it",
            )


def _cluster_of(machines: tuple[_Facts, ...], number: Mapping[str, int]) -> Cluster:
    _, gpus, kinds, cpus, rack, speeds, prices = zip(*machines, strict=True)
    racks: dict[str, int] = {}
    known = [GPU_TYPES.get(kind) for kind in kinds]
    speed = [
        one.speed if told is None and one else told for one, told in zip(known, speeds, strict=True)
    ]
    price = [
        (one.price_per_hour or 0.0) if told is None and one else told
        for one, told in zip(known, prices, strict=True)
    ]
    return Cluster(
        gpu_capacity=np.array([WHOLE * count for count in gpus], np.int64),
        cpu_capacity=np.array([percent(count) for count in cpus], np.int64),
        gpu_type=np.array([number[kind] for kind in kinds], np.int64),
        speed=np.array(speed, np.float64),
        price_per_s=np.array(price, np.float64) / 3600,
        rack=np.array([racks.setdefault(name, len(racks)) for name in rack], np.int64),
    )
