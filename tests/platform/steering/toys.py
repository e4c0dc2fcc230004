"""Engines over simulators, for the contract of `test_contract.py`: pods, and jobs on GPUs.

A `World` is what runs without a steerer. Its engine objects are adapters: they come and go, and
read the world anew each time. The author of another engine writes such a world over a simulator, a
fake or a real engine, and names it in the variable LOADMASTER_WORLD.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from loadmaster.envs.compiled import compiled
from loadmaster.envs.errors import unknown_name
from loadmaster.envs.gpu_scheduling import state as gpus
from loadmaster.envs.gpu_scheduling.baselines import FIFO, FIRST_FIT
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import no_preferences
from loadmaster.envs.gpu_scheduling.queues import dequeue
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance, start
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import (
    Action,
    Measurement,
    Mode,
    Plan,
    RefusedError,
    SilentError,
    StepResult,
    Target,
    restore_memory,
)
from loadmaster.platform.steering.jobs import START, Command, Observation
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.systems.aware import examples as aware
from loadmaster.serving.systems.das import examples as das
from tests.platform.steering.kubernetes.simulation import change_plan, new_runner, step

Json = dict[str, Any]


class Killed(BaseException):
    """The process of an adapter ends, by a signal that nothing catches."""


class World:
    """What adapters steer, with the faults that it can have."""

    reference = ""  # MODULE:NAME of its EngineSpec, as in an entry point
    rule = ""  # of the endpoint: one that wants several changes of a new world

    def __init__(self, seed: int = 1) -> None:
        self.done: list[tuple[str, Hashable]] = []  # changes, as (what is changed, to what)
        self.attempts = 0  # changes that were requested, also refused ones
        self.silent = False
        self.refused: set[str] = set()  # what may not be changed
        self.dies_after: int | None = None  # so many changes the adapter is killed

    def adapter(self) -> Any:
        """A new engine object, as a process that starts makes it."""
        raise NotImplementedError

    def picture(self) -> Hashable:
        """All that steering may change."""
        raise NotImplementedError

    def go_on(self) -> None:
        """A while without a steerer, in which jobs end and metrics come."""
        raise NotImplementedError

    def reach(self) -> None:
        if self.silent:
            raise SilentError("engine", "no answer")

    def change(self, what: str, value: Hashable, effect: Callable[[], None]) -> None:
        self.reach()
        self.attempts += 1
        if what in self.refused:
            raise RefusedError("not allowed")
        effect()
        self.done.append((what, value))
        if len(self.done) == self.dies_after:
            raise Killed


class Pods(World):
    """An application in pods, which nothing else scales."""

    reference = f"{__name__}:PODS"
    rule = "window-peak"

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.runner = new_runner(seed, application="webServe", steps=60)
        self.notes: Any = None  # of adapters: as JSON, kept as long as the application is

    def adapter(self) -> "PodsEngine":
        return PodsEngine(self)

    @property
    def plan(self) -> dict[str, float]:
        cores, mib, replicas = self.runner.episode.state.plan.tolist()
        return {"replicas": replicas, "cpu_m": 1000 * cores, "memory_mib": mib}

    def picture(self) -> Hashable:
        return tuple(self.plan.items())

    def go_on(self) -> None:
        step(self.runner)

    def set(self, name: str, value: float) -> None:
        change_plan(self.runner, **{**self.plan, name: value})


class PodsEngine:
    """Quantities: replicas, CPU and memory, each set by a call of its own."""

    application = "toy/pods"

    def __init__(self, world: Pods) -> None:
        self._world = world

    def read(self) -> Target:
        self._world.reach()
        constants = self._world.runner.setup.constants
        low, high = (
            dict(zip(("cpu_m", "memory_mib", "replicas"), one * [1000, 1, 1], strict=True))
            for one in (constants.low, constants.high)
        )
        bounds = {name: (float(low[name]), float(high[name])) for name in self._world.plan}
        memory = restore_memory(self._world.notes)
        return Target(self.application, self._world.plan, bounds, GuardSettings(), memory=memory)

    def measure(self, target: Target) -> Measurement:
        self._world.reach()
        state = aware.state_of(self._world.runner).model_dump(mode="json")
        p99_s, slo_s = state["steps"]["p99_s"][-1], state["slo_s"]
        use = {name: _use(state["reports"], name) for name in ("cpu_m", "memory_mib")}
        outcome = {"p99_s": p99_s, "slo_s": slo_s}
        outcome |= {"cpu_use": use["cpu_m"], "memory_use": use["memory_mib"]}
        return Measurement(state, safe=p99_s is None or p99_s <= slo_s, outcome=outcome)

    def plan_of(self, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: decision[name] for name in self._world.plan}

    def check(self, target: Target) -> str:
        return ""

    def act(self, target: Target, plan: Plan) -> Action:
        changes = {name: value for name, value in plan.items() if value != target.plan[name]}
        refused = []
        for name, value in changes.items():
            try:
                self._world.change(name, value, partial(self._world.set, name, value))
            except RefusedError as fault:
                refused.append(f"{name}: {fault}")
        if refused:
            return Action("refused", tuple(refused))
        return Action("acted" if changes else "unchanged")

    def publish(self, target: Target, result: StepResult) -> None:
        self._world.reach()
        self._world.notes = target.memory.record()


def _use(reports: Json, name: str) -> float:
    """Share of the limit, of the newest report with values."""
    pairs = zip(reports[f"used_{name}"], reports[f"limit_{name}"], strict=True)
    used, limit = [pair for pair in pairs if None not in pair][-1]
    return float(used / limit)


@compiled
def start_waiting(state: SimState, cluster: Cluster, jobs: Jobs, job: int, rows: int) -> None:
    dequeue(state, jobs, job)
    start(state, cluster, jobs, job, rows)


class Gpus(World):
    """Jobs that have arrived at one time, on machines with GPUs. Left alone it starts them."""

    reference = f"{__name__}:GPUS"
    rule = "fifo-best-fit"

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.settings = GpuSchedulingSettings(jobs=40, arrivals="batch")
        self.cluster, self.jobs, noise = build_episode(self.settings, seed)
        self.state = gpus.new_state(self.settings, self.cluster, self.jobs, noise)
        self.number = {str(id): place for place, id in enumerate(self.jobs.job_id)}
        advance(self.state, self.cluster, self.jobs, FIFO)

    def adapter(self) -> "GpusEngine":
        return GpusEngine(self)

    def document(self) -> Json:
        """The state of the endpoint."""
        found = das.state_of(self.settings, self.cluster, self.jobs, self.state, None)
        return found.model_dump(mode="json")

    def placements(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """Of every job that waits or runs."""
        return {
            job["id"]: tuple((one["machine"], one["instances"]) for one in job["placements"])
            for job in self.document()["jobs"]
        }

    def picture(self) -> Hashable:
        return tuple(self.placements().items())

    def go_on(self) -> None:
        tables = self.state, self.cluster, self.jobs
        run_scheduling_pass(*tables, FIFO, FIRST_FIT, no_preferences(self.jobs))
        advance(*tables, FIFO)  # until a job ends

    def start(self, job: str, placements: Sequence[Mapping[str, Any]]) -> None:
        names = [das.machine_name(place) for place in range(len(self.cluster.rack))]
        row = int(self.state.jobs[self.number[job], gpus.FIRST_ROW])
        for place, one in enumerate(placements):
            self.state.rows[row + place, gpus.MACHINE] = names.index(one["machine"])
            self.state.rows[row + place, gpus.COUNT] = one["instances"]
        start_waiting(self.state, self.cluster, self.jobs, self.number[job], len(placements))
        assert (self.state.free >= 0).all()


class GpusEngine:
    """Jobs: it starts them, and stops none, which the rule does not want either."""

    application = "toy-gpus"

    def __init__(self, world: Gpus) -> None:
        self._world = world
        self._seen: dict[str, tuple[tuple[str, int], ...]] | None = None

    def observe(self, now_s: float) -> Observation:
        self._world.reach()
        world, document, jobs = self._world, self._world.document(), self._world.placements()
        before, self._seen = self._seen or jobs, jobs
        runs_s = world.state.progress[:, gpus.FINISHED_S] - world.jobs.arrival_s
        ended = [
            (job, {"job": job, "completion_s": float(runs_s[world.number[job]])})
            for job in before
            if job not in jobs
        ]
        started = frozenset(job for job, where in jobs.items() if where and not before.get(job))
        waits_or_runs = document if jobs else None
        return Observation(waits_or_runs, world.picture(), outcomes=ended, started=started)

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        jobs = self._world.placements()
        return [
            Command(START, one["job"], f"start {one['job']}", partial(self._start, one))
            for one in decision["start"]
            if jobs.get(one["job"]) == ()
        ]

    def publish(self, observation: Observation, result: StepResult) -> None:
        self._world.reach()

    def _start(self, one: Mapping[str, Any]) -> None:
        job, where = one["job"], one["placements"]
        value = tuple((place["machine"], place["instances"]) for place in where)
        self._world.change(job, value, partial(self._world.start, job, where))


class ToySettings(Settings):
    seed: int = 1


def connecting(
    world: type[World],
) -> Callable[
    [ToySettings, Sequence[str], Mode], AbstractContextManager[Callable[[], Sequence[Any]]]
]:
    """`connect` of an engine with one application, whose world begins with it."""

    @contextmanager
    def connect(
        settings: ToySettings, names: Sequence[str], mode: Mode
    ) -> Iterator[Callable[[], Sequence[Any]]]:
        engine = world(settings.seed).adapter()
        for name in names:
            if name != engine.application:
                raise unknown_name("application", name, [engine.application])
        yield lambda: [engine]

    return connect


PODS = EngineSpec(
    name="toy-pods",
    endpoint="loadmaster.serving.systems.aware.system:ENDPOINT",
    summary="Pods of a simulator.",
    settings=ToySettings,
    connect=connecting(Pods),
)
GPUS = EngineSpec(
    name="toy-gpus",
    endpoint="loadmaster.serving.systems.das.system:ENDPOINT",
    summary="Jobs of a simulator.",
    settings=ToySettings,
    connect=connecting(Gpus),
    by_jobs=True,
    every_s=1.0,
)
