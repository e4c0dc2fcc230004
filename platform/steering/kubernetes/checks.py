"""Checks before a change: other autoscalers of the same target, and disruption budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.platform.steering.kubernetes.client import (
    FORBIDDEN,
    ApiError,
    KubernetesClient,
    Object,
    path_of,
)
from loadmaster.platform.steering.kubernetes.resource import API, KIND, PLURAL
from loadmaster.platform.steering.kubernetes.workload import Pod, Workload

MAX_UNAVAILABLE = 0.25  # share of the pods that may be down at once, where no budget covers them


def find_rival(client: KubernetesClient, workload: Workload, own_name: str) -> str:
    """Describe another autoscaler that moves the target; empty if there is none.

    A list that may not be read counts as one: two autoscalers on one target would fight.
    """
    namespace = workload.namespace
    kinds = (
        ("HorizontalPodAutoscaler", "autoscaling/v1", "horizontalpodautoscalers", "scaleTargetRef"),
        ("VerticalPodAutoscaler", "autoscaling.k8s.io/v1", "verticalpodautoscalers", "targetRef"),
        (KIND, API, PLURAL, "targetRef"),
    )
    for kind, api, plural, field in kinds:
        try:
            found = client.list(path_of(api, namespace, plural))
        except ApiError as fault:
            if fault.status != FORBIDDEN:
                raise
            return f"{kind} objects may not be listed: {fault}"
        for one in found:
            name = (one.get("metadata") or {}).get("name")
            if kind == KIND and name == own_name:
                continue
            if _targets(one, field, workload) and _acts(kind, one):
                shown = f"{workload.kind} {workload.name!r}"
                return f"{kind} {name!r} already moves {shown}; expected one autoscaler a target"
    return ""


def _targets(data: Object, field: str, workload: Workload) -> bool:
    reference = (data.get("spec") or {}).get(field) or {}
    return (reference.get("kind"), reference.get("name")) == (workload.kind, workload.name)


def _acts(kind: str, data: Object) -> bool:
    spec = data.get("spec") or {}
    if kind == "VerticalPodAutoscaler":
        spec = spec.get("updatePolicy") or {}
    mode: str = spec.get("updateMode", "Auto")
    return mode != "Off"


def budget_left(client: KubernetesClient, workload: Workload) -> int | None:
    """Pods that disruption budgets allow to go down now; None if no budget covers the pods."""
    budgets = client.list(path_of("policy/v1", workload.namespace, "poddisruptionbudgets"))
    if not budgets:  # before 1.21
        budgets = client.list(path_of("policy/v1beta1", workload.namespace, "poddisruptionbudgets"))
    allowed = [
        int((one.get("status") or {}).get("disruptionsAllowed", 0))
        for one in budgets
        if _covers(one, workload.pods)
    ]
    return max(min(allowed), 0) if allowed else None


def default_budget(workload: Workload) -> int:
    """Pods that may restart where no budget covers them."""
    pods = workload.pods
    most = max(math.ceil(MAX_UNAVAILABLE * len(pods) - 1e-9), 1)
    return max(most - sum(not pod.ready for pod in pods), 0)


def _covers(budget: Object, pods: Sequence[Pod]) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    return selector is not None and any(matches(selector, pod.labels) for pod in pods)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether labels match a selector; an empty one matches all."""
    for label, value in (selector.get("matchLabels") or {}).items():
        if labels.get(label) != value:
            return False
    for one in selector.get("matchExpressions") or ():
        given, values = labels.get(one["key"]), one.get("values") or ()
        holds = {
            "In": given is not None and given in values,
            "NotIn": given is None or given not in values,
            "Exists": given is not None,
            "DoesNotExist": given is None,
        }
        if not holds.get(one["operator"], False):
            return False
    return True
