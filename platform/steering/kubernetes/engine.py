"""The engine Kubernetes: MPA objects as applications, read, measured, carried out and published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import (
    Action,
    Measurement,
    Mode,
    Plan,
    SilentError,
    StepResult,
    Target,
    restore_memory,
)
from loadmaster.platform.steering.kubernetes.access import find_access
from loadmaster.platform.steering.kubernetes.checks import find_rival
from loadmaster.platform.steering.kubernetes.client import (
    CONFLICT,
    ApiError,
    KubernetesClient,
    Object,
    path_of,
)
from loadmaster.platform.steering.kubernetes.queries import (
    Application,
    MetricReader,
    check_queries,
)
from loadmaster.platform.steering.kubernetes.resource import (
    API,
    KIND,
    PAUSED,
    PLURAL,
    MpaSpec,
    fault_status,
    is_paused,
    parse_spec,
    reason_word,
    status_of,
    time_text,
)
from loadmaster.platform.steering.kubernetes.updater import Updater
from loadmaster.platform.steering.kubernetes.workload import Workload, read_workload
from loadmaster.platform.steering.prometheus import Prometheus
from loadmaster.platform.steering.registry import EngineSpec

ENDPOINT = "loadmaster.serving.systems.aware.system:ENDPOINT"  # whose state the documents are
STATUS_ATTEMPTS = 3
OOM_HOLD_REPORTS = 40  # ten minutes: memory is not lowered so soon after an OOM kill

_log = logging.getLogger("loadmaster.steer")


class MpaEngine:
    """One MPA object and its workload."""

    def __init__(
        self,
        client: KubernetesClient,
        reader: MetricReader,
        application: str,
        apply: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.application = application
        self._client, self._reader, self._apply, self._clock = client, reader, apply, clock
        namespace, _, self._name = application.partition("/")
        self._namespace = namespace
        self._path = path_of(API, namespace, PLURAL, self._name)
        self._data: Object = {}
        self._spec: MpaSpec | None = None
        self._workload: Workload | None = None

    def read(self) -> Target:
        try:
            return self._read()
        except InputError as fault:
            self._publish_fault(fault)
            raise

    def _read(self) -> Target:
        try:
            found = self._client.find(self._path)
            if found is None:
                raise InputError(
                    f"unknown application {self.application!r}; expected NAMESPACE/NAME of a {KIND}"
                )
            self._data = found
            self._spec = parse_spec(found, self.application)
            check_queries(self._spec, self.application)
            self._workload = read_workload(self._client, self._spec, self.application)
        except ApiError as fault:
            raise SilentError("engine", f"API server: {fault.status}: {fault}") from None
        held = ""
        if is_paused(found):
            held = f"paused by the annotation {PAUSED}"
        elif self._spec.update_mode == "Off":
            held = "updateMode is Off"
        return Target(
            self.application,
            self._workload.plan(),
            self._spec.bounds(),
            self._spec.guard(),
            held,
            restore_memory((found.get("status") or {}).get("memory")),
            "" if self._workload.replicas > 0 else "replicas is 0: the application is switched off",
            self._spec.recommenders,
        )

    def measure(self, target: Target) -> Measurement:
        spec, workload = self._known()
        application = Application(
            self.application, spec, workload.container, target.plan, target.memory.measured
        )
        document, notes = self._reader.read(application, self._clock())
        # Memory that was too little once is not lowered again at once: no loop of OOM kills.
        ooms = sum(one or 0.0 for one in document["reports"]["ooms"][-OOM_HOLD_REPORTS:])
        floors = {"memory_mib": target.plan["memory_mib"]} if ooms > 0 else {}
        if floors:
            notes.append(f"memory is not lowered: {ooms:g} OOM kills in ten minutes")
        ready = sum(pod.ready for pod in workload.pods) >= workload.replicas
        steps = document["steps"]
        requests, p99_s, restarts = (steps[name][-1] for name in ("requests", "p99_s", "restarts"))
        kept = requests == 0 if p99_s is None else p99_s <= spec.slo_seconds
        return Measurement(
            document, kept and ready and not restarts, outcome_of(document), floors, tuple(notes)
        )

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        return decision

    def check(self, target: Target) -> str:
        workload = self._known()[1]
        try:
            return find_rival(self._client, workload, self._name)
        except ApiError as fault:
            raise SilentError("engine", f"API server: {fault.status}: {fault}") from None

    def act(self, target: Target, plan: Plan) -> Action:
        spec, workload = self._known()
        return Updater(self._client, workload, spec.update_mode == "Initial").update(plan)

    def publish(self, target: Target, result: StepResult) -> None:
        """Write the status, and an event where the result is new or pods were changed."""
        if not self._data:
            return
        before = (self._data.get("status") or {}).get("conditions") or ()
        past = {one.get("type"): one.get("reason") for one in before}.get("Applied")
        for attempt in range(STATUS_ATTEMPTS):
            version = (self._data.get("metadata") or {}).get("resourceVersion")
            status = status_of(target, result, self._data, self._apply, self._clock())
            body = {"metadata": {"resourceVersion": version}, "status": status}
            try:
                self._client.patch(f"{self._path}/status", body)
                break
            except ApiError as fault:
                if fault.status != CONFLICT or attempt == STATUS_ATTEMPTS - 1:
                    raise SilentError("engine", f"status: {fault.status}: {fault}") from None
            fresh = self._client.find(self._path)
            if fresh is None:
                return  # deleted meanwhile
            self._data = fresh
        if result.result == "acted" or (result.degraded and reason_word(result) != past):
            self._send_event(result)

    def _publish_fault(self, fault: InputError) -> None:
        """Write wrong input into the status, where the author of the object looks."""
        if not self._data:
            return
        status = fault_status(fault, self._data, self._clock())
        try:
            self._client.patch(f"{self._path}/status", {"status": status})
        except (ApiError, SilentError) as second:
            _log.info("%s: no status: %s", self.application, second)

    def _send_event(self, result: StepResult) -> None:
        """Events are a convenience: one that is refused is only logged."""
        metadata = self._data.get("metadata") or {}
        now = time_text(self._clock())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._name}-", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": API,
                "kind": KIND,
                "name": self._name,
                "namespace": self._namespace,
                "uid": metadata.get("uid", ""),
            },
            "type": "Warning" if result.degraded else "Normal",
            "reason": reason_word(result),
            "message": result.line()[:1024],
            "source": {"component": "loadmaster-steer"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._client.create(path_of("v1", self._namespace, "events"), event)
        except (ApiError, SilentError) as fault:
            _log.warning("%s: no event: %s", self.application, fault)

    def _known(self) -> tuple[MpaSpec, Workload]:
        assert self._spec is not None
        assert self._workload is not None
        return self._spec, self._workload


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The outcome of the last control step, for feedback; None without a report of its use."""
    reports, steps = document["reports"], document["steps"]
    rows = [
        (used_cpu, cpu, used_memory, memory)
        for age, used_cpu, cpu, used_memory, memory in zip(
            reports["age_s"],
            *(
                reports[f"{kind}_{name}"]
                for name in ("cpu_m", "memory_mib")
                for kind in ("used", "limit")
            ),
            strict=True,
        )
        if age < 60 and None not in (used_cpu, cpu, used_memory, memory) and cpu and memory
    ]
    if not rows:
        return None
    restarts = steps["restarts"][-1]
    return {
        "p99_s": steps["p99_s"][-1],
        "slo_s": document["slo_s"],
        "cpu_use": min(sum(row[0] / row[1] for row in rows) / len(rows), 1.0),
        "memory_use": min(sum(row[2] / row[3] for row in rows) / len(rows), 1.0),
        # Extrapolated by Prometheus: one restart may be 1.3 of them, or 0.7.
        "restarts": max(round(restarts), 1) if restarts > 0 else 0,
    }


def application_names(
    client: KubernetesClient, names: Sequence[str], namespace: str | None
) -> Sequence[str]:
    """The named MPA objects; without names all in the namespace, or the cluster."""
    if names:
        return names
    try:
        listed = client.list(path_of(API, namespace, PLURAL))
    except ApiError as fault:
        raise SilentError("engine", f"API server: {fault.status}: {fault}") from None
    metadata = [one.get("metadata") or {} for one in listed]
    found = [f"{one['namespace']}/{one['name']}" for one in metadata]
    if not found:
        where = f"namespace {namespace!r}" if namespace else "the cluster"
        raise InputError(f"no {KIND} in {where}; expected at least one")
    return found


class KubernetesSettings(Settings):
    """How to reach a cluster and its metrics."""

    prometheus: str = Field(default="http://127.0.0.1:9090", description="It has the metrics.")
    namespace: str | None = Field(default=None, description="Steer all MPA objects of it.")
    kubeconfig: Path | None = Field(
        default=None, description="Default: the service account, $KUBECONFIG or ~/.kube/config."
    )
    context: str | None = Field(default=None, description="Of the kubeconfig.")
    window_s: float = Field(
        default=30, ge=1, description="Time that rates are over: at least two scrapes."
    )


@contextmanager
def open_cluster(
    settings: KubernetesSettings, names: Sequence[str]
) -> Iterator[tuple[KubernetesClient, MetricReader]]:
    """Connect to the cluster of the MPA objects, and to its metrics."""
    for name in names:
        if name.count("/") != 1 or not all(name.split("/")):
            raise InputError(f"application {name!r} is malformed; expected NAMESPACE/NAME")
    reader = MetricReader(Prometheus(settings.prometheus), settings.window_s)
    client = KubernetesClient(find_access(settings.kubeconfig, settings.context))
    with closing(client), closing(reader.prometheus):
        yield client, reader


@contextmanager
def connect(
    settings: KubernetesSettings, names: Sequence[str], mode: Mode
) -> Iterator[Callable[[], list[MpaEngine]]]:
    """Yield a function that lists the MPA objects to steer now."""
    with open_cluster(settings, names) as (client, reader):
        yield lambda: [
            MpaEngine(client, reader, name, mode == "act")
            for name in application_names(client, names, settings.namespace)
        ]


SPEC = EngineSpec(
    "kubernetes",
    ENDPOINT,
    "Replicas, CPU and memory of pods, by MPA objects.",
    KubernetesSettings,
    connect,
)
