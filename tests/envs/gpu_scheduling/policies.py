"""Policies for tests: heuristics that decide through the interface of the agents."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT, sample_legal_action
from loadmaster.envs.gpu_scheduling.decision_state import SHOWN
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from tests.envs.gpu_scheduling.instances import TOY, Row, given_jobs, jobs_of
from tests.envs.gpu_scheduling.reference import place

Actions = dict[str, NDArray[np.float32]]
Policy = Callable[[EpisodeRunner], Actions]


def env_with(*rows: Row, **values: Any) -> GpuSchedulingEnv:
    """An environment of exactly these jobs, after its reset; settings as in TOY."""
    with warnings.catch_warnings(action="ignore"):  # about oversized jobs
        env = GpuSchedulingEnv(given_jobs(jobs_of(rows)), **{**TOY, "workload": "-", **values})
        env.reset(seed=0)
    return env


def running(runner: EpisodeRunner) -> set[int]:
    return set(np.flatnonzero(runner.state.jobs[:-1, cols.ROWS_USED] > 0).tolist())


def shown(runner: EpisodeRunner) -> list[int]:
    jobs: list[int] = runner.decision_state.shown[: runner.decision_state.counts[SHOWN]].tolist()
    return jobs


def finish(env: GpuSchedulingEnv, policy: Policy) -> list[float]:
    """Run the episode to its end; return the rewards."""
    rewards = []
    while env.agents:
        _, reward, _, _, _ = env.step(policy(env.runner))
        rewards.append(reward[ORDERING])
    return rewards


def at_random(seed: int) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda runner: sample_legal_action(runner.view._asdict(), rng)


def first_come_first_fit(runner: EpisodeRunner) -> Actions:
    rows, machines = runner.view.held.shape
    return {
        ORDERING: -np.arange(rows, dtype=np.float32),
        PLACEMENT: np.tile(-np.arange(machines, dtype=np.float32), (rows, 1)),
    }


def shortest_consolidated(runner: EpisodeRunner) -> Actions:
    """Shortest job first on as few machines and racks as possible."""
    cluster, jobs, _ = runner.episode
    free, rows = runner.state.free.copy(), shown(runner)
    actions = first_come_first_fit(runner)
    actions[ORDERING][: len(rows)] = -jobs.duration_s[rows]
    for row in np.lexsort((jobs.job_id[rows], jobs.duration_s[rows])):
        job = rows[row]
        chosen = place(cluster, jobs, free, job, "consolidate")
        if not chosen and runner.state.setup[cols.BACKFILL] == 0:
            break
        for rank, (machine, count) in enumerate(chosen):
            free[machine] -= count * np.array([jobs.gpu[job], jobs.cpu[job]])
            actions[PLACEMENT][row, machine] = len(free) - rank
    return actions


def running_first(runner: EpisodeRunner, bonus: float = 1000) -> Actions:
    """Rank running jobs before pending ones."""
    actions, rows = first_come_first_fit(runner), shown(runner)
    actions[ORDERING][: len(rows)] += bonus * np.isin(rows, list(running(runner)))
    return actions


def pending_first(runner: EpisodeRunner) -> Actions:
    return running_first(runner, bonus=-1000)


def shortest_remaining(runner: EpisodeRunner) -> Actions:
    """Shortest remaining time first, by rank: float32 cannot separate close values."""
    actions, rows, state = first_come_first_fit(runner), shown(runner), runner.state
    since = state.times[cols.NOW] - state.progress[rows, cols.SINCE_S]
    left = state.progress[rows, cols.LEFT_S] - since * state.progress[rows, cols.RATE]
    actions[ORDERING][np.argsort(left)] = -np.arange(len(rows))
    return actions
