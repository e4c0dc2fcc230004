"""Machine tables for compiled code, built from the settings."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


class Cluster(NamedTuple):
    """M machines. The GPUs of a machine form one pool, and so do its cores."""

    gpu_capacity: NDArray[np.int64]  # (M,) percent: 800 is eight GPUs
    cpu_capacity: NDArray[np.int64]  # (M,) percent: 9600 is 96 cores
    gpu_type: NDArray[np.int64]  # (M,) index in `GpuSchedulingSettings.known_gpu_types`
    speed: NDArray[np.float64]  # (M,) relative to a V100
    price_per_s: NDArray[np.float64]  # (M,) dollars for one whole GPU
    rack: NDArray[np.int64]  # (M,)


def build_cluster(settings: GpuSchedulingSettings) -> Cluster:
    """Build the tables of `settings.machine_groups`, in their order."""
    known = settings.known_gpu_types
    number = {name: index for index, name in enumerate(known)}
    rows: list[tuple[float, ...]] = []
    racks = 0
    for group in settings.machine_groups:
        if group.gpu not in known:
            raise unknown_name("GPU type", group.gpu, known)
        gpu = known[group.gpu]
        if gpu.price_per_hour is None:
            expected = "price_per_hour in dollars, 0 if it is free"
            raise InputError(f"GPU type {gpu.name!r} has no price; expected {expected}")
        size = group.gpus * WHOLE, group.cpus * WHOLE, number[group.gpu]
        for index in range(group.count):
            rack = racks + index // group.machines_per_rack
            rows.append((*size, gpu.speed, gpu.price_per_hour / 3600, rack))
        racks = rack + 1
    types = "iiiddi"
    return Cluster._make(
        np.array(column, np.int64 if kind == "i" else np.float64)
        for column, kind in zip(zip(*rows, strict=True), types, strict=True)
    )


def capacity(jobs: Jobs, cluster: Cluster) -> NDArray[np.int64]:
    """(N,) Instances of each job that the empty cluster could hold."""
    # Over the K kinds of machine: a table of all jobs and all machines could be enormous.
    kinds, machines = np.unique(
        np.stack([cluster.gpu_capacity, cluster.cpu_capacity, cluster.gpu_type]),
        axis=1,
        return_counts=True,
    )
    gpu, cpu, wanted = jobs.gpu[:, None], np.maximum(jobs.cpu, 1)[:, None], jobs.gpu_type[:, None]
    each = np.minimum(kinds[0] // gpu, kinds[1] // cpu)  # (N, K)
    allowed = (wanted == ANY_TYPE) | (wanted == kinds[2])
    held: NDArray[np.int64] = np.where(allowed, each, 0) @ machines
    return held
