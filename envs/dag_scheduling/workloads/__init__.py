"""Registry of workloads."""

from __future__ import annotations

from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import alibaba, synthetic, tpch
from loadmaster.envs.traces import WorkloadSpec, find_workload

WORKLOADS: dict[str, WorkloadSpec[DagSchedulingSettings, Workload]] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            "tpch-like",
            "154 generated jobs, 22 query shapes x 7 sizes, calibrated to TPC-H on Spark (no data)",
            lambda settings: synthetic.tpch_like(),
        ),
        WorkloadSpec(
            "tpch",
            "TPC-H stage profiles measured on Spark (npy files under data/tpch)",
            tpch.load,
        ),
        WorkloadSpec(
            "alibaba",
            "production batch jobs, Alibaba 2018 (CSV under data/alibaba2018)",
            alibaba.load,
        ),
        WorkloadSpec(
            "toy",
            "three tiny jobs with constant durations, to compute by hand",
            lambda settings: synthetic.toy(),
        ),
    )
}


def load_workload(settings: DagSchedulingSettings) -> Workload:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
