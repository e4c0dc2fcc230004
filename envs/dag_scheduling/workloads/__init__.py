"""Registry of workloads."""

from collections.abc import Callable

from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import alibaba, job_file, random_dags, synthetic, tpch
from loadmaster.envs.traces import WorkloadSpec, find_workload

_LOADERS: tuple[tuple[str, str, Callable[[DagSchedulingSettings], Workload]], ...] = (
    (
        "tpch-like",
        "154 generated jobs, 22 query shapes x 7 sizes, calibrated to TPC-H on Spark (no data)",
        lambda settings: synthetic.tpch_like(),
    ),
    ("tpch", "TPC-H stage profiles measured on Spark (npy files under data/tpch)", tpch.load),
    ("alibaba", "production batch jobs, Alibaba 2018 (CSV under data/alibaba2018)", alibaba.load),
    (
        "alibaba-like",
        "600 generated jobs, fitted to the production jobs of alibaba (no data)",
        lambda settings: random_dags.alibaba_like(),
    ),
    (
        "random-dags",
        "300 generated jobs: random DAGs that differ in how they slow down (no data)",
        lambda settings: random_dags.random_dags(),
    ),
    ("jobs", "your own jobs in JSON lines, as --set data=FILE (`loadmaster fit`)", job_file.load),
    (
        "toy",
        "three tiny jobs with constant durations, to compute by hand",
        lambda settings: synthetic.toy(),
    ),
)
WORKLOADS = {name: WorkloadSpec(name, summary, load) for name, summary, load in _LOADERS}


def load_workload(settings: DagSchedulingSettings) -> Workload:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
