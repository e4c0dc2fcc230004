"""Machines as a user writes them, and the tables made of them."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import (
    CLUSTERS,
    GPU_TYPES,
    GpuType,
    MachineGroup,
    build_cluster,
    gpu_types,
    type_names,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


@pytest.mark.parametrize(
    ("name", "machines", "gpus_each", "racks"),
    [("small", 8, 4, 3), ("medium", 32, 4, 8), ("large", 128, 8, 16)],
)
def test_the_named_clusters_have_their_size(
    name: str, machines: int, gpus_each: int, racks: int
) -> None:
    cluster = build_cluster(GpuSchedulingSettings.model_validate({"cluster": name}))
    assert cluster.gpu_capacity.tolist() == [100 * gpus_each] * machines
    assert cluster.rack.max() + 1 == racks
    assert np.unique(cluster.rack).tolist() == list(range(racks))
    # Placement matters: kinds differ in speed, price, and what a dollar buys.
    assert len(np.unique(cluster.speed)) == len(np.unique(cluster.price_per_s)) == 3
    assert len(np.unique(np.round(cluster.speed / cluster.price_per_s, 3))) == 3
    for column in cluster:
        assert len(column) == machines


def test_groups_become_rows_in_their_order() -> None:
    settings = GpuSchedulingSettings(
        machines=(
            MachineGroup(count=3, gpus=2, gpu="P100", cpus=10, machines_per_rack=2),
            MachineGroup(count=1, gpus=8, gpu="T4", cpus=96),
        )
    )
    cluster = build_cluster(settings)
    names = type_names(settings)
    assert cluster.gpu_capacity.tolist() == [200, 200, 200, 800]
    assert cluster.cpu_capacity.tolist() == [1000, 1000, 1000, 9600]
    assert [names[number] for number in cluster.gpu_type] == ["P100", "P100", "P100", "T4"]
    assert cluster.speed.tolist() == [0.76, 0.76, 0.76, 0.4]
    assert cluster.price_per_s == pytest.approx([1.46 / 3600] * 3 + [0.35 / 3600])
    assert cluster.rack.tolist() == [0, 0, 1, 2]  # a group begins a rack of its own
    for column in (cluster.gpu_capacity, cluster.cpu_capacity, cluster.gpu_type, cluster.rack):
        assert column.dtype == np.int64
    for column in (cluster.speed, cluster.price_per_s):
        assert column.dtype == np.float64


def test_own_types_are_added_or_replace_one() -> None:
    own = GpuType(name="H100", speed=4.0, price_per_hour=7.2)
    cheap = GpuType(name="V100", speed=1.0, price_per_hour=0.0)
    settings = GpuSchedulingSettings(
        machines=(
            MachineGroup(count=1, gpus=1, gpu="H100", cpus=8),
            MachineGroup(count=1, gpus=1, gpu="V100", cpus=8),
        ),
        gpu_types=(own, cheap),
    )
    cluster = build_cluster(settings)
    assert cluster.price_per_s.tolist() == [7.2 / 3600, 0.0]
    assert [gpu_types(settings)[number] for number in cluster.gpu_type] == [own, cheap]
    assert type_names(settings)[: len(GPU_TYPES)] == tuple(GPU_TYPES)  # numbers do not move


def test_an_unknown_type_is_named_with_the_nearest() -> None:
    settings = GpuSchedulingSettings(
        machines=(MachineGroup(count=1, gpus=1, gpu="V10O", cpus=8),),
    )
    with pytest.raises(InputError, match="unknown GPU type 'V10O'; did you mean 'V100"):
        build_cluster(settings)


def test_a_type_without_a_price_is_named() -> None:
    settings = GpuSchedulingSettings(
        machines=(MachineGroup(count=1, gpus=1, gpu="H100", cpus=8),),
        gpu_types=(GpuType(name="H100", speed=4.0),),
    )
    with pytest.raises(InputError, match="GPU type 'H100' has no price; expected price_per_hour"):
        build_cluster(settings)


def test_every_known_type_can_be_rented() -> None:
    for name, gpu in GPU_TYPES.items():
        assert gpu.name == name
        assert gpu.price_per_hour is not None
        assert gpu.price_per_hour > 0
    assert GPU_TYPES["V100"].speed == 1.0  # the unit
    used = {group.gpu for groups in CLUSTERS.values() for group in groups}
    assert used <= set(GPU_TYPES)
