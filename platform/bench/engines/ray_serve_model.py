"""Ray Serve's autoscaling as a model: the policy class and Serve's default on the same requests.

The policy class, its history and the shipped policy are the real ones, with a clock of the model.
Of Serve the model has the router (power of two choices, `max_ongoing_requests`, a queue), the mean
of ongoing requests over the look-back period, delays, bounds, replicas that take time to start, and
counters that are exported every 10 s only.
It runs hours in seconds, so it shows what minutes on a busy machine cannot.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from loadmaster.platform.bench.engines.ray_serve_load import Arrival
from loadmaster.platform.steering.ray_serve.decider import Decider
from loadmaster.platform.steering.ray_serve.exported_metrics import NodeMetrics, Readings
from loadmaster.platform.steering.ray_serve.policy import ServicePolicy
from loadmaster.platform.steering.ray_serve.rule import OngoingRequestsRule
from loadmaster.serving.client import Decision
from loadmaster.serving.client.responses import PolicyName, Reason
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.aware.system import ENDPOINT

BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, math.inf)  # as Serve's
MAX_ONGOING = 5  # of a replica; it works on one at a time
TICK_S = 0.5  # Serve's is 0.1


@dataclass(frozen=True)
class Config:
    """The part of an `autoscaling_config` that Serve applies to what a policy returns."""

    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    look_back_period_s: float = 30.0

    def get_target_ongoing_requests(self) -> float:
        return self.target_ongoing_requests


@dataclass
class Replica:
    """A replica that is ready at `ready_s`, and its requests, the first of which is worked on."""

    name: str
    ready_s: float
    requests: deque[Arrival] = field(default_factory=deque)
    draining: bool = False


class InProcess:
    """The decision service without HTTP: a policy of the endpoint, which remembers.

    As in the service, its rule decides for applications that are unlike those of the training.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._memory = policy, None
        self._rule = ENDPOINT.rule(ENDPOINT.rules[0])

    def decide(self, system: str, state: Any, mode: Any = "active", **options: Any) -> Decision:
        parsed = ENDPOINT.state.model_validate(state)
        remembers = getattr(self._policy, "memory_format", None) is not None
        policy: Any = self._policy
        found = policy.decide(parsed, self._memory) if remembers else policy.decide(parsed)
        self._memory = found.memory
        if found.unknown:
            found = self._rule.decide(parsed)
        return Decision(
            id="", decision=found.decision.model_dump(), source="policy",
            reason=Reason(found.explanation.summary), policy=PolicyName("model"), latency_ms=0.0,
        )  # fmt: skip

    def feedback(self, system: str, outcome: Any, id: str | None = None, **options: Any) -> None:
        """Nothing learns here."""


class ServeModel:
    """One deployment with an autoscaling policy; `run` returns replica-seconds and latencies."""

    def __init__(
        self,
        config: Config,
        bounds: tuple[int, int],
        start_s: float,
        export_s: float,
        seed: int,
    ) -> None:
        self.now_s, self.config = 0.0, config
        self.policy: Callable[[Any], tuple[float, Any]] = lambda context: (0.0, {})
        self._bounds, self._start_s, self._export_s = bounds, start_s, export_s
        self._rng = np.random.default_rng(seed)
        self.replicas: list[Replica] = []
        self._queue: deque[Arrival] = deque()
        self._events: list[tuple[float, int, Replica]] = []  # ends of work
        self._number, self.target = 0, bounds[0]
        self._seen: deque[tuple[float, int, int]] = deque()  # ongoing and queued
        self._due: tuple[int, float] = (0, 0.0)  # direction, since when
        self.readings = Readings(0.0, {"all": 0.0}, {"all": 0.0}, {"all": 0.0})
        self.readings.buckets = {bound_s: {"all": 0.0} for bound_s in BOUNDS_S}
        self.exported = copy.deepcopy(self.readings)
        self.on_tick: Callable[[], None] = lambda: None

    def run(self, arrivals: Sequence[Arrival], warm_up_s: float) -> tuple[float, list[float]]:
        """Run to the last arrival; figures begin after the warm-up."""
        latencies: list[float] = []
        replica_s, tick_s = 0.0, 0.0
        self._scale(self.target)
        for at_s, work_s in arrivals:
            while tick_s <= at_s:
                self._finish(tick_s, latencies, warm_up_s)
                self.now_s = tick_s
                if tick_s >= self.exported.at_s + self._export_s:
                    self.exported = copy.deepcopy(replace(self.readings, at_s=tick_s))
                if tick_s >= warm_up_s:
                    replica_s += TICK_S * len(self.replicas)
                self._autoscale()
                self._drain()
                tick_s += TICK_S
            self._finish(at_s, latencies, warm_up_s)
            self.now_s = at_s
            self.readings.arrivals["all"] += 1.0
            self._route((at_s, work_s))
        return replica_s, latencies

    def _ready(self) -> list[Replica]:
        return [one for one in self.replicas if one.ready_s <= self.now_s and not one.draining]

    def _route(self, request: Arrival) -> None:
        """To the shorter of two replicas; into the queue where both are full."""
        ready = self._ready()
        if ready:
            first, second = self._rng.integers(len(ready), size=2)
            chosen = min(ready[first], ready[second], key=lambda one: len(one.requests))
            if len(chosen.requests) >= MAX_ONGOING:  # Serve tries again, with others
                chosen = min(ready, key=lambda one: len(one.requests))
            if len(chosen.requests) < MAX_ONGOING:
                self._give(chosen, request)
                return
        self._queue.append(request)

    def _give(self, replica: Replica, request: Arrival) -> None:
        replica.requests.append(request)
        if len(replica.requests) == 1:
            self._begin(replica)

    def _begin(self, replica: Replica) -> None:
        self._number += 1
        ends_s = max(self.now_s, replica.ready_s) + replica.requests[0][1]
        heapq.heappush(self._events, (ends_s, self._number, replica))

    def _finish(self, until_s: float, latencies: list[float], warm_up_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, replica = heapq.heappop(self._events)
            at_s, _ = replica.requests.popleft()
            latency_s = self.now_s - at_s
            if at_s >= warm_up_s:
                latencies.append(latency_s)
            self.readings.done["all"] += 1.0
            self.readings.busy_s["all"] += latency_s
            for bound_s in BOUNDS_S:
                if latency_s <= bound_s:
                    self.readings.buckets[bound_s]["all"] += 1.0
            if replica.requests:
                self._begin(replica)
            if not replica.draining and self._queue:
                self._give(replica, self._queue.popleft())

    def _drain(self) -> None:
        """End replicas that are done, and give requests that wait to those that are ready."""
        self.replicas = [one for one in self.replicas if not one.draining or one.requests]
        for one in self._ready():
            while self._queue and len(one.requests) < MAX_ONGOING:
                self._give(one, self._queue.popleft())

    def _autoscale(self) -> None:
        ongoing = sum(len(one.requests) for one in self.replicas) + len(self._queue)
        self._seen.append((self.now_s, ongoing, len(self._queue)))
        while self._seen[0][0] < self.now_s - self.config.look_back_period_s:
            self._seen.popleft()
        wanted = math.ceil(self.policy(self._context())[0])
        wanted = min(max(wanted, self._bounds[0]), self._bounds[1])
        direction = (wanted > self.target) - (wanted < self.target)
        if direction != self._due[0]:
            self._due = direction, self.now_s
        config = self.config
        delay_s = config.upscale_delay_s if direction > 0 else config.downscale_delay_s
        if direction and self.now_s - self._due[1] >= delay_s:
            self._scale(wanted)
            self._due = 0, self.now_s
        self.on_tick()

    def _scale(self, target: int) -> None:
        self.target = target
        kept = [one for one in self.replicas if not one.draining]
        for _ in range(target - len(kept)):
            self._number += 1
            start_s = self._start_s if self.now_s > 0 else 0.0
            self.replicas.append(Replica(f"r{self._number}", self.now_s + start_s))
        for one in sorted(kept, key=lambda one: -one.ready_s)[: max(len(kept) - target, 0)]:
            one.draining = True

    def _context(self) -> Any:
        count = len(self._seen)
        ready = self._ready()
        return SimpleNamespace(
            app_name="model",
            deployment_name="Model",
            current_num_replicas=len(ready),
            target_num_replicas=self.target,
            running_replicas=[one.name for one in ready],
            total_num_requests=sum(one[1] for one in self._seen) / count,
            total_queued_requests=sum(one[2] for one in self._seen) / count,
            capacity_adjusted_min_replicas=self._bounds[0],
            capacity_adjusted_max_replicas=self._bounds[1],
            aggregated_metrics={},
            config=self.config,
        )


class ModelMetrics(NodeMetrics):
    """The counters of a model instead of those of nodes."""

    def __init__(self, model: ServeModel) -> None:
        super().__init__()
        self._model = model

    def read(self, addresses: Sequence[str], application: str, deployment: str) -> Readings:
        return replace(self._model.exported, at_s=self._model.now_s)


def by_serve(
    config: Config, bounds: tuple[int, int], start_s: float, export_s: float, seed: int
) -> ServeModel:
    """A deployment with Serve's default policy."""
    rule = OngoingRequestsRule(0.0, 0.0)  # the same formula, with the delays of the config
    model = ServeModel(config, bounds, start_s, export_s, seed)
    model.policy = lambda context: (rule.replicas(context, model.now_s), {})
    return model


def by_policy(
    decides: Policy,
    settings: Mapping[str, Any],
    config: Config,
    bounds: tuple[int, int],
    start_s: float,
    export_s: float,
    seed: int,
) -> ServeModel:
    """A deployment with the policy class, which the policy `decides` for."""
    model = ServeModel(config, bounds, start_s, export_s, seed)
    made: list[Decider] = []

    def decider(name: str, given: Any) -> Decider:
        metrics = ModelMetrics(model)
        made.append(Decider(name, given, InProcess(decides), metrics, lambda: model.now_s))
        made[0].stop.set()  # sampled by the model's clock
        return made[0]

    model.policy = ServicePolicy(
        decider, lambda: model.now_s, mode="act", metrics=["model:0"], **settings
    )
    due_s = 0.0

    def sample() -> None:
        nonlocal due_s
        if made and model.now_s >= due_s:
            made[0].sample()
            due_s = model.now_s + made[0].settings.interval_s

    model.on_tick = sample
    return model
