"""Test helpers: tiny workloads, and a cluster driven one decision at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action, sample_legal_action
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.observation import FITS, blank_observation, observe
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, episode_result, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import DECIDE, FULL, NEVER, enlarge, new_state
from loadmaster.envs.dag_scheduling.workloads.synthetic import toy
from loadmaster.envs.settings import build_settings

NO_HORIZON = int(NEVER) - 1
TOY = toy()  # templates "single", "chain" and "diamond": 4, 6 and 10 s of work


def workload_of(*jobs: Sequence[Stage]) -> Workload:
    return build_workload("test", [Job(f"job-{i}", tuple(job)) for i, job in enumerate(jobs)])


class Cluster:
    """The bare simulator on given (arrival in ms, template) pairs."""

    def __init__(
        self,
        workload: Workload,
        sequence: Sequence[tuple[int, int]] | NDArray[np.int64],
        *,
        seed: int = 0,
        horizon_ms: int = NO_HORIZON,
        trace_rows: int = 1000,
        slots: int = 0,
        **settings: Any,
    ) -> None:
        self.settings = build_settings(DagSchedulingSettings, settings)
        self.workload, self.bank = workload, workload.bank
        jobs = np.array(sequence, np.int64)
        self.state = new_state(self.settings, workload, jobs, seed, horizon_ms, trace_rows, slots)
        rows = len(jobs) * workload.stages_max
        self.view = blank_observation(rows, len(jobs), len(jobs) * max(1, len(self.bank.child)))
        self.rows = np.zeros(rows, np.int64)

    @property
    def now_ms(self) -> int:
        return int(self.state.clock[cols.NOW])

    def decision(self) -> bool:
        """Run to the next decision; return False when the episode is over instead."""
        while (status := advance(self.state, self.bank)) in FULL:
            self.state = enlarge(self.state, status)
        assert observe(self.state, self.bank, self.view, self.rows) == FITS
        return status == DECIDE

    def where(self, row: int) -> tuple[int, int]:
        """Return the (job, stage) of a row: number in order of arrival, number in the job."""
        slot, stage = divmod(int(self.rows[row]), int(self.state.setup[cols.STRIDE]))
        return int(self.state.jobs[slot, cols.NUMBER]), stage

    def options(self) -> set[tuple[int, int]]:
        """Return the schedulable (job, stage) pairs."""
        return {self.where(int(row)) for row in np.flatnonzero(self.view.schedulable[:-1])}

    @property
    def may_idle(self) -> bool:
        return bool(self.view.schedulable[-1])

    def row_of(self, job: int, stage: int) -> int:
        rows = range(int(self.view.cluster[1]))
        return next(row for row in rows if self.where(row) == (job, stage))

    def act(self, row: int, limit: int) -> tuple[bool, int]:
        """Act; return whether that was legal, and how many executors it placed."""
        before = int(self.state.left.sum())
        legal = apply_action(self.state, self.bank, self.view, self.rows, row, limit)
        return legal, before - int(self.state.left.sum())

    def choose(self, job: int, stage: int, limit: int) -> int:
        """Act legally; return how many executors were placed."""
        legal, placed = self.act(self.row_of(job, stage), limit)
        assert legal
        return placed

    def play(self, *choices: tuple[int, int, int, int]) -> None:
        """Run through decisions of (job, stage, limit, executors expected to be placed)."""
        for job, stage, limit, expected in choices:
            assert self.decision()
            assert self.choose(job, stage, limit) == expected

    def idle(self) -> int:
        legal, left_idle = self.act(len(self.rows), 1)
        assert legal
        return left_idle

    def finish(self, policy: str) -> EpisodeResult:
        """Run a baseline from here to the end."""
        self.state = run_baseline(self.state, self.bank, BASELINES[policy])
        return self.result()

    def result(self) -> EpisodeResult:
        return episode_result(self.state, self.workload, self.settings, "by hand", 0)


def play_legally(env: DagSchedulingEnv, seed: int) -> tuple[NDArray[np.float64], Any]:
    """Play an episode with random legal actions; return the rewards and the last step."""
    rng, rewards = np.random.default_rng(0), []
    step: Any = (env.reset(seed=seed)[0], 0.0, False, False, {})
    while not (step[2] or step[3]):
        step = env.step(sample_legal_action(step[0], rng))
        assert step[4]["legal"]
        rewards.append(step[1])
    return np.array(rewards), step


def simulate(
    policy: str, seed: int, workload: Workload | None = None, record: bool = False, **settings: Any
) -> EpisodeResult:
    """Run a named policy on the episode of `seed`."""
    how = build_settings(DagSchedulingSettings, settings)
    return run_episode(policy, how, seed, workload, record=record)


def jct_ms(result: EpisodeResult) -> list[int]:
    return [round(seconds * 1000) for seconds in result.jct_s]


def run(
    policy: str, workload: Workload, arrivals: list[tuple[int, int]], **settings: Any
) -> EpisodeResult:
    return Cluster(workload, arrivals, **settings).finish(policy)


def task_ms(result: EpisodeResult) -> list[int]:
    """Durations of the tasks in order of start."""
    assert result.trace is not None
    task = result.trace.moving == 0
    return (result.trace.end_ms - result.trace.start_ms)[task].tolist()


def executors_of(result: EpisodeResult, job: int) -> set[int]:
    """Executors that ran tasks of the job."""
    assert result.trace is not None
    ran = (result.trace.job == job) & (result.trace.moving == 0)
    return set(result.trace.executor[ran].tolist())
