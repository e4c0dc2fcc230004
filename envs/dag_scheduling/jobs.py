"""Job templates: DAGs of stages, laid out in flat arrays for compiled code.

A workload describes its jobs as `Job` and `Stage` records; `build_workload` checks them and lays
them out as `JobTemplates`. Episodes refer to templates by number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.profiles import JobTemplates as JobTemplates
from loadmaster.envs.dag_scheduling.profiles import ProfilePool, Profiles, Waves
from loadmaster.envs.errors import InputError

_TASKS_MAX = np.iinfo(np.int32).max
FRESH, FIRST, REST = 0, 1, 2  # waves: the three kinds of task duration in a profile


@dataclass(frozen=True)
class Stage:
    """One stage of a job: identical tasks that may run in parallel once all parents are done."""

    tasks: int
    parents: tuple[int, ...]
    first: Waves  # an executor's first task in this stage
    rest: Waves = field(default_factory=dict)  # its later tasks in this stage
    fresh: Waves = field(default_factory=dict)  # its first task in this job
    cpu: float = 0.0  # what an executor must offer, 1.0 being the largest there is
    memory: float = 0.0
    mean_ms: float | None = None  # given where more was measured than the waves above hold


def equal_tasks(
    tasks: int, duration_ms: int, *parents: int, cpu: float = 0.0, memory: float = 0.0
) -> Stage:
    """Build a stage whose tasks all take the same time."""
    always = {1: [duration_ms]}
    return Stage(tasks, parents, always, always, always, cpu, memory)


@dataclass(frozen=True)
class Job:
    """A job template; parents are numbers of stages, in any order."""

    name: str
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class RecordedJob:
    """A job of a trace and the time at which it arrived, in seconds from any origin."""

    arrival_s: float
    job: Job


@dataclass(frozen=True)
class Workload:
    """A named set of job templates."""

    name: str
    bank: JobTemplates
    job_names: tuple[str, ...]
    stages_max: int  # the most stages any template has
    description: str = ""  # one line for readers of its figures


def build_workload(name: str, jobs: Sequence[Job], description: str = "") -> Workload:
    """Check every job and lay the templates out in arrays."""
    from loadmaster.envs.dag_scheduling.critical_paths import UNREACHED  # numba

    if not jobs:
        raise InputError(f"workload {name!r} holds no jobs; expected at least one")
    for job in jobs:
        _check_stages(job)
    stages = [stage for job in jobs for stage in job.stages]
    levels = sorted({e for s in stages for wave in (s.first, s.rest, s.fresh) for e in wave})
    pool = ProfilePool(levels)
    for job in jobs:
        for number, s in enumerate(job.stages):
            pool.add(f"job {job.name!r}: stage {number}", s.fresh, s.first, s.rest, s.mean_ms)
    bank = build_templates(
        first_stage=_starts([job.stages for job in jobs]),
        tasks=np.array([stage.tasks for stage in stages], np.int64),
        demand=np.array([(stage.cpu, stage.memory) for stage in stages], np.float64),
        parent_first=_starts([stage.parents for stage in stages]),
        parent=np.array([p for stage in stages for p in stage.parents], np.int64),
        profiles=pool.lay_out(),
    )
    cyclic = np.flatnonzero(bank.height == UNREACHED)
    if len(cyclic):
        template = int(np.searchsorted(bank.first_stage, cyclic[0], side="right")) - 1
        raise InputError(
            f"job {jobs[template].name!r} is cyclic: stage {cyclic[0] - bank.first_stage[template]}"
            " is in or leads to a cycle; expected a DAG"
        )
    names = tuple(job.name for job in jobs)
    return Workload(name, bank, names, max(len(job.stages) for job in jobs), description)


def build_templates(
    *,
    first_stage: NDArray[np.int64],
    tasks: NDArray[np.int64],
    demand: NDArray[np.float64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    profiles: Profiles,
) -> JobTemplates:
    """Derive the other fields of JobTemplates; stages with a cycle ahead have height UNREACHED."""
    from loadmaster.envs.dag_scheduling.critical_paths import UNREACHED, link_stages  # numba

    stages = len(tasks)
    ahead = np.empty((stages, 2))
    ahead[:, 0], ahead[:, 1] = profiles.mean_ms, demand[:, 0] + demand[:, 1]
    bank = JobTemplates(
        first_stage=first_stage,
        tasks=tasks,
        critical_ms=profiles.mean_ms.copy(),
        height=np.full(stages, UNREACHED, np.int64),
        demand=demand,
        ahead=ahead,
        work_ms=np.add.reduceat(tasks * profiles.mean_ms, first_stage[:-1]),
        child_first=np.zeros(stages + 1, np.int64),
        child=np.zeros_like(parent),
        parent_first=parent_first,
        parent=parent,
        **profiles._asdict(),
    )
    link_stages(bank, *np.zeros((2, stages), np.int64))
    return bank


def _starts(groups: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(group) for group in groups])]).astype(np.int64)


def _check_stages(job: Job) -> None:
    if not job.stages:
        raise InputError(f"job {job.name!r} has no stages; expected at least one")
    for number, stage in enumerate(job.stages):
        if not 1 <= stage.tasks <= _TASKS_MAX:
            raise InputError(
                f"job {job.name!r}: stage {number} has {stage.tasks} tasks; "
                f"expected 1 to {_TASKS_MAX}"
            )
        for parent in stage.parents:
            if not 0 <= parent < len(job.stages):
                raise InputError(
                    f"job {job.name!r}: stage {number} names parent {parent}; "
                    f"expected 0 to {len(job.stages) - 1}"
                )
