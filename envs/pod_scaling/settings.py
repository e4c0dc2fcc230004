"""Settings of a pod scaling episode: application, load, cluster, bounds and objective."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from loadmaster.envs.settings import Settings, one_or_more

INTERVAL_S = 15  # of the simulation
STEP_INTERVALS = 4  # of a control step
STEP_S = STEP_INTERVALS * INTERVAL_S
WARM_UP_STEPS = 5  # before the first decision
Routing = Literal["random", "two-choices"]
Discipline = Literal["ps", "fcfs"]  # processor sharing, or first come first served
RATES = {"high": 10.0, "low": 0.5}  # mean requests a second of generated loads


class Shift(Settings):
    """A change at a control step, as `KIND:VALUE@STEP` or a mapping.

    `payload:1.5@50` multiplies the size of requests; `load:low@50`, `load:high@50` and `load:2@50`
    change the load to that level or by that factor; `application:NAME@50` has another application.
    """

    kind: Literal["payload", "load", "application"]
    value: str
    step: int = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        change, _, step = value.rpartition("@")
        kind, _, amount = change.partition(":")
        if not (kind and amount and step):
            raise ValueError(f"{value!r} is malformed; expected KIND:VALUE@STEP")
        return {"kind": kind, "value": amount, "step": step}

    @field_validator("value", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, (int, float)) else value

    @model_validator(mode="after")
    def _number(self) -> Shift:
        if self.kind == "payload" or (self.kind == "load" and self.value not in RATES):
            expected = "a factor above 0" + ("" if self.kind == "payload" else ", high or low")
            try:
                valid = 0 < float(self.value) < 1e6
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"{self.kind} is {self.value!r}; expected {expected}")
        return self


class PodScalingSettings(Settings):
    """Application, load, cluster, bounds and objective of an episode."""

    application: str = "train"  # train, test, test:7, published, SEGMENT+SEGMENT, a YAML file
    payload: PositiveFloat = 1.0  # factor of a request's size
    workload: str = "diurnal-like"
    data: Path | None = None  # trace file or folder; None: LOADMASTER_DATA
    load: Literal["high", "low"] = "high"  # level of generated loads
    load_scale: PositiveFloat = 1.0  # factor of any load
    shift: Annotated[tuple[Shift, ...], BeforeValidator(one_or_more)] = ()
    steps: PositiveInt = 100  # control steps of 60 s

    actions: Literal["continuous", "discrete"] = "continuous"
    min_replicas: PositiveInt = 1
    max_replicas: int = Field(default=20, ge=1, le=1000)
    min_cpu_m: PositiveFloat = 128.0  # limit of a pod, in thousandths of a core
    max_cpu_m: PositiveFloat = 2048.0
    min_memory_mib: PositiveFloat = 256.0
    max_memory_mib: PositiveFloat = 3072.0
    request_share: float = Field(default=1.0, gt=0, le=1)  # of the limits, for scheduling
    initial_replicas: PositiveInt | None = None  # None: by the application and the mean load
    initial_cpu_m: PositiveFloat | None = None
    initial_memory_mib: PositiveFloat | None = None

    discipline: Discipline = "ps"
    routing: Routing = "random"  # to a random pod, or to the less busy of two random ones
    throttling: bool = True  # CFS quotas in a pod below one core
    timeout_s: PositiveFloat = 30.0
    concurrency: PositiveFloat = 20.0  # workers of a pod; other requests wait and hold no memory

    resize: Literal["in-place", "evict"] = "in-place"
    resize_tolerance: float = Field(default=0.05, ge=0, lt=1)  # a smaller change is left out
    max_unavailable: float = Field(default=0.25, gt=0, le=1)  # disruption budget
    start_sigma: NonNegativeFloat = 0.4  # of the lognormal start of a container
    readiness_s: NonNegativeFloat = 5.0  # from the start to the first request
    backoff_s: PositiveFloat = 10.0  # after the first OOM; doubles, up to five minutes
    node_cpu_m: PositiveFloat = 8000.0
    node_memory_mib: PositiveFloat = 24_576.0
    nodes: PositiveInt = 2  # at the beginning, and at least
    max_nodes: int = Field(default=10, ge=1, le=1000)
    node_start_s: NonNegativeFloat = 150.0  # median until a new node takes pods
    missing_metrics: float = Field(default=0.02, ge=0, le=1)  # share of the scrapes

    slo_weight: float = Field(default=0.5, ge=0.5, le=1)
    use_weight: float = Field(default=0.5, ge=0, le=1)
    calibration: Path | None = None  # tuned rules' parameters; None: those shipped

    @model_validator(mode="after")
    def _combinations(self) -> PodScalingSettings:
        bounds = {
            "replicas": (self.min_replicas, self.max_replicas, self.initial_replicas),
            "cpu_m": (self.min_cpu_m, self.max_cpu_m, self.initial_cpu_m),
            "memory_mib": (self.min_memory_mib, self.max_memory_mib, self.initial_memory_mib),
        }
        for name, (least, most, initial) in bounds.items():
            if least > most:
                raise ValueError(f"min_{name} is {least:g}, more than max_{name} {most:g}")
            if initial is not None and not least <= initial <= most:
                raise ValueError(
                    f"initial_{name} is {initial:g}; expected {least:g} to {most:g}, its bounds"
                )
        if self.nodes > self.max_nodes:
            raise ValueError(f"nodes is {self.nodes}, more than max_nodes {self.max_nodes}")
        for name, least in (("cpu_m", self.min_cpu_m), ("memory_mib", self.min_memory_mib)):
            if self.request_share * least > getattr(self, f"node_{name}"):
                raise ValueError(f"node_{name} is below min_{name}: no pod fits on a node")
        for shift in self.shift:
            if shift.step >= self.steps:
                raise ValueError(
                    f"the shift of the {shift.kind} at step {shift.step} is after the episode's "
                    f"end; expected less than {self.steps}"
                )
        return self
