"""Settings of the engine `kubernetes-gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from loadmaster.envs.settings import Settings, one_or_more
from loadmaster.platform.steering.slurm.state import GpuKind


class GpuClusterSettings(Settings):
    """How the GPU pods of a cluster are read, and what its scheduler is answered."""

    cluster: str = Field(default="kubernetes", description="Its name in logs, and as a tenant.")
    kubeconfig: Path | None = Field(
        default=None, description="Default: the service account, $KUBECONFIG or ~/.kube/config."
    )
    context: str | None = Field(default=None, description="Of the kubeconfig.")
    timeout_s: float = Field(default=10, gt=0, description="Of a request to the API server.")
    host: str = Field(default="127.0.0.1", description="Address on which the extender listens.")
    port: int = Field(default=9130, ge=0, le=65_535, description="0: a free one, for tests.")
    order: bool = Field(
        default=False,
        description="Hold back pods that the last decision makes wait, and new ones until a "
        "decision knows them; restrict started ones to their node. It needs the right to patch "
        "pods. False: only scores.",
    )
    ttl_s: float = Field(
        default=20,
        gt=0,
        description="Life of an entry of the extender's table: after it a pod is the scheduler's, "
        "and a start that was not bound waits again.",
    )
    new_s: float = Field(
        default=10,
        gt=0,
        description="With `order`: the longest that a pod is held which no decision knows.",
    )
    replan_s: float = Field(
        default=60, gt=0, description="Time between decisions that order all jobs anew."
    )
    resource: str = Field(default="nvidia.com/gpu", description="Name of the GPUs as a resource.")
    gpu_label: str = Field(
        default="nvidia.com/gpu.product", description="Label of nodes with the type of their GPUs."
    )
    gpu_names: dict[str, str] = Field(
        default={},
        description="Type by value of gpu_label; default: the first known type among its words.",
    )
    gpu_types: dict[str, GpuKind] = Field(
        default={}, description="speed and price_per_hour of types that are not built in."
    )
    default_gpu: str = Field(default="", description="Type of GPUs of nodes without the label.")
    job_labels: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = Field(
        default=("loadmaster.dev/job", "batch.kubernetes.io/job-name", "job-name"),
        description="Pods with the same value of the first of these labels that they have are a "
        "job; others are one each.",
    )
    owner_label: str = Field(
        default="", description="Label with whose jobs resemble each other; default: the namespace."
    )
    scheduler: str = Field(
        default="default-scheduler", description="schedulerName of the pods that are steered."
    )
    tolerated: tuple[str, ...] = Field(
        default=("nvidia.com/gpu",),
        description="Keys of taints that do not keep jobs from a node; other ones do.",
    )
