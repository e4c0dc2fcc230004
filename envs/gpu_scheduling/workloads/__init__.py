"""Workloads of GPU scheduling by name."""

from __future__ import annotations

from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import pai_like, traces
from loadmaster.envs.traces import WorkloadSpec, find_workload

WORKLOADS: dict[str, WorkloadSpec[GpuSchedulingSettings, Workload]] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            "pai-like",
            "generated jobs, calibrated to Alibaba's PAI: gangs, shares of GPUs (no data)",
            pai_like.load,
        ),
        WorkloadSpec(
            "pai",
            "jobs of Alibaba's PAI, 2020 (CSV under data/alibaba_gpu/v2020)",
            traces.PAI.load,
        ),
        WorkloadSpec(
            "philly",
            "jobs of Microsoft's Philly, 2017 (CSV under data/alibaba_gpu)",
            traces.PHILLY.load,
        ),
        WorkloadSpec(
            "openb",
            "pods of Alibaba's GPU cluster, 2023 (CSV under data/alibaba_gpu/v2023)",
            traces.OPENB.load,
        ),
        WorkloadSpec("toy", "five tiny jobs, to schedule by hand", traces.load_toy),
    )
}


def load_workload(settings: GpuSchedulingSettings) -> Workload:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
