"""The workloads an episode can draw its jobs from."""

from __future__ import annotations

from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import alibaba, toy, tpch, tpch_like
from loadmaster.envs.traces import WorkloadSpec, find_workload

WORKLOADS: dict[str, WorkloadSpec[DagSchedulingSettings, Workload]] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            "tpch-like",
            "154 generated jobs, 22 query shapes x 7 sizes, calibrated to TPC-H on Spark (no data)",
            tpch_like.load,
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
            toy.load,
        ),
    )
}


def load_workload(settings: DagSchedulingSettings) -> Workload:
    """The workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
