"""Pod scaling: replicas, CPU and memory of an application's pods follow its load."""

from loadmaster.envs.registry import EnvironmentSpec

SPEC = EnvironmentSpec(
    name="pod_scaling",
    prefix="PodScaling",
    summary="An application on Kubernetes whose pods get more or fewer replicas, CPU and memory.",
    package=__name__,
)
