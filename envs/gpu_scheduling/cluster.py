"""The machines of an episode: groups as a user writes them, tables as compiled code reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from loadmaster.envs.gpu_scheduling.gpus import GpuType, catalogue, find_gpu
from loadmaster.envs.settings import Settings

if TYPE_CHECKING:  # the settings hold machine groups
    from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

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
