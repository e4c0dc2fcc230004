"""DAG scheduling: Spark-like jobs share a pool of executors."""

from loadmaster.envs.registry import EnvironmentSpec

SPEC = EnvironmentSpec(
    name="dag_scheduling",
    prefix="DagScheduling",
    summary="Spark-like jobs, DAGs of stages, share a pool of executors.",
    package=__name__,
)
