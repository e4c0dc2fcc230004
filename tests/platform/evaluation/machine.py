"""A miniature environment with known results: one machine, a batch of jobs.

Shortest-first is optimal in mean completion time (Smith's rule); the makespan does not depend on
the order.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings, build_settings
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup
from loadmaster.platform.evaluation.comparison import Comparison, compare


class MachineSettings(Settings):
    workload: str = "steady"
    jobs: int = 8


class MachineEpisode(NamedTuple):
    work_s: NDArray[np.float64]  # (jobs,)
    completion_s: NDArray[np.float64]  # (jobs,)


def machine_episode(policy: str, seed: int, jobs: int = 8) -> MachineEpisode:
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
    return MachineEpisode(work, completion)


METRICS = (
    Metric("jct", "mean JCT", "s", lambda episode: float(episode.completion_s.mean())),
    Metric("makespan", "makespan", "s", lambda episode: float(episode.completion_s.max())),
    Metric("decisions", "decisions", "", lambda episode: len(episode.work_s), better=None),
)


def machine_jobs(episode: MachineEpisode) -> Mapping[str, NDArray[Any]]:
    work, completion = episode
    return {
        "job": np.arange(len(work)), "arrival_s": np.zeros(len(work)), "completion_s": completion,
        "jct_s": completion, "work_s": work, "slowdown": completion / work,
        "end_s": np.full(len(work), completion.max()),
    }  # fmt: skip


def prepare(settings: MachineSettings) -> EvaluationSetup:
    return EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=f"{settings.jobs} jobs, one machine",
        metrics=METRICS,
        run=lambda policy, seed: machine_episode(policy, seed, settings.jobs),
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


def varied(adapter: EnvironmentAdapter = MACHINE, **changes: Any) -> EnvironmentAdapter:
    """The adapter with other fields in its setup."""
    return replace(adapter, prepare=lambda settings: replace(prepare(settings), **changes))


def with_oracles(*names: str) -> EnvironmentAdapter:
    return varied(oracles=frozenset(names))


def many_variants(count: int) -> EnvironmentAdapter:
    """An adapter with `count` baselines of three families; all of a family do the same."""
    rules = ("arrival", "shortest", "longest")
    names = {f"{rules[place % 3]}-{place}": rules[place % 3] for place in range(count)}
    return varied(
        replace(MACHINE, baselines=tuple(names), families=names),
        run=lambda policy, seed: machine_episode(names[policy], seed),
        oracles=frozenset(name for name, rule in names.items() if rule == "shortest"),
    )


def compared(*policies: str, seeds: int = 20, adapter: EnvironmentAdapter = MACHINE) -> Comparison:
    setup = adapter.prepare(MachineSettings())
    episodes = adapters.run_episodes(setup, {}, policies, range(seeds), 2)
    return compare(adapter, setup, range(seeds), episodes)
