"""GPU pods as an engine of jobs: decisions of DAS's endpoint as entries of the extender's table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode, RefusedError, SilentError, StepResult
from loadmaster.platform.steering.gpu_jobs import ENDPOINT, JobHistory, with_cluster_name
from loadmaster.platform.steering.jobs import START, Command, Observation
from loadmaster.platform.steering.kubernetes.access import find_access
from loadmaster.platform.steering.kubernetes.client import (
    FORBIDDEN,
    NOT_FOUND,
    STRATEGIC,
    ApiError,
    KubernetesClient,
    path_of,
)
from loadmaster.platform.steering.kubernetes_gpu.extender import DecisionTable, extender_server
from loadmaster.platform.steering.kubernetes_gpu.records import (
    SUCCEEDED,
    GpuPod,
    parse_cluster,
    parse_pod,
)
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from loadmaster.platform.steering.kubernetes_gpu.state import ClusterState, cluster_state
from loadmaster.platform.steering.registry import EngineSpec

TRIES = 3  # starts of a pod that are not bound, after which it is left to the scheduler
TRIED = "loadmaster.dev/tried"  # annotation; a pod that changes is tried again by kube-scheduler


class GpuClusterEngine:
    """Pods and nodes with GPUs of one cluster.

    What it knows between steps may be lost: pods are then held back until the next decision, and
    no longer than their entries in `table` last.
    """

    def __init__(
        self,
        client: KubernetesClient,
        settings: GpuClusterSettings,
        table: DecisionTable,
        since_s: float | None = None,
    ) -> None:
        self.application = settings.cluster
        self._client, self._settings, self._table = client, settings, table
        self._since_s = time.time() if since_s is None else since_s
        self._state = ClusterState()
        self._pods: dict[str, GpuPod] = {}  # by uid
        self._history = JobHistory(settings.replan_s)
        self._started: set[str] = set()  # pods that were started, and not bound yet
        self._failures: dict[str, int] = {}  # starts that were not bound, by pod
        self._may_patch = True

    @property
    def _holds(self) -> bool:
        """Whether pods are held back: not where they could not be let go again."""
        return self._settings.order and self._may_patch

    def observe(self, now_s: float) -> Observation:
        own = self._settings
        try:
            pods = self._client.list(path_of("v1", None, "pods"))
            nodes = self._client.list(path_of("v1", None, "nodes"))
        except ApiError as fault:
            raise SilentError("engine", f"API server: {fault.status}: {fault}") from None
        cluster = parse_cluster(pods, nodes, own)
        if not cluster.nodes:
            raise InputError(f"{self.application} has no node with GPUs; expected {own.resource}")
        self._pods = {pod.uid: pod for pod in cluster.pods}
        placed = self._table.placed()
        self._note_failures(placed)
        dropped = {uid for uid, count in self._failures.items() if count >= TRIES}
        self._state = state = cluster_state(cluster, own, placed, dropped, now_s)
        bound = frozenset(pod.job for pod in cluster.pods if pod.node and not pod.ended)
        started = self._history.note_running(bound)
        outcomes, upkeep = self._outcomes(cluster.pods), self._upkeep()
        if state.document is None:
            return Observation(None, None, upkeep, outcomes, started, state.notes)
        document = self._history.complete(state.document, now_s)
        digest = (
            self._history.phase,
            tuple(state.running.items()),
            tuple((name, len(waiting)) for name, waiting in state.waiting.items()),
            tuple((one["name"], one["gpus"], one["cpus"]) for one in document["machines"]),
        )
        return Observation(document, digest, upkeep, outcomes, started, state.notes)

    def _note_failures(self, placed: Mapping[str, str]) -> None:
        """Count starts that have expired. Without `order` pods need not have been tried at all."""
        waiting = {uid for uid, pod in self._pods.items() if not pod.node and not pod.ended}
        for uid in self._started - placed.keys():
            if uid in waiting and self._settings.order:
                self._failures[uid] = self._failures.get(uid, 0) + 1
        self._started &= placed.keys()
        self._failures = {uid: n for uid, n in self._failures.items() if uid in waiting}

    def _upkeep(self) -> list[Command]:
        """Hold new pods where nothing waits or runs; let pods be tried that are no longer held."""
        if not self._settings.order:
            return []
        found = list[Command]()
        if not self._may_patch and self._pods:
            check = self._check_right
            found.append(
                Command("check", "*", "check the right to patch pods", check, routine=True)
            )
        if self._holds and self._state.document is None and self._table.is_due({}):
            found.append(self._wait_command({}))
        held = self._table.held()
        self._table.forget(
            uid for uid in held if uid not in self._pods or self._pods[uid].node != ""
        )
        for uid in self._table.passed_over():
            pod = self._pods.get(uid)
            if pod is not None:
                run = partial(self._try_again, [pod])
                found.append(Command("retry", uid, f"try {pod.name} again", run, routine=True))
        return found

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        """Waits first, since a limit of commands must not let them expire, then starts."""
        state = self._state
        self._history.note_decision(decision)
        # Pods cannot be stopped and started again: what needs a stop is placed in the next step.
        starts = {} if decision["stop"] else {one["job"]: one for one in decision["start"]}
        waits = {pod.uid: "waits" for pods in state.waiting.values() for pod in pods}
        waits |= {pod.uid: f"waits for {pod.size} pods" for pod in state.incomplete}
        found = list[Command]()
        if self._holds and self._table.is_due(waits):
            found.append(self._wait_command(waits))
        for name, start in starts.items():
            pods = state.waiting.get(name)
            places = [
                (state.nodes.get(str(one["machine"]), ""), int(one["instances"]))
                for one in start["placements"]
            ]
            nodes = [node for node, count in places for _ in range(count)]
            if pods is None or len(pods) != len(nodes) or not all(nodes):
                continue  # bound, gone or changed since the decision
            text = ", ".join(f"{node} x{count}" for node, count in places)
            run = partial(self._start, dict(zip(pods, nodes, strict=True)))
            found.append(Command(START, name, f"start {name} on {text}", run))
        return found

    def _wait_command(self, waits: Mapping[str, str]) -> Command:
        run = partial(self._table.renew, waits)
        return Command("wait", "*", f"{len(waits)} pods wait", run, routine=True)

    def _start(self, nodes: Mapping[GpuPod, str]) -> None:
        """Publish the nodes of all pods of a job, then let kube-scheduler try them."""
        uids = {pod.uid: node for pod, node in nodes.items()}
        self._table.start(uids)
        if self._settings.order:
            try:
                self._try_again(nodes)
            except (RefusedError, SilentError):
                self._table.withdraw(uids)
                raise
        self._started |= uids.keys()

    def _try_again(self, pods: Iterable[GpuPod]) -> None:
        """Change an annotation: kube-scheduler tries a pod that it could not place only after an
        event, or minutes later. Where that is forbidden, no pod is held back until it is allowed.
        """
        body = {"metadata": {"annotations": {TRIED: f"{time.time():.3f}"}}}
        for pod in pods:
            try:
                self._client.patch(path_of("v1", pod.namespace, "pods", pod.name), body, STRATEGIC)
                self._may_patch = True
            except ApiError as fault:
                if fault.status == FORBIDDEN:
                    self._may_patch = False
                    self._table.clear()
                if fault.status != NOT_FOUND:  # it is gone
                    raise RefusedError(f"{pod.name}: {fault.status}: {fault}") from None
            self._table.forget([pod.uid])

    def _check_right(self) -> None:
        """Patch a pod without effect, after which pods are held back again."""
        pod = next(iter(self._pods.values()))
        path = f"{path_of('v1', pod.namespace, 'pods', pod.name)}?dryRun=All"
        try:
            self._client.patch(path, {"metadata": {"annotations": {TRIED: "0"}}}, STRATEGIC)
        except ApiError as fault:
            raise RefusedError(f"{pod.name}: {fault.status}: {fault}") from None
        self._may_patch = True

    def release(self) -> None:
        """Leave all pods to kube-scheduler, and let it try those at once that were held back."""
        self._table.clear()
        held = self._table.held()  # also pods that came since the last step
        try:
            records = self._client.list(path_of("v1", None, "pods")) if held else []
            pods = [parse_pod(record, self._settings) for record in records]
            for pod in pods:
                if pod is not None and pod.uid in held and not pod.node:
                    with suppress(RefusedError):
                        self._try_again([pod])
        except (ApiError, SilentError):
            return  # kube-scheduler tries them by itself, later

    def _outcomes(self, pods: Sequence[GpuPod]) -> list[tuple[str, dict[str, Any]]]:
        """Jobs whose pods have all succeeded since the last step."""
        jobs: dict[str, list[GpuPod]] = defaultdict(list)
        for pod in pods:
            jobs[pod.job].append(pod)
        found = list[tuple[str, dict[str, Any]]]()
        for name, members in jobs.items():
            last = max(members, key=lambda one: one.ended_s)
            done = all(pod.phase == SUCCEEDED for pod in members)
            if done and last.ended_s >= self._since_s:
                completion_s = last.ended_s - min(pod.created_s for pod in members)
                run_s = last.ended_s - min(pod.started_s or pod.created_s for pod in members)
                key = name, last.uid
                found += self._history.note_end(key, name, last.owner, completion_s, run_s)
        return found

    def publish(self, observation: Observation, result: StepResult) -> None:
        """Keep the reason for the next answers, which are in the events of pods that wait."""
        self._table.reason = " ".join(f"{result.source}: {result.reason}".split())


@contextmanager
def connect(
    settings: GpuClusterSettings, names: Sequence[str], mode: Mode
) -> Iterator[Callable[[], list[GpuClusterEngine]]]:
    """Serve the extender, and yield a function that lists the cluster."""
    settings = with_cluster_name(settings, names, "the kubeconfig")
    client = KubernetesClient(
        find_access(settings.kubeconfig, settings.context), settings.timeout_s
    )

    def holds(record: Mapping[str, Any]) -> bool:
        pod = parse_pod(record, settings)
        return pod is not None and not pod.constrained

    table = DecisionTable(settings.ttl_s, settings.order, settings.new_s, holds)
    with closing(client), extender_server(table, settings.host, settings.port):
        engine = GpuClusterEngine(client, settings, table)
        try:
            yield lambda: [engine]
        finally:
            if mode == "act":
                engine.release()


SPEC = EngineSpec(
    "kubernetes-gpu",
    ENDPOINT,
    "Order and nodes of pods with GPUs, through kube-scheduler's extender.",
    GpuClusterSettings,
    connect,
    by_jobs=True,
    every_s=1.0,
)
