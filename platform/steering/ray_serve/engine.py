"""The engine ray-serve: an external scaler of deployments by the REST API of Ray's dashboard.

A thread samples all deployments every report interval, since a state has the history of an hour.
Serve keeps the last number of replicas for ever: unlike the policy class, nothing else scales a
deployment whose scaler has ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, model_validator

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import build_settings
from loadmaster.platform.steering.core import (
    Action,
    Measurement,
    Memory,
    Mode,
    Plan,
    RefusedError,
    SilentError,
    StepResult,
    Target,
)
from loadmaster.platform.steering.ray_serve.dashboard import Dashboard
from loadmaster.platform.steering.ray_serve.exported_metrics import NodeMetrics, Readings
from loadmaster.platform.steering.ray_serve.history import History, View
from loadmaster.platform.steering.ray_serve.settings import REPORTS_PER_STEP, DeploymentSettings
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.serving.client import ServiceError
from loadmaster.serving.decisions.guard import GuardSettings

ENDPOINT = "loadmaster.serving.systems.aware.system:ENDPOINT"
DASHBOARD = "http://127.0.0.1:8265"
TOKEN = "RAY_AUTH_TOKEN"
FIRST_STEP_S = 15.0  # beyond the first control step, for which a state has to wait
REPLICAS = "replicas"

_log = logging.getLogger("loadmaster.steer")


class ScaledDeployment(DeploymentSettings):
    """Settings of a deployment that an external scaler scales: Serve has no bounds for it."""

    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt = 10
    stabilisation_s: float = Field(
        default=0.0, ge=0, description="Nothing falls below what was decided in this time."
    )
    flaps_per_hour: PositiveInt = Field(
        default=20, description="Changes of direction within an hour, after which it is held."
    )

    @model_validator(mode="after")
    def check_bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}; expected at most max_replicas, "
                f"{self.max_replicas}"
            )
        return self


class RayServeSettings(ScaledDeployment):
    """Settings of the engine, and of deployments that `deployments` does not name."""

    dashboard: str = Field(default=DASHBOARD, description="URL of Ray's dashboard.")
    ray_token_file: Path | None = Field(
        default=None, description="With Ray's token. Default: the variable RAY_AUTH_TOKEN."
    )
    metrics: tuple[str, ...] | None = Field(
        default=None, description="HOST:PORT of the nodes' metrics. Default: as the dashboard says."
    )
    deadline_s: float = Field(default=10.0, gt=0, le=60, description="Of a call of the dashboard.")
    deployments: dict[str, dict[str, Any]] = Field(
        default={}, description="Other settings of a deployment, by APP/DEPLOYMENT."
    )

    def of(self, name: str) -> ScaledDeployment:
        """The settings of one deployment."""
        fields = set(ScaledDeployment.model_fields)
        shared = self.model_dump(include=fields, exclude_unset=True)
        return build_settings(ScaledDeployment, {**shared, **self.deployments.get(name, {})})


class ServeDeployment:
    """One deployment. `sample` is called by the thread, the rest by the steerer."""

    def __init__(
        self,
        name: str,
        settings: ScaledDeployment,
        dashboard: Dashboard,
        clock: Callable[[], float],
    ) -> None:
        self.application, self.settings = name, settings
        self._app, _, self._deployment = name.partition("/")
        self._dashboard, self._clock = dashboard, clock
        self._history, self._complete = History(name, settings), threading.Condition()
        self._samples = self._decided_at = 0  # samples, and those at the end of the last step
        self._refusal = ""
        self._memory = Memory()  # Serve has no place for it

    def sample(self, found: Mapping[str, Any], readings: Readings | None) -> None:
        """Add a reading of the REST API and of the metrics."""
        with self._complete:
            self._history.add(self._view(found), readings)
            self._samples += 1
            self._complete.notify_all()

    def read(self) -> Target:
        applications = self._dashboard.applications()
        found = _deployment(applications, self.application)
        if not applications[self._app].get("external_scaler_enabled"):
            self._refusal = (
                "412: external_scaler_enabled is not set in the application's config; expected it, "
                "or the policy class in autoscaling_config"
            )
        else:
            self._refusal = ""
        settings, target = self.settings, int(found.get("target_num_replicas") or 0)
        return Target(
            self.application,
            {REPLICAS: float(max(target, 1))},
            {REPLICAS: (float(settings.min_replicas), float(settings.max_replicas))},
            GuardSettings(stabilisation_s=settings.stabilisation_s, flaps=settings.flaps_per_hour),
            memory=self._memory,
            off="" if target > 0 else "target_num_replicas is 0: the deployment is switched off",
        )

    def measure(self, target: Target) -> Measurement:
        patience_s = self.settings.step_s + self.settings.interval_s + FIRST_STEP_S
        with self._complete:
            self._complete.wait_for(lambda: self._samples > REPORTS_PER_STEP, timeout=patience_s)
            document = self._history.document(self._clock())
            outcome, view = self._history.outcome(), self._history.last
            if self._samples - self._decided_at < REPORTS_PER_STEP - 1:
                outcome = None  # mostly of the time before the last decision
        if document is None or view is None:
            raise SilentError(
                "metrics",
                f"{self.application}: no metrics of its requests for {patience_s:g} s",
            )
        if self._clock() - view.at_s > 3.0 * self.settings.interval_s + FIRST_STEP_S:
            age_s = self._clock() - view.at_s
            raise SilentError(
                "metrics", f"{self.application}: the newest sample is {age_s:.0f} s old"
            )
        steps = document["steps"]
        p99_s, restarts = steps["p99_s"][-1], steps["restarts"][-1]
        kept = p99_s is None or p99_s <= document["slo_s"]
        ready = len(view.replicas) >= view.target
        floors = {} if kept else {REPLICAS: target.plan[REPLICAS]}
        notes = ("no replica is removed in a step above the SLO",) if floors else ()
        safe = kept and ready and not restarts
        given = None if outcome is None else {"application": self.application, **outcome}
        return Measurement(document, safe, given, floors, notes)

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        return {REPLICAS: decision[REPLICAS]}

    def check(self, target: Target) -> str:
        return self._refusal

    def act(self, target: Target, plan: Plan) -> Action:
        replicas = round(plan[REPLICAS])
        if replicas == round(target.plan[REPLICAS]):
            return Action("unchanged")
        try:
            self._dashboard.scale(self._app, self._deployment, replicas)
        except RefusedError as fault:
            return Action("refused", (str(fault),))
        return Action("acted")

    def publish(self, target: Target, result: StepResult) -> None:
        """Serve shows no reasons; logs and metrics of the command do."""
        self._memory, self._decided_at = target.memory, self._samples

    def _view(self, found: Mapping[str, Any]) -> View:
        config = found.get("deployment_config") or {}
        replicas = found.get("replicas") or ()
        running = frozenset(
            str(one.get("replica_id")) for one in replicas if one.get("state") == "RUNNING"
        )
        return View(
            self._clock(),
            int(found.get("target_num_replicas") or 0),
            running,
            self.settings.min_replicas,
            self.settings.max_replicas,
            float(config.get("max_ongoing_requests") or 1.0),
        )


class Sampler:
    """Samples deployments in a thread; all of them share the answers of dashboard and nodes."""

    def __init__(
        self,
        settings: RayServeSettings,
        dashboard: Dashboard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._dashboard, self._clock = settings, dashboard, clock
        self._metrics, self._stop = NodeMetrics(settings.deadline_s, clock), threading.Event()
        self._known: dict[str, ServeDeployment] = {}
        self._thread = threading.Thread(target=self._run, name="ray-serve samples", daemon=True)

    def deployments(self, names: Sequence[str]) -> list[ServeDeployment]:
        """Those of these names; without names all whose application permits scaling."""
        applications = self._dashboard.applications()
        wanted = list(names) or [
            f"{app}/{deployment}"
            for app, found in applications.items()
            for deployment in found.get("deployments") or {}
            if found.get("external_scaler_enabled")
        ]
        if not wanted:
            raise InputError(
                f"no application of {self._dashboard.url} has external_scaler_enabled; expected "
                "one, or APP/DEPLOYMENT to watch"
            )
        for name in wanted:
            if name not in self._known:  # one that is deleted later is reported by its `read`
                _deployment(applications, name)
                self._known[name] = ServeDeployment(
                    name, self._settings.of(name), self._dashboard, self._clock
                )
        if not self._thread.is_alive() and not self._stop.is_set():
            self._thread.start()
        return [self._known[name] for name in wanted]

    def sample(self) -> None:
        """One reading of all deployments."""
        applications = self._dashboard.applications()
        addresses = self._settings.metrics or self._dashboard.metrics_addresses()
        for name, one in list(self._known.items()):
            try:
                found = _deployment(applications, name)
            except InputError:
                continue
            readings: Readings | None = None
            try:
                readings = self._metrics.read(addresses, *name.split("/", 1))
            except ServiceError as fault:
                _log.warning("%s: metrics of the nodes: %s", name, fault)
            one.sample(found, readings)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        due_s = self._clock()
        while not self._stop.wait(max(due_s - self._clock(), 0.0)):
            due_s = max(due_s + self._settings.interval_s, self._clock())
            try:
                self.sample()
            except (SilentError, InputError) as fault:
                _log.warning("no sample: %s", fault)
            except Exception:
                _log.exception("no sample")


def _deployment(applications: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    app, _, deployment = name.partition("/")
    if app not in applications:
        raise unknown_name("application", app, applications)
    found = applications[app].get("deployments") or {}
    if deployment not in found:
        raise unknown_name(f"deployment of {app!r}:", deployment, found)
    data: Mapping[str, Any] = found[deployment]
    return data


@contextmanager
def connect(
    settings: RayServeSettings, names: Sequence[str], mode: Mode
) -> Iterator[Callable[[], Sequence[ServeDeployment]]]:
    """Sample the deployments while the block runs."""
    for name in (*names, *settings.deployments):
        if "/" not in name or not all(name.split("/", 1)):
            raise InputError(f"deployment {name!r} is malformed; expected APP/DEPLOYMENT")
        settings.of(name)
    token = os.environ.get(TOKEN)
    if settings.ray_token_file is not None:
        try:
            token = settings.ray_token_file.read_text().strip()
        except OSError as fault:
            raise InputError(f"cannot read {settings.ray_token_file}: {fault.strerror}") from None
    dashboard = Dashboard(settings.dashboard, token, settings.deadline_s)
    sampler = Sampler(settings, dashboard)
    try:
        yield lambda: sampler.deployments(names)
    finally:
        sampler.stop()
        dashboard.close()


SPEC = EngineSpec(
    name="ray-serve",
    endpoint=ENDPOINT,
    summary="Replicas of deployments, as their external scaler.",
    settings=RayServeSettings,
    connect=connect,
)
