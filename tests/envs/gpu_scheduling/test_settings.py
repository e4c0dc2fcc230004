"""Settings, and the machine tables built from them."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.settings import CLUSTERS, GPU_TYPES, GpuSchedulingSettings
from loadmaster.envs.settings import build_settings, parse_assignments


def read(*assignments: str) -> GpuSchedulingSettings:
    return build_settings(GpuSchedulingSettings, parse_assignments(assignments))


def with_machines(*gpus: str, **types: Any) -> GpuSchedulingSettings:
    """A machine with one GPU of each type; `types` are speed and price of additional types."""
    machines = [{"count": 1, "gpus": 1, "gpu": gpu, "cpus": 8} for gpu in gpus]
    own = [{"name": name, **values} for name, values in types.items()]
    return build_settings(GpuSchedulingSettings, {"machines": machines, "gpu_types": own})


def test_load_and_jobs_depend_on_cluster() -> None:
    small, medium, large = (read(f"cluster={name}") for name in CLUSTERS)
    assert small.drawn_jobs < medium.drawn_jobs < large.drawn_jobs
    assert small.offered_load > 1 > large.offered_load > medium.offered_load
    given = read("cluster=large", "jobs=7", "load=2")
    assert (given.drawn_jobs, given.offered_load) == (7, 2)


def test_settings_survive_json() -> None:
    settings = read(
        "machines=[{count: 3, gpus: 8, gpu: H100, cpus: 96}]",
        "gpu_types=[{name: H100, speed: 4, price_per_hour: 7}]",
        "arrivals=per-minute",
        "data=some/folder",
    )
    assert settings.machine_groups[0].count == 3
    assert build_settings(GpuSchedulingSettings, settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ("cluser=small", "'cluser'; did you mean 'cluster'"),
        ("cluster=huge", "setting cluster: .*'small', 'medium' or 'large'"),
        ("load=0", "setting load: .*greater than 0"),
        ("stragglers=-0.1", "setting stragglers: .*greater than or equal to 0"),
        ("machines=[{count: 0, gpus: 8, gpu: V100, cpus: 96}]", "setting machines.0.count: "),
        ("machines=[{count: 1, gpus: 8, cpus: 96}]", "setting machines.0.gpu: Field required"),
        ("gpu_types=[{name: X, speed: 1, price_per_hour: -2}]", "gpu_types.0.price_per_hour: "),
        ("load=1 interarrival_s=5", "interarrival_s and load"),
    ],
)
def test_bad_settings_are_refused_by_name(assignments: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(*(assignments.split() if "[" not in assignments else [assignments]))


def test_groups_become_consecutive_machines() -> None:
    groups = (
        "machines=[{count: 3, gpus: 2, gpu: P100, cpus: 10, machines_per_rack: 2}, "
        "{count: 1, gpus: 8, gpu: T4, cpus: 96}]"
    )
    cluster, names = build_cluster(read(groups)), list(GPU_TYPES)
    assert cluster.gpu_capacity.tolist() == [200, 200, 200, 800]
    assert cluster.cpu_capacity.tolist() == [1000, 1000, 1000, 9600]
    assert [names[number] for number in cluster.gpu_type] == ["P100", "P100", "P100", "T4"]
    assert cluster.speed.tolist() == [0.76, 0.76, 0.76, 0.4]
    assert cluster.price_per_s == pytest.approx([1.46 / 3600] * 3 + [0.35 / 3600])
    assert cluster.rack.tolist() == [0, 0, 1, 2]  # a group starts a new rack
    assert "".join(column.dtype.kind for column in cluster) == "iiiffi"


def test_custom_gpu_types_are_added_or_replaced() -> None:
    own, free = {"speed": 4.0, "price_per_hour": 7.2}, {"speed": 1.0, "price_per_hour": 0.0}
    settings = with_machines("H100", "V100", H100=own, V100=free)
    cluster = build_cluster(settings)
    assert cluster.price_per_s.tolist() == [7.2 / 3600, 0.0]
    names = list(settings.known_gpu_types)
    assert names == [*GPU_TYPES, "H100"]  # numbers stay
    assert cluster.gpu_type.tolist() == [names.index("H100"), names.index("V100")]


@pytest.mark.parametrize(
    ("gpu", "message"), [("V10O", "'V10O'; did you mean 'V100"), ("H100", "'H100' has no price")]
)
def test_unknown_or_unpriced_gpu_type_is_refused(gpu: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_cluster(with_machines(gpu, H100={"speed": 4.0}))
