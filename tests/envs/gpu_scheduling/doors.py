"""For tests: heuristics that speak through the environment's door, as any policy must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, select_jobs

Actions = dict[str, NDArray[np.float32]]
Policy = Callable[[GpuSchedulingEnv], Actions]


@dataclass(frozen=True)
class Given:
    """A workload of exactly these jobs."""

    jobs: Jobs
    name: str = "given"
    description: str = "written by hand"
    keeps_time: bool = True
    mean_gpu_s: float = 1.0

    @property
    def size(self) -> int:
        return len(self.jobs.job_id)

    def draw(self, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
        return select_jobs(self.jobs, slice(count))


def running(env: GpuSchedulingEnv) -> set[int]:
    return set(np.flatnonzero(env._state.jobs[:-1, at.ROWS_USED] > 0).tolist())


def shown(env: GpuSchedulingEnv) -> list[int]:
    jobs: list[int] = env._desk.shown[: env._desk.counts[on.SHOWN]].tolist()
    return jobs


def finish(env: GpuSchedulingEnv, policy: Policy) -> list[float]:
    """Play to the end; the rewards."""
    rewards = []
    while env.agents:
        _, reward, _, _, _ = env.step(policy(env))
        rewards.append(reward[ORDERING])
    return rewards


def at_random(seed: int) -> Policy:
    rng = np.random.default_rng(seed)

    def decide(env: GpuSchedulingEnv) -> Actions:
        return {
            agent: rng.standard_normal(env.action_space(agent).shape).astype(np.float32)
            for agent in (ORDERING, PLACEMENT)
        }

    return decide


def first_come_first_fit(env: GpuSchedulingEnv) -> Actions:
    rows, machines = env.action_space(PLACEMENT).shape
    return {
        ORDERING: -np.arange(rows, dtype=np.float32),
        PLACEMENT: np.tile(-np.arange(machines, dtype=np.float32), (rows, 1)),
    }


def shortest_consolidated(env: GpuSchedulingEnv) -> Actions:
    """Shortest job first on as few machines and racks as can be, worked out step by step."""
    assert env._episode is not None
    jobs, cluster = env._episode.jobs, env.cluster
    free = env._state.free.copy()
    rows = shown(env)
    actions = first_come_first_fit(env)
    actions[ORDERING][: len(rows)] = -jobs.duration_s[rows]
    for row in np.lexsort((jobs.job_id[rows], jobs.duration_s[rows])):
        job = rows[row]
        chosen = _consolidated(cluster, jobs, free, job)
        if not chosen:
            if not env.settings.backfill:
                break
            continue
        for rank, (machine, count) in enumerate(chosen):
            free[machine] -= count * np.array([jobs.gpu[job], jobs.cpu[job]])
            actions[PLACEMENT][row, machine] = len(free) - rank
    return actions


def pending_first(env: GpuSchedulingEnv) -> Actions:
    """Nobody may stay: those who wait go before all who run, at every event."""
    actions = first_come_first_fit(env)
    rows = shown(env)
    actions[ORDERING][: len(rows)] -= 1000 * np.isin(rows, list(running(env)))
    return actions


def running_first(env: GpuSchedulingEnv) -> Actions:
    actions = first_come_first_fit(env)
    rows = shown(env)
    actions[ORDERING][: len(rows)] += 1000 * np.isin(rows, list(running(env)))
    return actions


def shortest_remaining(env: GpuSchedulingEnv) -> Actions:
    """By rank: a float32 could not tell close ones apart."""
    actions, rows, state = first_come_first_fit(env), shown(env), env._state
    since = state.times[at.NOW] - state.progress[rows, at.SINCE_S]
    left = state.progress[rows, at.LEFT_S] - since * state.progress[rows, at.RATE]
    actions[ORDERING][np.argsort(left)] = -np.arange(len(rows))
    return actions


def _consolidated(
    cluster: Cluster, jobs: Jobs, free: NDArray[np.int64], job: int
) -> list[tuple[int, int]]:
    """Machines and how many instances go there; none if the gang does not fit."""
    gang, kind = int(jobs.instances[job]), jobs.gpu_type[job]
    fit = np.minimum(free[:, 0] // jobs.gpu[job], free[:, 1] // max(jobs.cpu[job], 1)).clip(0, gang)
    fit[(kind != ANY_TYPE) & (cluster.gpu_type != kind)] = 0
    if fit.sum() < gang:
        return []
    whole = np.flatnonzero(fit == gang)
    if len(whole):
        return [(int(min(whole, key=lambda m: free[m, 0])), gang)]
    of_rack = np.bincount(cluster.rack, fit)
    racks = np.flatnonzero(of_rack >= gang)
    if len(racks):
        fit[cluster.rack != min(racks, key=lambda r: of_rack[r])] = 0
    chosen: list[tuple[int, int]] = []
    while gang:
        here = np.minimum(fit, gang)
        machine = min(np.flatnonzero(here), key=lambda m: (-here[m], free[m, 0]))
        chosen.append((int(machine), int(here[machine])))
        gang -= int(here[machine])
        fit[machine] = 0
    return chosen
