"""Messages of AWARE's endpoint: the state of an application, a decision, the outcome of a step."""

from __future__ import annotations

from functools import cached_property

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from loadmaster.envs.pod_scaling.settings import Discipline, Routing
from loadmaster.envs.pod_scaling.state import CPU, MEMORY, REPLICAS, Floats
from loadmaster.serving.system import Record, State
from loadmaster.serving.systems.aware.records import (
    Bounds,
    Count,
    CpuM,
    Mib,
    Name,
    Plan,
    Reports,
    Seconds,
    Steps,
)
from loadmaster.serving.systems.aware.snapshot import CORE_M, ParsedApplication, parse_application

EXAMPLE: JsonDict = {
    "application": "shop/cart",
    "slo_s": 0.3,
    "bounds": {"replicas": [1, 20], "cpu_m": [128, 2048], "memory_mib": [256, 3072]},
    "plan": {"replicas": 3, "cpu_m": 500, "memory_mib": 512},
    "reports": {
        "age_s": [63, 48, 33, 18, 3],
        "pods": [3, 3, 3, 3, 3],
        "ready": [3, 3, 3, 3, 3],
        "used_cpu_m": [1190, 1245, None, 1290, 1310],
        "limit_cpu_m": [1500, 1500, None, 1500, 1500],
        "used_memory_mib": [905, 912, None, 930, 934],
        "limit_memory_mib": [1536, 1536, None, 1536, 1536],
        "peak_memory_mib": [331, 340, None, 352, 349],
        "disk_mb_s": [0.4, 0.4, None, 0.5, 0.5],
        "network_mb_s": [2.1, 2.2, None, 2.4, 2.4],
        "requests": [620, 648, None, 671, 680],
        "ooms": [0, 0, None, 0, 0],
    },
    "steps": {"requests": [2480, 2660], "p99_s": [0.21, 0.34], "restarts": [0, 0]},
}
_CLOSE = 1e-9  # relative difference of two limits that count as the same


class AwareState(State):
    """An application with the metrics of its pods over the last hour, once a control step."""

    as_structs = True
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    application: Name = Field(
        description="Its name. Names the tenant of a request that names none.",
        examples=["shop/cart"],
    )
    slo_s: float = Field(gt=0, le=1e6, description="Of the 99th percentile of the latency.")
    bounds: Bounds
    plan: Plan
    reports: Reports = Field(description="Metrics of the last hour; the more, the better.")
    steps: Steps
    routing: Routing = Field(
        default="random",
        description="Where a request goes: to any pod, or to the less busy of two random ones, "
        "as by the routers of Ray Serve and Envoy.",
    )
    discipline: Discipline = Field(
        default="ps",
        description="Of the requests in a pod: processor sharing, as by threads, or first come, "
        "first served.",
    )

    @cached_property
    def parsed(self) -> ParsedApplication:
        """The state in the simulator's tables, read-only.

        `model_copy` keeps it: change fields by validating a new state.
        """
        return parse_application(self)

    def check(self) -> None:
        parsed = self.parsed  # raises the first fault
        assert len(parsed.snapshot.requests) == len(self.steps.requests)


class AwareDecision(Record):
    """Replicas and limits of the application's pods, also those that do not change."""

    act: bool = Field(description="Whether anything changes; if not, there is nothing to do.")
    replicas: Count
    cpu_m: CpuM = Field(description="Limit of a pod, in thousandths of a core.")
    memory_mib: Mib = Field(description="Limit of a pod.")


class AwareOutcome(Record):
    """The control step after a decision."""

    application: Name | None = Field(
        default=None, description="Names the tenant of feedback that names none."
    )
    p99_s: Seconds | None = Field(
        default=None, description="99th percentile of the latency; null without requests."
    )
    slo_s: float = Field(gt=0, le=1e6, description="Of the 99th percentile.")
    cpu_use: float = Field(ge=0, le=1, description="Share of the pods' limits, mean of the step.")
    memory_use: float = Field(ge=0, le=1, description="Share of the pods' limits, mean.")
    restarts: int = Field(default=0, ge=0, le=10**9, description="Of containers.")


def to_decision(state: AwareState, plan: Floats) -> AwareDecision:
    """The decision that sets a plan: cores, MiB and replicas.

    Limits that change are rounded to thousandths of a core and MiB.
    """
    now, bounds = state.plan, state.bounds
    cpu_m = _whole(float(plan[CPU]) * CORE_M, now.cpu_m, bounds.cpu_m)
    mib = _whole(float(plan[MEMORY]), now.memory_mib, bounds.memory_mib)
    return set_values(state, round(float(plan[REPLICAS])), cpu_m, mib)


def set_values(state: AwareState, replicas: int, cpu_m: float, memory_mib: float) -> AwareDecision:
    """The decision that sets exactly these values."""
    now = state.plan
    act = (replicas, cpu_m, memory_mib) != (now.replicas, now.cpu_m, now.memory_mib)
    return AwareDecision(act=act, replicas=replicas, cpu_m=cpu_m, memory_mib=memory_mib)


def _whole(value: float, now: float, bounds: tuple[float, ...]) -> float:
    """Round a value that is not that of now, within the bounds; one beyond them stays as it is."""
    if abs(value - now) <= _CLOSE * now:
        return now
    least, most = min(bounds[0], now), max(bounds[1], now)
    if not (1 - _CLOSE) * least <= value <= (1 + _CLOSE) * most:
        return value  # no decision of this state: it is refused as such
    return min(max(float(round(value)), least), most)
