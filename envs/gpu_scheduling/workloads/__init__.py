"""Workloads of GPU scheduling by name."""

from collections.abc import Callable

from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import pai_like
from loadmaster.envs.gpu_scheduling.workloads.traces import JOBS, OPENB, PAI, PHILLY, load_toy
from loadmaster.envs.traces import WorkloadSpec, find_workload

_LOADERS: tuple[tuple[str, str, Callable[[GpuSchedulingSettings], Workload]], ...] = (
    (
        "pai-like",
        "generated jobs, calibrated to Alibaba's PAI: gangs, shares of GPUs (no data)",
        pai_like.load,
    ),
    ("pai", "jobs of Alibaba's PAI, 2020 (CSV under data/alibaba_gpu/v2020)", PAI.load),
    ("philly", "jobs of Microsoft's Philly, 2017 (CSV under data/alibaba_gpu)", PHILLY.load),
    ("openb", "pods of Alibaba's GPU cluster, 2023 (CSV under data/alibaba_gpu/v2023)", OPENB.load),
    ("jobs", "your own jobs in CSV, as --set data=FILE (`loadmaster fit`)", JOBS.load),
    ("toy", "five tiny jobs, to schedule by hand", load_toy),
)
WORKLOADS = {name: WorkloadSpec(name, summary, load) for name, summary, load in _LOADERS}


def load_workload(settings: GpuSchedulingSettings) -> Workload:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
