"""MPA objects whose replicas KEDA sets: read and measured as by `kubernetes`, served to KEDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pydantic import Field

from loadmaster.platform.steering.core import Action, Mode, Plan, SilentError, Target
from loadmaster.platform.steering.keda.scaler import ReplicaTable, scaler_server
from loadmaster.platform.steering.kubernetes.client import (
    FORBIDDEN,
    ApiError,
    KubernetesClient,
    Object,
    path_of,
)
from loadmaster.platform.steering.kubernetes.engine import (
    ENDPOINT,
    KubernetesSettings,
    MpaEngine,
    application_names,
    open_cluster,
)
from loadmaster.platform.steering.kubernetes.quantities import (
    cpu_text,
    memory_text,
    whole_replicas,
)
from loadmaster.platform.steering.kubernetes.queries import MetricReader
from loadmaster.platform.steering.kubernetes.resource import Allowed
from loadmaster.platform.steering.registry import EngineSpec

AUTOSCALERS = "horizontalpodautoscalers"
SCALED_OBJECT = "scaledobject.keda.sh/name"  # label of KEDA's autoscalers


class KedaSettings(KubernetesSettings):
    """How to reach a cluster and its metrics, and where KEDA requests."""

    host: str = Field(default="127.0.0.1", description="Address on which the scaler listens.")
    port: int = Field(default=9131, ge=0, le=65_535, description="0: a free one, for tests.")
    ttl_s: float = Field(
        default=180,
        gt=0,
        description="Life of published replicas: after it KEDA gets an error, and falls back.",
    )


class KedaEngine(MpaEngine):
    """One MPA object and its workload; replicas are published, and sizes are as they are."""

    def __init__(
        self,
        client: KubernetesClient,
        reader: MetricReader,
        application: str,
        apply: bool,
        table: ReplicaTable,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(client, reader, application, apply, clock)
        self._table = table

    def _read(self) -> Target:
        """Bounds of CPU and memory are the present values: a plan of other sizes needs other
        replicas than one of these."""
        target = super()._read()
        spec, workload = self._known()
        size = workload.size
        fixed = Allowed(cpu=cpu_text(size.cpu_m), memory=memory_text(size.memory_mib))
        self._spec = spec.model_copy(update={"min_allowed": fixed, "max_allowed": fixed})
        return replace(target, bounds=self._spec.bounds())

    def check(self, target: Target) -> str:
        """KEDA's autoscaler has to be on the workload, and no other one."""
        workload = self._known()[1]
        try:
            found = self._client.list(path_of("autoscaling/v1", workload.namespace, AUTOSCALERS))
        except ApiError as fault:
            if fault.status == FORBIDDEN:
                return f"{AUTOSCALERS} may not be listed: {fault}"
            raise SilentError("engine", f"API server: {fault.status}: {fault}") from None
        shown = f"{workload.kind} {workload.name!r}"
        on_target = [one for one in found if _target(one) == (workload.kind, workload.name)]
        for one in on_target:
            metadata = one.get("metadata") or {}
            if SCALED_OBJECT not in (metadata.get("labels") or {}):
                return f"{metadata.get('name')!r} already scales {shown}; expected KEDA's alone"
        return "" if on_target else f"no ScaledObject of KEDA scales {shown}"

    def act(self, target: Target, plan: Plan) -> Action:
        """Publish the replicas, again in every step; KEDA sets them within its polling interval."""
        replicas = whole_replicas(plan["replicas"])
        before = self._table.replicas(self.application)
        self._table.publish(self.application, replicas)
        if replicas == whole_replicas(target.plan["replicas"]):
            return Action("unchanged")
        if replicas == before:
            return Action("pending", (f"KEDA has not set {replicas} replicas yet",))
        return Action("acted")


def _target(autoscaler: Object) -> tuple[str, str]:
    reference = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    return str(reference.get("kind")), str(reference.get("name"))


@contextmanager
def connect(
    settings: KedaSettings, names: Sequence[str], mode: Mode
) -> Iterator[Callable[[], list[KedaEngine]]]:
    """Serve the scaler, and yield a function that lists the MPA objects to steer now."""
    table = ReplicaTable(settings.ttl_s)
    with (
        open_cluster(settings, names) as (client, reader),
        scaler_server(table, settings.host, settings.port),
    ):
        yield lambda: [
            KedaEngine(client, reader, name, mode == "act", table)
            for name in application_names(client, names, settings.namespace)
        ]


SPEC = EngineSpec(
    "keda",
    ENDPOINT,
    "Replicas of MPA objects, through KEDA's external scaler.",
    KedaSettings,
    connect,
)
