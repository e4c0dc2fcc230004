"""The machines of an episode: groups as a user writes them, tables as compiled code reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import Settings

if TYPE_CHECKING:
    from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


# The kinds of GPU, how fast each is, and what an hour of it costs.


class GpuType(Settings):
    """One kind of GPU. A type without a price can be described, but nobody can rent it."""

    name: str = Field(min_length=1)
    speed: PositiveFloat  # of a training job, that on a V100 being 1
    price_per_hour: float | None = Field(default=None, ge=0)  # dollars, of one whole GPU
    shared_speed: float = Field(default=0.6, gt=0, le=1)  # what two jobs keep that share one GPU


# Prices are the public on-demand ones of a single GPU, in dollars an hour: Google Compute Engine's
# list for us-central1 (T4 0.35, K80 0.45, P100 1.46, V100 2.48, A100 2.934), and an eighth of an
# AWS p3dn.24xlarge for the V100 of 32 GB (31.212 / 8), an AWS g5.xlarge for the A10 (1.006).
# Speeds: K80 and P100 are medians over Gavel's measured throughputs; T4, A10 and A100 follow
# published training benchmarks of ResNet-50 and BERT, rounded. What is left of the speed when two
# jobs share a GPU was measured for K80, P100 and V100; a newer card takes the V100's, others
# the P100's. MISC is the PAI trace's word for older boards, taken as a K80. G2 and G3 are names
# that the 2023 trace withholds, taken as an A10 and an A100.
GPU_TYPES: dict[str, GpuType] = {
    gpu.name: gpu
    for gpu in (
        GpuType(name="T4", speed=0.4, price_per_hour=0.35, shared_speed=0.60),
        GpuType(name="K80", speed=0.2, price_per_hour=0.45, shared_speed=0.54),
        GpuType(name="P100", speed=0.76, price_per_hour=1.46, shared_speed=0.60),
        GpuType(name="V100", speed=1.0, price_per_hour=2.48, shared_speed=0.66),
        GpuType(name="V100M16", speed=1.0, price_per_hour=2.48, shared_speed=0.66),
        GpuType(name="V100M32", speed=1.0, price_per_hour=3.90, shared_speed=0.66),
        GpuType(name="A10", speed=0.8, price_per_hour=1.006, shared_speed=0.66),
        GpuType(name="A100", speed=2.0, price_per_hour=2.934, shared_speed=0.66),
        GpuType(name="MISC", speed=0.2, price_per_hour=0.45, shared_speed=0.54),
        GpuType(name="G2", speed=0.8, price_per_hour=1.006, shared_speed=0.66),
        GpuType(name="G3", speed=2.0, price_per_hour=2.934, shared_speed=0.66),
    )
}


def catalogue(own: Iterable[GpuType] = ()) -> dict[str, GpuType]:
    """All types by name, the user's own among them; their order numbers them."""
    return {**GPU_TYPES, **{gpu.name: gpu for gpu in own}}


def find_gpu(name: str, known: dict[str, GpuType]) -> GpuType:
    """The type of that name, fit to be rented."""
    if name not in known:
        raise unknown_name("GPU type", name, known)
    if known[name].price_per_hour is None:
        raise InputError(
            f"GPU type {name!r} has no price; expected price_per_hour in dollars, 0 if it is free"
        )
    return known[name]


WHOLE = 100  # resources count in percent of one GPU or one core


class MachineGroup(Settings):
    """Equal machines, side by side in racks of their own."""

    count: PositiveInt
    gpus: PositiveInt
    gpu: str  # a name in GPU_TYPES or in the settings' own gpu_types
    cpus: PositiveInt
    machines_per_rack: PositiveInt = 4


# Half of the GPUs are slow and cheap, the others two to five times as fast and dearer for the same
# work. The cores per GPU (16, 16, 24) are few enough that data-hungry jobs run out of them.
CLUSTERS: dict[str, tuple[MachineGroup, ...]] = {
    "small": (  # 8 machines, 32 GPUs, 3 racks
        MachineGroup(count=2, gpus=4, gpu="V100", cpus=96),
        MachineGroup(count=2, gpus=4, gpu="P100", cpus=64),
        MachineGroup(count=4, gpus=4, gpu="T4", cpus=64),
    ),
    "medium": (  # 32 machines, 128 GPUs, 8 racks
        MachineGroup(count=8, gpus=4, gpu="V100", cpus=96),
        MachineGroup(count=8, gpus=4, gpu="P100", cpus=64),
        MachineGroup(count=16, gpus=4, gpu="T4", cpus=64),
    ),
    "large": (  # 128 machines, 1,024 GPUs, 16 racks
        MachineGroup(count=32, gpus=8, gpu="V100", cpus=192, machines_per_rack=8),
        MachineGroup(count=32, gpus=8, gpu="P100", cpus=128, machines_per_rack=8),
        MachineGroup(count=64, gpus=8, gpu="T4", cpus=128, machines_per_rack=8),
    ),
}


class Cluster(NamedTuple):
    """M machines. The GPUs of a machine are one pool, and so are its cores."""

    gpu_capacity: NDArray[np.int64]  # (M,) percent: 800 is eight GPUs
    cpu_capacity: NDArray[np.int64]  # (M,) percent: 9600 is 96 cores
    gpu_type: NDArray[np.int64]  # (M,) place in `type_names`
    speed: NDArray[np.float64]  # (M,) relative to a V100
    price_per_s: NDArray[np.float64]  # (M,) dollars, of one whole GPU
    rack: NDArray[np.int64]  # (M,)


def gpu_types(settings: GpuSchedulingSettings) -> tuple[GpuType, ...]:
    """Every type an episode may speak of; `Cluster.gpu_type` and `Jobs.gpu_type` point in here."""
    return tuple(catalogue(settings.gpu_types).values())


def type_names(settings: GpuSchedulingSettings) -> tuple[str, ...]:
    return tuple(gpu.name for gpu in gpu_types(settings))


def build_cluster(settings: GpuSchedulingSettings) -> Cluster:
    """The tables of the settings' machines, in the order in which they are listed."""
    known = catalogue(settings.gpu_types)
    number = {name: place for place, name in enumerate(known)}
    columns: list[tuple[int, int, int, float, float, int]] = []
    racks = 0
    for group in settings.machine_groups:
        gpu = find_gpu(group.gpu, known)
        price = (gpu.price_per_hour or 0.0) / 3600
        for place in range(group.count):
            rack = racks + place // group.machines_per_rack
            size = (group.gpus * WHOLE, group.cpus * WHOLE)
            columns.append((*size, number[group.gpu], gpu.speed, price, rack))
        racks += -(-group.count // group.machines_per_rack)
    gpus, cpus, types, speeds, prices, places = zip(*columns, strict=True)
    return Cluster(
        gpu_capacity=np.array(gpus, np.int64),
        cpu_capacity=np.array(cpus, np.int64),
        gpu_type=np.array(types, np.int64),
        speed=np.array(speeds, np.float64),
        price_per_s=np.array(prices, np.float64),
        rack=np.array(places, np.int64),
    )
