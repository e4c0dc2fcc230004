"""Pods as SimPy processes, request by request, to compare the compiled simulator with.

Requests arrive as a Poisson process, go to a random pod, or to that of two random ones which has
fewer requests, take an exponential CPU time there, and then wait for I/O. Under processor sharing
the requests of a pod share its cores, each with one core at most; under first come, first served a
pod has a queue for its cores. Arrivals, CPU time, I/O time and sizes are those of the compiled
simulator.

Left out: starts, resizes, memory, quotas, nodes, metrics and timeouts, so the plan is fixed.
"""

import heapq
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.settings import Routing

if TYPE_CHECKING:
    import simpy

WARM_UP_S = 30.0  # requests that arrive earlier are not in `latencies_s`


class SharedPod:
    """A pod whose requests share its cores.

    All run at the same speed, so they end in the order of arrival's virtual time plus work.
    """

    def __init__(self, env: "simpy.Environment", cores: float) -> None:
        self._env, self._cores = env, cores
        self._ends: list[tuple[float, float, simpy.Event]] = []  # virtual end, arrival, done
        self._virtual, self._updated = 0.0, 0.0
        self._changed = env.event()
        env.process(self._serve())

    def process(self, work_s: float) -> "simpy.Event":
        """An event that happens when the work is done."""
        self._advance()
        done = self._env.event()
        heapq.heappush(self._ends, (self._virtual + work_s, self._env.now, done))
        if not self._changed.triggered:
            self._changed.succeed()
        return done

    def _speed(self) -> float:
        return min(1.0, self._cores / len(self._ends)) if self._ends else 0.0

    def _advance(self) -> None:
        self._virtual += (self._env.now - self._updated) * self._speed()
        self._updated = self._env.now

    def _serve(self) -> "Iterator[simpy.Event]":
        while True:
            self._changed = self._env.event()
            if self._ends:
                left = max(self._ends[0][0] - self._virtual, 0.0) / self._speed()
                timeout = self._env.timeout(left)
                yield timeout | self._changed
                self._advance()
                if timeout.processed:
                    heapq.heappop(self._ends)[2].succeed()
            else:
                yield self._changed


class QueuedPod:
    """A pod that serves its requests in the order of arrival; above one core, several at a time."""

    def __init__(self, env: "simpy.Environment", cores: float) -> None:
        import simpy

        self._env, self._speed = env, min(cores, 1.0)
        self._servers = simpy.Resource(env, max(math.floor(cores), 1))

    def process(self, work_s: float) -> "simpy.Event":
        """An event that happens when the work is done."""
        return self._env.process(self._serve(work_s))

    def _serve(self, work_s: float) -> "Iterator[simpy.Event]":
        with self._servers.request() as turn:
            yield turn
            yield self._env.timeout(work_s / self._speed)


class RequestSimulation:
    """Simulate pods request by request; `latencies_s` are those of requests that ended."""

    def __init__(
        self,
        application: Application,
        rate: float,
        replicas: int,
        cores: float,
        discipline: str,
        seed: int,
        routing: Routing = "random",
    ) -> None:
        import simpy

        self._application, self._rate = application, rate
        self._choices = 1 if routing == "random" else 2
        self._busy = [0] * replicas  # requests at the CPU of each pod
        self._rng = np.random.default_rng(seed)
        self._env = simpy.Environment()
        kind = SharedPod if discipline == "ps" else QueuedPod
        self._pods = [kind(self._env, cores) for _ in range(replicas)]
        self.latencies_s: list[float] = []
        self._env.process(self._arrive())

    def run(self, seconds: float) -> None:
        """Simulate until so many seconds from the beginning."""
        self._env.run(until=seconds)

    def _arrive(self) -> "Iterator[simpy.Event]":
        while True:
            yield self._env.timeout(self._rng.exponential(1 / self._rate))
            self._env.process(self._handle())

    def _handle(self) -> "Iterator[simpy.Event]":
        began = self._env.now
        chosen = self._rng.choice(len(self._pods), self._choices, replace=False)
        place = min(chosen, key=self._busy.__getitem__)
        self._busy[place] += 1
        yield self._pods[place].process(self._rng.exponential(self._application.cpu_s))
        self._busy[place] -= 1
        yield self._env.timeout(self._application.io_s)
        if began >= WARM_UP_S:
            self.latencies_s.append(self._env.now - began)
