"""Stream scaling: the parallelism of every task of a streaming job follows its load."""

from loadmaster.envs.registry import EnvironmentSpec

SPEC = EnvironmentSpec(
    name="stream_scaling",
    prefix="StreamScaling",
    summary="A streaming job, a DAG of tasks, whose tasks get more or fewer instances.",
    package=__name__,
)
