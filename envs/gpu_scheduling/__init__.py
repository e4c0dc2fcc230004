"""GPU scheduling: distributed training jobs share machines with GPUs."""

from loadmaster.envs.registry import EnvironmentSpec

SPEC = EnvironmentSpec(
    name="gpu_scheduling",
    prefix="GpuScheduling",
    summary="Distributed training jobs, gangs of instances, share machines with GPUs.",
    package=__name__,
    agents=("ordering", "placement"),
)
