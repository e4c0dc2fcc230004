"""Vector environment: many DAG scheduling clusters stepped in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv, ObservationDict
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import (
    FITS,
    Observation,
    blank_observation,
    observe,
    too_large,
)
from loadmaster.envs.dag_scheduling.rewards import COST_COLUMN, step_rewards
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, episode_result, initial_state
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import (
    DECIDE,
    DONE,
    GROW_JOBS,
    HORIZON,
    SimState,
    with_more_slots,
)
from loadmaster.envs.random import EpisodeSeeds

_SKIP, _RUN, _ACT = 0, 1, 2


class DagSchedulingVectorEnv(VectorEnv[ObservationDict, NDArray[np.int64], NDArray[Any]]):
    """`num_envs` clusters, each with the rules, spaces and episodes of `DagSchedulingEnv`.

    Environment i seeded with s has the episodes of a single environment seeded with s. A finished
    environment starts its next episode in the following step; that step's action is ignored and
    its reward is 0. With `copy=False` the observations are views that the next step overwrites.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "autoreset_mode": AutoresetMode.NEXT_STEP
    }

    def __init__(
        self,
        num_envs: int,
        workload_bank: Workload | None = None,
        copy: bool = True,
        **settings: Any,
    ) -> None:
        single = DagSchedulingEnv(workload_bank, **settings)
        self.settings, self.workload = single.settings, single.workload
        self.num_envs = num_envs
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._copy = copy
        limits = self.settings
        blank = blank_observation(limits.max_stages, limits.max_jobs, limits.max_edges)
        self._views = Observation._make(np.stack([table] * num_envs) for table in blank)
        self._rows = np.zeros((num_envs, limits.max_stages), np.int64)
        start = initial_state(limits, self.workload, seed=0, slots=limits.max_jobs)
        self._states = SimState._make(np.stack([table] * num_envs) for table in start)
        self._status = np.full(num_envs, DONE, np.int64)
        self._legal = np.ones(num_envs, np.bool_)
        self._fit = np.zeros(num_envs, np.int64)
        self._cost_column = COST_COLUMN[limits.objective]
        self._cost_ms = np.zeros(num_envs, np.int64)  # that rewards have accounted for
        self._seeds = EpisodeSeeds(num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start an episode in every environment; an integer seed counts upwards over them."""
        for i, own in enumerate(self._seeds.begin(seed)):
            self._start(i, own)
        self._cost_ms[:] = 0
        self._run(np.zeros((self.num_envs, 2), np.int64), np.zeros(self.num_envs, np.bool_))
        return self._observation(), {"seed": self._seeds.now.copy()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[
        ObservationDict, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        deciding = self._status == DECIDE
        for i in np.flatnonzero(~deciding):
            self._start(int(i), None)
        self._run(np.ascontiguousarray(actions, np.int64), deciding)
        cost_ms = self._states.clock[:, self._cost_column]
        rewards = step_rewards(self._cost_ms, cost_ms, deciding)
        self._cost_ms = np.where(deciding, cost_ms, 0)
        info = {"legal": self._legal.copy(), "time_s": self._states.clock[:, cols.NOW] / 1000}
        terminated, truncated = self._status == DONE, self._status == HORIZON
        return self._observation(), rewards, terminated, truncated, info

    def result(self, index: int) -> EpisodeResult:
        """Return the outcome so far of environment `index`."""
        state = SimState._make(table[index] for table in self._states)
        seed = int(self._seeds.now[index])
        return episode_result(state, self.workload, self.settings, "environment", seed)

    def _start(self, index: int, seed: int | None) -> None:
        seed = self._seeds.next(index, seed)
        slots = self._states.jobs.shape[1]
        start = initial_state(self.settings, self.workload, seed, slots=slots)
        for name, tables in self._states._asdict().items():
            tables[index] = getattr(start, name)
        for view in self._views:
            view[index] = 0

    def _run(self, actions: NDArray[np.int64], deciding: NDArray[np.bool_]) -> None:
        todo = np.where(deciding, _ACT, _RUN)
        while todo.any():
            run_all(
                self._states, self.workload.bank, self._views, self._rows, actions, todo,
                self._legal, self._status, self._fit,
            )  # fmt: skip
            # Between decisions there may be more jobs than an observation holds. The slots of all
            # environments grow together.
            todo = np.where(self._status == GROW_JOBS, _RUN, _SKIP)
            if todo.any():
                each = (SimState._make(t[i] for t in self._states) for i in range(self.num_envs))
                grown = zip(*(with_more_slots(state) for state in each), strict=True)
                self._states = SimState._make(np.stack(tables) for tables in grown)
        if self._fit.any():
            index = int(np.flatnonzero(self._fit != FITS)[0])
            self._status[self._fit != FITS] = DONE  # without an observation there is no decision
            now_s = float(self._states.clock[index, cols.NOW]) / 1000
            raise too_large(int(self._fit[index]), self.settings, now_s)

    def _observation(self) -> ObservationDict:
        fields = self._views._asdict()
        return {name: table.copy() if self._copy else table for name, table in fields.items()}


@compiled
def run_all(
    states: SimState,
    bank: JobTemplates,
    views: Observation,
    rows: NDArray[np.int64],
    actions: NDArray[np.int64],
    todo: NDArray[np.int64],
    legal: NDArray[np.bool_],
    status: NDArray[np.int64],
    fit: NDArray[np.int64],
) -> None:
    """Apply the actions of environments to act in; run all to their next decision."""
    for i in range(len(rows)):
        if todo[i] == _SKIP:
            continue
        state, view = state_of(states, i), view_of(views, i)
        legal[i] = True
        if todo[i] == _ACT:
            row, limit = actions[i, 0], actions[i, 1]
            legal[i] = apply_action(state, bank, view, rows[i], row, limit)
        status[i] = advance(state, bank)
        if status[i] != GROW_JOBS:
            fit[i] = observe(state, bank, view, rows[i])


@njit_internal
def state_of(states: SimState, i: int) -> SimState:
    """Return views of environment i's tables."""
    return SimState(
        states.clock[i], states.setup[i], states.arrivals[i], states.completed_ms[i],
        states.order[i], states.jobs[i], states.stages[i], states.executors[i], states.tree[i],
        states.left[i], states.capacity[i], states.amount[i], states.commit_first[i],
        states.commitments[i], states.levels[i], states.trace[i],
        states.trace_ms[i],
    )  # fmt: skip


@njit_internal
def view_of(views: Observation, i: int) -> Observation:
    """Return views of environment i's observation."""
    return Observation(
        views.stages[i], views.stage_job[i], views.schedulable[i], views.jobs[i], views.edges[i],
        views.cluster[i],
    )  # fmt: skip
