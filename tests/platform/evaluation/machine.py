"""A miniature subject whose answers are known: one machine, a batch of jobs.

There shortest-first is optimal in mean completion time (Smith's rule), and the makespan is the
same whatever the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings, build_settings
from loadmaster.platform.evaluation import run
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup
from loadmaster.platform.evaluation.comparison import Comparison, compare


class MachineSettings(Settings):
    workload: str = "steady"
    jobs: int = 8


@dataclass(frozen=True)
class MachineDay:
    work_s: NDArray[np.float64]  # (jobs,)
    completion_s: NDArray[np.float64]  # (jobs,)


def machine_day(policy: str, seed: int, jobs: int = 8) -> MachineDay:
    work = np.random.default_rng(seed).integers(1, 100, jobs).astype(float)
    order = {
        "arrival": np.arange(jobs),
        "shortest": np.argsort(work, kind="stable"),
        "longest": np.argsort(-work, kind="stable"),
        "optimal": np.argsort(work, kind="stable"),
        "learned": np.argsort(np.round(work, -1), kind="stable"),
    }[policy]
    completion = np.empty(jobs)
    completion[order] = np.cumsum(work[order])
    return MachineDay(work, completion)


METRICS = (
    Metric("jct", "mean JCT", "s", lambda day: float(day.completion_s.mean())),
    Metric("makespan", "makespan", "s", lambda day: float(day.completion_s.max())),
    Metric("decisions", "decisions", "", lambda day: len(day.work_s), better=None),
)


def machine_jobs(day: MachineDay) -> Mapping[str, NDArray[Any]]:
    jobs = len(day.work_s)
    return {
        "job": np.arange(jobs),
        "arrival_s": np.zeros(jobs),
        "completion_s": day.completion_s,
        "jct_s": day.completion_s,
        "work_s": day.work_s,
        "slowdown": day.completion_s / day.work_s,
        "end_s": np.full(jobs, day.completion_s.max()),
    }


def prepare(settings: MachineSettings) -> EvaluationSetup:
    return EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=f"{settings.jobs} jobs, one machine",
        metrics=METRICS,
        run=lambda policy, seed: machine_day(policy, seed, settings.jobs),
        job_columns=machine_jobs,
    )


MACHINE = EnvironmentAdapter(
    environment="machine",
    baselines=("arrival", "shortest", "longest"),
    settings=lambda values: build_settings(MachineSettings, values),
    folder_name=lambda settings: f"machine-{settings.workload}",
    prepare=prepare,
    references=("optimal",),
)


def with_oracles(*names: str) -> EnvironmentAdapter:
    def prepared(settings: MachineSettings) -> EvaluationSetup:
        return replace(prepare(settings), oracles=frozenset(names))

    return replace(MACHINE, prepare=prepared)


KNOWING = with_oracles("shortest")


def many_variants(count: int) -> EnvironmentAdapter:
    """`count` baselines of three kinds; variants of one kind do the same."""
    rules = ("arrival", "shortest", "longest")
    names = {f"{rules[place % 3]}-{place}": rules[place % 3] for place in range(count)}

    def prepared(settings: MachineSettings) -> EvaluationSetup:
        return replace(
            prepare(settings),
            run=lambda policy, seed: machine_day(names[policy], seed),
            oracles=frozenset(name for name, rule in names.items() if rule == "shortest"),
        )

    return replace(MACHINE, baselines=tuple(names), prepare=prepared, families=names)


def compared(*policies: str, seeds: int = 20, subject: EnvironmentAdapter = MACHINE) -> Comparison:
    trial = subject.prepare(MachineSettings())
    episodes = run.run_episodes(trial, policies, range(seeds), 2, lambda: None)
    return compare(subject, trial, range(seeds), episodes)
