"""Carry out a plan: /scale, then pods/resize, or the template where the cluster has no resize.

Capacity is added before it is taken away: replicas fall only after pods that grow have grown. A
resize that is deferred or infeasible stays so; no pod is evicted, and the template is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmaster.platform.steering.core import Action, Result
from loadmaster.platform.steering.kubernetes.checks import budget_left, default_budget
from loadmaster.platform.steering.kubernetes.client import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    STRATEGIC,
    ApiError,
    KubernetesClient,
    path_of,
)
from loadmaster.platform.steering.kubernetes.quantities import (
    Size,
    resources_of,
    whole_replicas,
    whole_size,
)
from loadmaster.platform.steering.kubernetes.workload import (
    INFEASIBLE,
    Pod,
    Workload,
)

CONFLICT_ATTEMPTS = 3
TEMPLATE_CHANGE = 0.1  # a new template restarts every pod: smaller relative changes are left out
# The result of an update is the first of these that one of its parts had.
_RANKS: tuple[Result, ...] = ("refused", "pending", "held", "acted", "unchanged")


@dataclass
class _Notes:
    """What the parts of an update came to."""

    results: set[Result] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)

    def add(self, result: Result, message: str = "") -> None:
        self.results.add(result)
        if message:
            self.messages.append(message)

    def action(self) -> Action:
        results: list[Result] = [one for one in _RANKS if one in self.results]
        return Action(results[0] if results else "unchanged", tuple(self.messages))


class Updater:
    """Moves a workload to a plan, as far as the cluster allows in one step."""

    def __init__(self, client: KubernetesClient, workload: Workload, only_new_pods: bool) -> None:
        """`only_new_pods`: size pods that are not ready yet, and leave the others as they are."""
        self._client, self._workload, self._only_new_pods = client, workload, only_new_pods
        self._notes = _Notes()

    def update(self, plan: Mapping[str, float]) -> Action:
        """Change what differs from the plan."""
        notes, workload = self._notes, self._workload
        replicas = whole_replicas(plan["replicas"])
        size = whole_size(Size(plan["cpu_m"], plan["memory_mib"]))
        try:
            if replicas > workload.replicas:
                self._scale(replicas)
            if has_resize(self._client):
                self._resize_pods(size)
            elif self._only_new_pods:
                notes.add("held", "this cluster has no pods/resize: sizes are only recommended")
            else:
                self._change_template(size)
            if replicas < workload.replicas:
                self._scale_down(replicas, size)
        except ApiError as fault:
            if fault.status not in (FORBIDDEN, CONFLICT):
                notes.add("refused", f"{fault.status}: {fault}")
            else:
                word = "forbidden" if fault.status == FORBIDDEN else "conflict"
                notes.add("refused" if fault.status == FORBIDDEN else "pending", f"{word}: {fault}")
        return notes.action()

    def _scale(self, replicas: int) -> None:
        """Set the replicas, unless another writer has changed them since they were read."""
        workload, path = self._workload, self._workload.path("scale")
        version = (workload.data.get("metadata") or {}).get("resourceVersion")
        for _ in range(CONFLICT_ATTEMPTS):
            body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
            try:
                self._client.patch(path, body)
            except ApiError as fault:
                if fault.status != CONFLICT:
                    raise
                scale = self._client.get(path)
                given = int((scale.get("spec") or {}).get("replicas", 0))
                if given == replicas:
                    break  # an attempt whose answer was lost
                if given != workload.replicas:
                    self._notes.add(
                        "refused", f"conflict: another writer has set the replicas to {given}"
                    )
                    return
                version = (scale.get("metadata") or {}).get("resourceVersion")
            else:
                break
        else:
            text = f"conflict: replicas not set in {CONFLICT_ATTEMPTS} attempts"
            self._notes.add("pending", text)
            return
        self._notes.add("acted")

    def _scale_down(self, replicas: int, size: Size) -> None:
        """Remove pods within the disruption budget, once those that shall grow have grown."""
        workload, notes = self._workload, self._notes
        if not self._only_new_pods and any(_is_smaller(pod.actual, size) for pod in workload.pods):
            notes.add("pending", f"replicas stay at {workload.replicas} until the pods have grown")
            return
        removed = workload.replicas - replicas
        left = budget_left(self._client, workload)
        # Pods that are not ready are removed first, and no budget counts them.
        unready = max(workload.replicas - sum(pod.ready for pod in workload.pods), 0)
        if left is not None and removed > unready + left:
            allowed = unready + left
            notes.add("held", f"disruption budget: {allowed} of {removed} pods may be removed")
            removed = allowed
        if removed > 0:
            self._scale(workload.replicas - removed)

    def _restarts_left(self) -> int:
        left = budget_left(self._client, self._workload)
        return default_budget(self._workload) if left is None else left

    def _resize_pods(self, size: Size) -> None:
        notes, held = self._notes, 0
        left: int | None = None
        for pod in self._workload.pods:
            if pod.size == size:
                self._note_pending(pod)
                continue
            if self._only_new_pods and pod.ready:
                continue
            if pod.ready and restarts(pod, size):
                left = self._restarts_left() if left is None else left
                if left <= 0:
                    held += 1
                    continue
                left -= 1
            self._resize(pod, size)
        if held:
            notes.add("held", f"disruption budget: {held} pods wait for their restart")

    def _note_pending(self, pod: Pod) -> None:
        if pod.pending == INFEASIBLE:
            text = f"infeasible: {pod.name} keeps its size; {pod.message}".rstrip("; ")
            self._notes.add("refused", text)
        elif pod.pending:
            text = f"{pod.pending.lower()}: {pod.name}; {pod.message}".rstrip("; ")
            self._notes.add("pending", text)

    def _resize(self, pod: Pod, size: Size) -> None:
        workload = self._workload
        resources = resources_of(size, pod.resources, f"pod {pod.name}")
        body = {"spec": {"containers": [{"name": workload.container, "resources": resources}]}}
        path = path_of("v1", workload.namespace, "pods", pod.name, "resize")
        try:
            self._client.patch(path, body, STRATEGIC)
        except ApiError as fault:
            if fault.status == NOT_FOUND:  # the pod is gone
                return
            if fault.status == FORBIDDEN:
                raise
            if fault.status == CONFLICT:
                self._notes.add("pending", f"conflict: {pod.name} is resized in the next step")
            else:  # 422: this cluster does not resize so, such as less memory before 1.34
                self._notes.add("refused", f"{pod.name} keeps its size: {fault}")
            return
        self._notes.add("acted")

    def _change_template(self, size: Size) -> None:
        """Roll out the size, if the last roll-out has ended and the budget has a place."""
        workload, notes, old = self._workload, self._notes, self._workload.template
        change = max(abs(new / past - 1.0) for new, past in zip(size, old, strict=True))
        if change == 0:
            return
        if change < TEMPLATE_CHANGE:
            text = f"template: a change of {change:.0%} is not worth restarting all pods"
            notes.add("held", text)
            return
        if workload.is_rolling_out():
            notes.add("pending", "template: the last roll-out has not ended")
            return
        if self._restarts_left() <= 0:
            notes.add("held", "disruption budget: no pod may be restarted for a new template")
            return
        where = f"{workload.namespace}/{workload.name}"
        container = {
            "name": workload.container,
            "resources": resources_of(size, workload.resources, where),
        }
        body = {"spec": {"template": {"spec": {"containers": [container]}}}}
        self._client.patch(workload.path(), body, STRATEGIC)
        notes.add("acted", "template: changed, as this cluster has no pods/resize")


def has_resize(client: KubernetesClient) -> bool:
    """Whether the cluster has pods/resize (1.33 and later)."""
    found = client.get("/api/v1").get("resources") or ()
    return any(one.get("name") == "pods/resize" for one in found)


def restarts(pod: Pod, size: Size) -> bool:
    """Whether a resize restarts the container, by its resize policy."""
    changed = {
        name
        for name, new, old in (
            ("cpu", size.cpu_m, pod.size.cpu_m),
            ("memory", size.memory_mib, pod.size.memory_mib),
        )
        if new != old
    }
    return bool(changed & pod.restarts)


def _is_smaller(actual: Size, size: Size) -> bool:
    return actual.cpu_m < size.cpu_m or actual.memory_mib < size.memory_mib
