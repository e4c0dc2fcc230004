"""A thread that samples a deployment and requests decisions, so that Serve's controller never does.

The controller's calls only exchange two attributes with it: the newest view of the deployment, and
the newest answer of the service.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loadmaster.platform.steering.ray_serve.exported_metrics import SHARED, NodeMetrics, Readings
from loadmaster.platform.steering.ray_serve.history import History, View
from loadmaster.platform.steering.ray_serve.settings import REPORTS_PER_STEP, PolicySettings
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Mode
from loadmaster.serving.client.responses import Decision

SYSTEM = "aware"
UNSEEN_S = 10.0  # a deployment that the controller has not asked about for so long is gone

_log = logging.getLogger("ray.serve")  # the controller's log file


class Service(Protocol):
    """The part of `serving.client.Client` that is used."""

    def decide(
        self, system: str, state: Any, mode: Mode = "active", **options: Any
    ) -> Decision: ...

    def feedback(self, system: str, outcome: Any, id: str | None = ..., **options: Any) -> Any: ...


@dataclass(frozen=True)
class Answer:
    """A decision of the service."""

    at_s: float
    replicas: int
    reason: str
    source: str
    id: str | None


class Decider:
    """Samples every report interval, and requests a decision after every control step."""

    def __init__(
        self,
        name: str,
        settings: PolicySettings,
        service: Service | None = None,
        metrics: NodeMetrics = SHARED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.settings = name, settings
        self.history = History(name, settings)
        self.view: View | None = None  # set by the controller
        self.answer: Answer | None = None
        self.stop = threading.Event()
        self._metrics, self._clock = metrics, clock
        self._service = service or _client(settings)
        self._samples = 0
        self._decided: Answer | None = None  # whose outcome is due
        self._faults: dict[str, str] = {}  # the last one by part, logged once

    def run(self) -> None:
        """Sample until `stop` is set."""
        due_s = self._clock()
        while not self.stop.wait(max(due_s - self._clock(), 0.0)):
            due_s = max(due_s + self.settings.interval_s, self._clock())
            try:
                self.sample()
            except Exception:  # whatever happens, the controller goes on by the rule
                _log.exception("%s: loadmaster: a sample failed", self.name)

    def sample(self) -> None:
        """Add a reading to the history; request a decision if a control step is complete."""
        view = self.view
        if view is None or self._clock() - view.at_s > UNSEEN_S:
            return
        self.history.add(view, self._readings())
        self._samples += 1
        if self._samples > REPORTS_PER_STEP and self._samples % REPORTS_PER_STEP == 1:
            self.decide()

    def decide(self) -> None:
        """Report the outcome of the last decision, then request the next one."""
        document = self.history.document(self._clock())
        if document is None:
            self._note("state", "no metrics of requests")
            return
        self._note("state")
        self._report_outcome()
        options: dict[str, Any] = {}
        if self.settings.tenant is not None:
            options["tenant"] = self.settings.tenant
        mode: Mode = "active" if self.settings.mode == "act" else "shadow"
        try:
            decided = self._service.decide(SYSTEM, document, mode, **options)
            answer = _answer(decided, mode, self._clock())
        except (ServiceError, KeyError, TypeError, ValueError) as fault:
            self._note("service", f"{type(fault).__name__}: {fault}")
            return
        self._note("service")
        self.answer = self._decided = answer

    def _report_outcome(self) -> None:
        """Feedback on the control step that has ended, if its decision was carried out."""
        decided, self._decided = self._decided, None
        outcome, view = self.history.outcome(), self.history.last
        if decided is None or outcome is None or view is None:
            return
        acts = self.settings.mode == "act"
        if self.settings.mode == "watch" or (acts and view.target != decided.replicas):
            return
        options: dict[str, Any] = {"tenant": self.settings.tenant} if self.settings.tenant else {}
        try:
            given = {"application": self.name, **outcome}
            self._service.feedback(SYSTEM, given, decided.id if acts else None, **options)
        except ServiceError as fault:  # costs the service a reward
            self._note("feedback", str(fault))
        else:
            self._note("feedback")

    def _readings(self) -> Readings | None:
        if self.settings.load_metric is not None:
            return None  # Serve's counters are of its router, which requests pass by
        try:
            addresses = self.settings.metrics
            found = self._metrics.read(
                node_addresses() if addresses is None else addresses, *self.name.split("/", 1)
            )
        except Exception as fault:  # of Ray's API, or of the nodes
            self._note("metrics", f"{type(fault).__name__}: {fault}")
            return None
        self._note("metrics")
        return found

    def _note(self, part: str, fault: str = "") -> None:
        """Log a fault when it begins and ends."""
        if fault and part not in self._faults:
            _log.warning("%s: loadmaster: %s silent: %s", self.name, part, fault)
            self._faults[part] = fault
        elif not fault and self._faults.pop(part, ""):
            _log.warning("%s: loadmaster: %s is back", self.name, part)


def _answer(decided: Decision, mode: Mode, now_s: float) -> Answer:
    """The decision; in mode shadow the policy's, which is beside that of the service's rule."""
    other = decided.shadow if mode == "shadow" else None
    cause = f" ({decided.cause})" if decided.cause else ""
    decision, source = decided.decision, f"{decided.source} {decided.policy.name}{cause}"
    reason = decided.reason.summary
    if other is not None and other.decision is not None:
        decision, reason = other.decision, "decided in shadow mode"  # the other is the rule's
        source = "policy" if other.policy is None else f"policy {other.policy.name}"
    replicas = float(decision["replicas"])
    if not math.isfinite(replicas) or replicas < 0:
        raise ValueError(f"{replicas} replicas; expected a number from 0")
    return Answer(now_s, round(replicas), reason, source, decided.id)


def _client(settings: PolicySettings) -> Client:
    token = None
    if settings.token_file is not None:
        token = Path(settings.token_file).read_text().strip()
    return Client(settings.url, token, settings.deadline_s, retries=1)


def node_addresses() -> Sequence[str]:
    """Where the nodes of this process' cluster export metrics."""
    import ray

    return sorted(
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in ray.nodes()
        if node["Alive"]
    )
