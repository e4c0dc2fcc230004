"""A streaming job as SimPy processes, to compare the speed of the compiled simulator with.

Every record is an object that passes the tasks of the job: it arrives at random within its minute,
goes to the instance that has its key group, waits in the instance's buffer, takes a random service
time, and is put into the buffers of the children, by the selectivity of each edge. An instance
whose record finds a full buffer waits, which holds up those before it; the queues at the sources
have no limit. Arrivals, mean service times and their variation, key groups, buffers and contention
are those of the compiled simulator.

Left out: restarts and checkpoints, so the plan is fixed; faults; skew; shared queues; metrics.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.envs.stream_scaling.state import Floats, Ints, JobTables, SimConstants

if TYPE_CHECKING:
    import simpy


class RecordSimulation:
    """Simulate a job record by record; `latencies_min` has those that left, `ends_min` when."""

    def __init__(
        self, job: JobTables, constants: SimConstants, load: Floats, plan: Ints, seed: int
    ) -> None:
        import simpy

        self._job, self._constants, self._load, self._plan = job, constants, load, plan
        self._rng = np.random.default_rng(seed)
        self._env = simpy.Environment()
        self.latencies_min: list[float] = []
        self.ends_min: list[float] = []
        self._buffers = [
            [
                simpy.Store(self._env, np.inf if source >= 0 else constants.buffer)
                for _ in range(count)
            ]
            for source, count in zip(job.source, plan, strict=True)
        ]
        for task, count in enumerate(plan):
            if job.source[task] >= 0:
                self._env.process(self._arrive(task))
            for instance in range(count):
                self._env.process(self._serve(task, instance))

    def run(self, minutes: int) -> None:
        """Simulate from the beginning to the end of so many minutes."""
        self._env.run(until=minutes)

    def _arrive(self, task: int) -> Iterator["simpy.Event"]:
        """Put the records of a source into its queues."""
        for minute, mean in enumerate(self._load[self._job.source[task]]):
            for at in np.sort(minute + self._rng.random(self._rng.poisson(mean))).tolist():
                yield self._env.timeout(at - self._env.now)
                yield self._buffer_of(task).put(at)

    def _buffer_of(self, task: int) -> "simpy.Store":
        """The buffer of the instance that has the key group of a record."""
        group = int(self._rng.random() * self._job.key_groups[task])
        return self._buffers[task][group % self._plan[task]]

    def _serve(self, task: int, instance: int) -> Iterator["simpy.Event"]:
        """Process the records of an instance, one after another."""
        job, buffer, rng = self._job, self._buffers[task][instance], self._rng
        crowding = 1.0 + self._constants.contention * (self._plan[task] - 1)
        mean, variability = float(job.service_min[task] * crowding), float(job.variability[task])
        edges = job.child_edge[job.child_at[task] : job.child_at[task + 1]]
        children = [(int(job.child[edge]), float(job.ratio[edge])) for edge in edges]
        while True:
            born = yield buffer.get()
            spent = rng.gamma(1 / variability, mean * variability) if variability else mean
            yield self._env.timeout(spent)
            if not children:
                self.latencies_min.append(self._env.now - born)
                self.ends_min.append(self._env.now)
            for child, ratio in children:
                for _ in range(int(ratio + rng.random())):
                    yield self._buffer_of(child).put(born)
