"""What may be set about an episode, and how it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import CLUSTERS, MachineGroup
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.settings import build_settings, parse_assignments


def read(*assignments: str) -> GpuSchedulingSettings:
    return build_settings(GpuSchedulingSettings, parse_assignments(assignments))


def test_the_defaults_are_the_small_cluster_and_generated_jobs() -> None:
    settings = GpuSchedulingSettings()
    assert settings.workload == "pai-like"
    assert settings.machine_groups == CLUSTERS["small"]
    assert settings.backfill
    assert settings.interference


def test_larger_clusters_get_more_jobs_and_only_small_is_overloaded() -> None:
    small, medium, large = (read(f"cluster={name}") for name in CLUSTERS)
    assert small.drawn_jobs < medium.drawn_jobs < large.drawn_jobs
    assert small.offered_load > 1 > large.offered_load > medium.offered_load
    assert read("cluster=large", "jobs=7", "load=2").drawn_jobs == 7
    assert read("cluster=large", "jobs=7", "load=2").offered_load == 2


def test_own_machines_can_be_written_on_the_command_line() -> None:
    settings = read("machines=[{count: 3, gpus: 8, gpu: V100, cpus: 96}]")
    assert settings.machine_groups == (MachineGroup(count=3, gpus=8, gpu="V100", cpus=96),)


def test_what_is_written_out_reads_back() -> None:
    settings = read(
        "machines=[{count: 3, gpus: 8, gpu: H100, cpus: 96}]",
        "gpu_types=[{name: H100, speed: 4, price_per_hour: 7}]",
        "arrivals=per-minute",
        "data=some/folder",
    )
    written = settings.model_dump(mode="json")
    assert build_settings(GpuSchedulingSettings, written) == settings


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("cluser=small", "unknown setting 'cluser'; did you mean 'cluster'"),
        ("cluster=huge", "setting cluster: Input should be 'small', 'medium' or 'large'"),
        ("arrivals=weekly", "setting arrivals: .*'per-minute'"),
        ("load=0", "setting load: .*greater than 0"),
        ("jobs=-1", "setting jobs: .*greater than 0"),
        ("stragglers=-0.1", "setting stragglers: .*greater than or equal to 0"),
        ("restart_s=-1", "setting restart_s: .*greater than or equal to 0"),
        ("machines=[{count: 0, gpus: 8, gpu: V100, cpus: 96}]", "setting machines.0.count: "),
        ("machines=[{count: 1, gpus: 8, cpus: 96}]", "setting machines.0.gpu: Field required"),
        ("gpu_types=[{name: X, speed: 1, price_per_hour: -2}]", "gpu_types.0.price_per_hour: "),
    ],
)
def test_bad_settings_are_refused_by_name(assignment: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(assignment)


@pytest.mark.parametrize("both", [{"load": 1.0, "interarrival_s": 5.0}])
def test_one_rate_is_enough(both: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="interarrival_s and load both set the gap"):
        build_settings(GpuSchedulingSettings, both)
