"""The MPA object, `multidimpodautoscalers.loadmaster.dev`: its specification and its status."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import StepResult, Target
from loadmaster.platform.steering.kubernetes.client import Object
from loadmaster.platform.steering.kubernetes.quantities import (
    MIB,
    cpu_text,
    memory_text,
    parse_quantity,
    whole_replicas,
)
from loadmaster.serving.decisions.guard import GuardSettings

GROUP, VERSION = "loadmaster.dev", "v1alpha1"
API = f"{GROUP}/{VERSION}"
KIND, PLURAL = "MultidimPodAutoscaler", "multidimpodautoscalers"
PAUSED = f"{GROUP}/paused"  # annotation: "true"
WORKLOADS = {  # plurals by kind
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "ReplicaSet": "replicasets",
}

_METRIC_NAME, _LABEL_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"


class _Part(Settings):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class TargetRef(_Part):
    """The workload whose pods are scaled."""

    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment", "StatefulSet", "ReplicaSet"] = "Deployment"
    name: str = Field(min_length=1)


class Allowed(_Part):
    """A bound of the limits of a pod."""

    cpu: str | int | float
    memory: str | int | float


class MpaSpec(_Part):
    """Specification of an MPA object; docs/kubernetes.md describes the fields."""

    target_ref: TargetRef
    container: str | None = None
    slo_seconds: float
    min_replicas: int = 1
    max_replicas: int
    min_allowed: Allowed
    max_allowed: Allowed
    recommenders: tuple[str, ...] = ()
    update_mode: Literal["Off", "Initial", "Auto"] = "Auto"
    stabilisation_seconds: float = Field(default=300.0, ge=0)
    flaps_per_hour: int = Field(default=6, ge=0)
    latency_metric: str = "http_request_duration_seconds"
    labels: Mapping[str, str] = {}
    queries: Mapping[str, str] = {}

    @field_validator("slo_seconds")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(f"is {value:g}; expected a p99 above 0")
        return value

    @field_validator("latency_metric")
    @classmethod
    def _metric_name(cls, value: str) -> str:
        if not re.fullmatch(_METRIC_NAME, value):
            raise ValueError(f"is {value!r}; expected the name of a histogram")
        return value

    @field_validator("labels")
    @classmethod
    def _label_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name in value:
            if not re.fullmatch(_LABEL_NAME, name):
                raise ValueError(f"has {name!r}; expected names of labels")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> MpaSpec:
        for name, (low, high) in self.bounds().items():
            if not 0 < low <= high:
                raise ValueError(f"bounds of {name} are {low:g} to {high:g}; expected rising ones")
        return self

    def bounds(self) -> dict[str, tuple[float, float]]:
        low, high = self.min_allowed, self.max_allowed
        cpu = [1000 * parse_quantity(one.cpu, "cpu") for one in (low, high)]
        memory = [parse_quantity(one.memory, "memory") / MIB for one in (low, high)]
        return {
            "replicas": (float(self.min_replicas), float(self.max_replicas)),
            "cpu_m": (cpu[0], cpu[1]),
            "memory_mib": (memory[0], memory[1]),
        }

    def guard(self) -> GuardSettings:
        return GuardSettings(stabilisation_s=self.stabilisation_seconds, flaps=self.flaps_per_hour)


def parse_spec(data: Object, application: str) -> MpaSpec:
    """The specification in an object; the first fault is an InputError with the application."""
    try:
        return MpaSpec.model_validate(data.get("spec") or {})
    except ValidationError as fault:
        first = fault.errors()[0]
        field = ".".join(to_camel(str(part)) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{application}: {field} {message}".replace("  ", " ")) from None


def is_paused(data: Object) -> bool:
    notes = (data.get("metadata") or {}).get("annotations") or {}
    return str(notes.get(PAUSED, "")).lower() in ("true", "1", "yes")


def plan_record(plan: Mapping[str, float]) -> dict[str, Any]:
    """A plan in the fields of Kubernetes."""
    return {
        "replicas": whole_replicas(plan["replicas"]),
        "cpu": cpu_text(plan["cpu_m"]),
        "memory": memory_text(plan["memory_mib"]),
    }


class _Conditions:
    """Conditions that keep the time at which they last changed."""

    def __init__(self, before: Object, now: str) -> None:
        self._now = now
        self._generation = (before.get("metadata") or {}).get("generation")
        old = (before.get("status") or {}).get("conditions") or ()
        self._past = {one.get("type"): one for one in old if isinstance(one, Mapping)}

    def build(self, kind: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
        status, last = "True" if holds else "False", self._past.get(kind) or {}
        same = last.get("status") == status and last.get("lastTransitionTime")
        found = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:1024],
            "lastTransitionTime": last["lastTransitionTime"] if same else self._now,
        }
        if self._generation is not None:
            found["observedGeneration"] = self._generation
        return found


def time_text(now_s: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(
    target: Target, result: StepResult, before: Object, apply: bool, now_s: float
) -> dict[str, Any]:
    """The status of the object `before` after a step."""
    now, memory = time_text(now_s), target.memory
    conditions = _Conditions(before, now)
    cause = reason_word(result)
    has_plan = result.silent not in ("metrics", "recommender")
    acted, degraded = result.result in ("acted", "unchanged"), result.degraded
    status: dict[str, Any] = {
        "observedGeneration": (before.get("metadata") or {}).get("generation"),
        "mode": "Apply" if apply else "DryRun",
        "lastStepTime": now,
        "current": plan_record(target.plan),
        "reason": "; ".join([result.reason, *result.messages])[:4096],
        # Removed where it is empty: 1.20 built by Go 1.16 takes that for null, and refuses all.
        "source": result.source or None,
        "memory": memory.record(),
        "conditions": [
            conditions.build(
                "Recommended", has_plan, "Recommended" if has_plan else cause, result.reason
            ),
            conditions.build("Applied", acted, cause, result.line()),
            conditions.build("Degraded", degraded, cause if degraded else "Working", result.line()),
        ],
    }
    if result.wanted:
        status["recommendation"] = plan_record(result.wanted)
    if memory.safe_plan is not None:
        status["lastSafe"] = plan_record(memory.safe_plan)
    return status


def fault_status(fault: InputError, before: Object, now_s: float) -> dict[str, Any]:
    """The status of an object that cannot be steered as it is."""
    now = time_text(now_s)
    conditions = _Conditions(before, now)
    return {
        "lastStepTime": now,
        "reason": str(fault),
        "conditions": [
            conditions.build("Recommended", False, "Invalid", str(fault)),
            conditions.build("Degraded", True, "Invalid", str(fault)),
        ],
    }


def reason_word(result: StepResult) -> str:
    """The reason of conditions and events: one word in camel case."""
    if result.silent is not None:
        return f"{result.silent.capitalize()}Silent"
    return "".join(part.capitalize() for part in result.result.split("-"))
