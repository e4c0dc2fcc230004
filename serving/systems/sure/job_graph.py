"""The graph of a state's job in the simulator's tables, kept from request to request.

A graph that is not consistent is refused by a ValidationError that names the field.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints
from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling import jobs
from loadmaster.envs.stream_scaling.state import JobTables
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.sure.records import Task

KEPT_JOBS = 32
_MOST_DIVISORS = 42  # the least common multiple of more does not fit in 64 bits

Edges = tuple[tuple[str, ...], ...]


class ParsedGraph(NamedTuple):
    """Tasks in an order in which parents come first; shared by requests, so read-only."""

    names: tuple[str, ...]
    order: Ints  # (N,) place of each task in the state
    levels: Ints  # (N,) the longest path from a source
    tables: JobTables  # with equal ratios of all edges to a task
    most: Ints  # (N,) max_parallelism, in the state's order as is `source`
    source: NDArray[np.bool_]  # (N,)


@lru_cache(maxsize=KEPT_JOBS)
def parse_graph(job: str, tasks: tuple[Task, ...], edges: Edges) -> ParsedGraph:
    """Check a job and lay it out; of the jobs of the last requests it is kept."""
    ordered = _ordered_job(job, tasks, edges)
    place = {task.name: number for number, task in enumerate(tasks)}
    children = {child for _, child in edges}
    return ParsedGraph(
        names=ordered.names,
        order=np.array([place[name] for name in ordered.names]),
        levels=ordered.levels,
        tables=jobs.job_tables(ordered, max(task.max_parallelism for task in tasks)),
        most=np.array([task.max_parallelism for task in tasks]),
        source=np.array([task.name not in children for task in tasks]),
    )


def _ordered_job(job: str, tasks: tuple[Task, ...], edges: Edges) -> jobs.Job:
    """The tasks with their parents, in an order in which those come first."""
    _check_names(tasks)
    parents: dict[str, list[str]] = {task.name: [] for task in tasks}
    read = set()
    for number, (parent, child) in enumerate(edges):
        for side, name in enumerate((parent, child)):
            if name not in parents:
                raise field_error(("edges", number, side), f"{name!r} is no task of the job")
        if parent in parents[child]:
            why = f"{parent!r} to {child!r} is listed twice; expected each edge once"
            raise field_error(("edges", number), why)
        parents[child].append(parent)
        read.add(parent)
    for number, task in enumerate(tasks):
        own = parents[task.name]
        for field, by_edges in (("source", not own), ("sink", task.name not in read)):
            if getattr(task, field) not in (None, by_edges):
                why = f"{str(not by_edges).lower()} contradicts the edges of {task.name!r}"
                raise field_error(("tasks", number, field), f"{why}; expected the other, or null")
        if task.chained and len(own) != 1:
            why = f"chained with {len(own)} parents; expected one"
            raise field_error(("tasks", number, "chained"), why)
    try:
        return jobs.build_job(
            job,
            [
                jobs.Task(
                    task.name,
                    duration=1.0,
                    parents=tuple(parents[task.name]),
                    key_groups=_key_groups(task),
                    partitions=task.max_parallelism,
                    chained=task.chained,
                )
                for task in tasks
            ],
        )
    except InputError as fault:  # all else was checked
        raise field_error(("edges",), str(fault).removeprefix(f"job {job}: ")) from None


def _key_groups(task: Task) -> int:
    """Those of its keys; without keys, a number that any parallelism up to 42 divides."""
    if task.keyed:
        return task.key_groups or task.max_parallelism
    return math.lcm(*range(1, _MOST_DIVISORS + 1))


def _check_names(tasks: tuple[Task, ...]) -> None:
    names: set[str] = set()
    vertices: set[str] = set()
    for number, task in enumerate(tasks):
        if task.name in names:
            why = f"two tasks are called {task.name!r}; expected names that differ"
            raise field_error(("tasks", number, "name"), why)
        vertex = task.id or task.name
        if vertex in vertices:
            why = f"two tasks have the id {vertex!r}; expected ids that differ"
            raise field_error(("tasks", number, "id"), why)
        if task.key_groups is not None and task.key_groups < task.max_parallelism:
            why = f"{task.key_groups}; expected at least its max_parallelism {task.max_parallelism}"
            raise field_error(("tasks", number, "key_groups"), why)
        names.add(task.name)
        vertices.add(vertex)
