"""Vector environment: many DAG scheduling clusters stepped in one compiled call."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.rewards import COST_COLUMN, REWARD_UNIT_MS
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, episode_result, initial_state
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import GROW_JOBS, SimState, with_more_slots
from loadmaster.envs.vector_env import EpisodeVectorEnv, Mask

_SKIP, _RUN, _ACT = 0, 1, 2


class DagSchedulingVectorEnv(EpisodeVectorEnv[Ints]):
    """`num_envs` clusters, each with the rules, spaces and episodes of `DagSchedulingEnv`."""

    def __init__(
        self,
        num_envs: int,
        workload_bank: Workload | None = None,
        copy: bool = True,
        **settings: Any,
    ) -> None:
        single = DagSchedulingEnv(workload_bank, **settings)
        blank = obs.padded_observation(single.settings)
        super().__init__(num_envs, single.observation_space, single.action_space, blank, copy)
        self.settings, self.workload = single.settings, single.workload
        self._rows = np.zeros((num_envs, self.settings.max_stages), np.int64)
        start = initial_state(self.settings, self.workload, 0, slots=self.settings.max_jobs)
        self._states = SimState._make(np.stack([table] * num_envs) for table in start)
        self._status = np.full(num_envs, cols.DONE, np.int64)
        self._fit = np.zeros(num_envs, np.int64)
        self._cost_column = COST_COLUMN[self.settings.objective]
        self._reward_unit = REWARD_UNIT_MS

    def result(self, index: int) -> EpisodeResult:
        """Return the outcome so far of environment `index`."""
        state = SimState._make(table[index] for table in self._states)
        seed = int(self._seeds[index])
        return episode_result(state, self.workload, self.settings, "environment", seed)

    def _start(self, index: int, seed: int) -> None:
        slots = self._states.jobs.shape[1]
        start = initial_state(self.settings, self.workload, seed, slots=slots)
        for name, tables in self._states._asdict().items():
            tables[index] = getattr(start, name)
        for view in self._views:
            view[index] = 0

    def _run(self, actions: Ints, deciding: Mask) -> tuple[Mask, Mask]:
        actions = np.ascontiguousarray(actions, np.int64)
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
        unfit = self._fit != obs.FITS  # without an observation there is no decision
        self._over = (self._status != cols.DECIDE) | unfit
        if unfit.any():
            index = int(np.argmax(unfit))
            now_s = float(self._states.clock[index, cols.NOW]) / 1000
            raise obs.too_large(int(self._fit[index]), self.settings, now_s)
        return self._status == cols.DONE, self._status == cols.HORIZON

    def _reward_so_far(self) -> Ints:
        return -self._states.clock[:, self._cost_column]

    def _info(self) -> dict[str, Any]:
        return {"time_s": self._states.clock[:, cols.NOW] / 1000}


@compiled
def run_all(
    states: SimState,
    bank: JobTemplates,
    views: Observation,
    rows: Ints,
    actions: Ints,
    todo: Ints,
    legal: NDArray[np.bool_],
    status: Ints,
    fit: Ints,
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
            fit[i] = obs.observe(state, bank, view, rows[i])


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
