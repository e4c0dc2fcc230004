"""Parts of a state: bounds and plan of an application, and its metrics over time.

All of it is known to an operator of a Kubernetes cluster: a horizontal and a vertical autoscaler
read the same. Columns have a value for each report or control step, the oldest first.
"""

from typing import Annotated

from pydantic import Field

from loadmaster.envs.pod_scaling.snapshot import REPORTS_MAX, STEPS_MAX
from loadmaster.serving.system import Record

REPLICAS_MAX = 10_000
AMOUNT_MAX = 1e12  # of any sum or count
SECONDS_MAX = 1e6

Name = Annotated[str, Field(min_length=1, max_length=500)]
Count = Annotated[int, Field(ge=1, le=REPLICAS_MAX)]
CpuM = Annotated[float, Field(ge=1, le=1e7)]
Mib = Annotated[float, Field(ge=1, le=1e9)]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Amount = Annotated[float, Field(ge=0, le=AMOUNT_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]

_Pair = Field(min_length=2, max_length=2)
Column = Annotated[tuple[Amount | None, ...], Field(max_length=REPORTS_MAX)]


class Bounds(Record):
    """The least and the most of what a decision sets."""

    replicas: Annotated[tuple[Count, ...], _Pair] = Field(examples=[[1, 20]])
    cpu_m: Annotated[tuple[CpuM, ...], _Pair] = Field(
        description="Limit of a pod, in thousandths of a core.", examples=[[128, 2048]]
    )
    memory_mib: Annotated[tuple[Mib, ...], _Pair] = Field(
        description="Limit of a pod.", examples=[[256, 3072]]
    )


class Plan(Record):
    """Replicas and limits as they are set now; outside of the bounds they are moved into them."""

    replicas: Count = Field(examples=[3])
    cpu_m: CpuM = Field(description="Limit of a pod, in thousandths of a core.", examples=[500])
    memory_mib: Mib = Field(description="Limit of a pod.", examples=[512])


class Reports(Record):
    """Metrics of intervals of 15 seconds; null: not reported. Intervals may be missing.

    A row with a null has no metrics. Its `pods` and `ready` are used if they are given: unlike
    metrics they are known at once.
    """

    age_s: tuple[Seconds, ...] = Field(
        min_length=1,
        max_length=REPORTS_MAX,
        description="Seconds from the end of the interval to now, falling; beyond an hour: unused.",
    )
    pods: Column = Field(description="At the end, also those that wait for a node.")
    ready: Column = Field(description="Of these, those that get requests.")
    used_cpu_m: Column = Field(description="Sum over pods, in thousandths of a core.")
    limit_cpu_m: Column = Field(description="Sum over pods on nodes.")
    used_memory_mib: Column = Field(description="Sum over pods.")
    limit_memory_mib: Column = Field(description="Sum over pods on nodes.")
    peak_memory_mib: Column = Field(description="Highest of any pod.")
    disk_mb_s: Column | None = Field(default=None, description="Sum over pods; default: 0.")
    network_mb_s: Column | None = Field(default=None, description="Sum over pods; default: 0.")
    requests: Column | None = Field(default=None, description="That arrived in the interval.")
    ooms: Column | None = Field(
        default=None, description="Containers killed for their memory in the interval; default: 0."
    )
    seen: Annotated[tuple[Share, ...], Field(max_length=REPORTS_MAX)] | None = Field(
        default=None,
        description="Share of the ready pods whose metrics arrived, where sums are scaled up to "
        "all of them; default: 1.",
    )


class Steps(Record):
    """Control steps of 60 seconds, between decisions; the last one ended now."""

    requests: Annotated[tuple[Amount, ...], Field(min_length=1, max_length=STEPS_MAX)] = Field(
        description="That arrived."
    )
    p99_s: Annotated[tuple[Seconds | None, ...], Field(max_length=STEPS_MAX)] = Field(
        description="99th percentile of the latency; null without requests."
    )
    restarts: Annotated[tuple[Amount, ...], Field(max_length=STEPS_MAX)] = Field(
        description="Of containers, for any reason."
    )
    ooms: Annotated[tuple[Amount, ...], Field(max_length=STEPS_MAX)] | None = Field(
        default=None,
        description="Containers killed for their memory; default: those of the newest reports.",
    )
