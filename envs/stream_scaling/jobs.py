"""Streaming jobs: DAGs of tasks, and their tables for compiled code."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling.state import JobTables

KEY_GROUPS = 128  # Flink's default maximum parallelism
PEAK = 472  # records a minute, of the load that jobs are sized for
PEAK_INSTANCES = 8.0  # of the longest task at that load


@dataclass(frozen=True)
class Task:
    """A task and the tasks it reads from; a task without parents is a source."""

    name: str
    duration: float  # of a record, relative to the other tasks
    parents: tuple[str, ...] = ()
    selectivity: tuple[float, ...] | None = None  # by parent; None: 1 / parents each
    variability: float = 1.0  # squared coefficient of variation of the service time
    key_groups: int = KEY_GROUPS
    partitions: int | None = None  # of a source: its most instances
    chained: bool = False  # runs in the instances of its only parent
    slot_group: str = "default"
    state_mb: float = 0.0


@dataclass(frozen=True)
class Job:
    """Tasks in an order in which parents come first."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.tasks)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(parent, child) in the order of the tables."""
        place = {name: number for number, name in enumerate(self.names)}
        return [
            (place[parent], child)
            for child, task in enumerate(self.tasks)
            for parent in task.parents
        ]

    @property
    def levels(self) -> NDArray[np.int64]:
        """(N,) the longest path from a source."""
        found = np.zeros(len(self.tasks), np.int64)
        for parent, child in self.edges:
            found[child] = max(found[child], found[parent] + 1)
        return found


def build_job(name: str, tasks: Sequence[Task]) -> Job:
    """Check the tasks and order them so that parents come first; faults are InputErrors."""
    by_name: dict[str, Task] = {}
    for task in tasks:
        if task.name in by_name:
            raise InputError(f"job {name}: two tasks are called {task.name!r}; expected one")
        by_name[task.name] = task
    if not by_name:
        raise InputError(f"job {name}: no tasks; expected one or more")
    for task in tasks:
        _check_task(name, task, by_name)
    ordered: dict[str, Task] = {}
    left = list(tasks)
    while left:
        ready = [task for task in left if all(parent in ordered for parent in task.parents)]
        if not ready:
            names = ", ".join(task.name for task in left[:5])
            raise InputError(f"job {name}: {names} depend on each other; expected a DAG")
        ordered |= {task.name: task for task in ready}
        left = [task for task in left if task.name not in ordered]
    return Job(name, tuple(ordered.values()))


def _check_task(job: str, task: Task, by_name: dict[str, Task]) -> None:
    where = f"job {job}, task {task.name!r}"
    for parent in task.parents:
        if parent not in by_name:
            raise InputError(f"{where}: parent {parent!r} is no task of the job")
    if len(set(task.parents)) < len(task.parents):
        raise InputError(f"{where}: a parent is named twice; expected each once")
    if not 0 < task.duration < np.inf:
        raise InputError(f"{where}: duration {task.duration:g}; expected more than 0")
    ratios = task.selectivity
    if ratios is not None and len(ratios) != len(task.parents):
        raise InputError(
            f"{where}: {len(ratios)} selectivities; expected {len(task.parents)}, one a parent"
        )
    if ratios is not None and not all(0 <= ratio < np.inf for ratio in ratios):
        raise InputError(f"{where}: a selectivity below 0; expected 0 or more")
    if not 0 <= task.variability < np.inf or not 0 <= task.state_mb < np.inf:
        raise InputError(f"{where}: variability or state_mb below 0; expected 0 or more")
    if task.key_groups < 1 or (task.partitions is not None and task.partitions < 1):
        raise InputError(f"{where}: key_groups or partitions below 1; expected 1 or more")
    if task.chained and len(task.parents) != 1:
        raise InputError(f"{where}: chained with {len(task.parents)} parents; expected one")


def job_tables(
    job: Job, most: int, *, chains: bool = True, skew: float = 0.0, service_min: float | None = None
) -> JobTables:
    """Tables of a job whose tasks have `most` instances at most.

    The longest task takes `service_min` for a record; by default so long that a load of PEAK
    records a minute keeps PEAK_INSTANCES busy.
    """
    tasks, edges = job.tasks, job.edges
    place = {name: number for number, name in enumerate(job.names)}
    count = len(tasks)
    longest = max(task.duration for task in tasks)
    unit = (PEAK_INSTANCES / PEAK if service_min is None else service_min) / longest
    ratio = np.array(
        [
            1 / len(task.parents) if task.selectivity is None else task.selectivity[number]
            for task in tasks
            for number in range(len(task.parents))
        ],
        np.float64,
    )
    parent = np.array([start for start, _ in edges], np.int64)
    child = np.array([end for _, end in edges], np.int64)
    sources = [number for number, task in enumerate(tasks) if not task.parents]
    source = np.full(count, -1, np.int64)
    source[sources] = np.arange(len(sources))
    nominal = np.zeros(count)
    nominal[sources] = 1.0
    for edge in range(len(edges)):  # children come after their parents
        nominal[child[edge]] += nominal[parent[edge]] * ratio[edge]
    chain = np.arange(count)
    for number, task in enumerate(tasks):
        if chains and task.chained:
            chain[number] = chain[place[task.parents[0]]]
    cap = np.array([min(most, task.partitions or most, task.key_groups) for task in tasks])
    for number in range(count):  # the smallest limit of a chain counts
        cap[chain[number]] = min(cap[chain[number]], cap[number])
    groups = list(dict.fromkeys(task.slot_group for task in tasks))
    emits = np.zeros(count, bool)
    emits[parent] = True
    weight = np.where(emits, 0.0, np.maximum(nominal, 1e-12))
    return JobTables(
        service_min=np.array([task.duration * unit for task in tasks]),
        variability=np.array([task.variability for task in tasks], np.float64),
        source=source,
        parent_at=np.searchsorted(child, np.arange(count + 1)).astype(np.int64),
        parent=parent,
        child_at=np.searchsorted(np.sort(parent), np.arange(count + 1)).astype(np.int64),
        child_edge=np.argsort(parent, kind="stable").astype(np.int64),
        child=child,
        ratio=ratio,
        nominal=nominal,
        key_groups=np.array([task.key_groups for task in tasks], np.int64),
        cap=cap[chain].astype(np.int64),
        hot_share=np.full(count, skew, np.float64),
        chain=chain.astype(np.int64),
        slot_group=np.array([groups.index(task.slot_group) for task in tasks], np.int64),
        state_mb=np.array([task.state_mb for task in tasks], np.float64),
        weight=weight / weight.sum(),
        faults=np.zeros((0, 5)),
    )
