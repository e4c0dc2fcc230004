"""Gymnasium environment of DAG scheduling."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.rewards import COST_COLUMN, REWARD_UNIT_MS
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, episode_result, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState, enlarge
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings

ObservationDict = dict[str, NDArray[Any]]


def action_space(settings: DagSchedulingSettings) -> spaces.MultiDiscrete:
    """Build the space of (stage row, or `max_stages` to idle; parallelism limit of its job)."""
    return spaces.MultiDiscrete([settings.max_stages + 1, settings.total_executors], start=[0, 1])


class DagSchedulingEnv(gymnasium.Env[ObservationDict, NDArray[np.integer[Any]]]):
    """Schedule jobs that are DAGs of stages on a cluster of executors.

    ## Description
    Jobs arrive in a batch or as a Poisson stream. A job is a DAG of stages, a stage a number of
    equal tasks; a task occupies one executor. When executors come free that are not committed to
    a stage, a decision round opens for them: each step commits some of them to a stage, until
    none is left. Moving an executor to another job costs time, and the more executors a job
    holds, the slower each of its tasks runs.

    ## Action
    `(stage, limit)`: a row of the observation's stage table, and the most executors its job may
    hold afterwards, 1 to E. The stage gets as many free executors as it has tasks for and the
    limit allows. `stage = max_stages` leaves the rest of the round idle. `schedulable` marks the
    legal rows, `jobs[:, MIN_LIMIT]` the lowest limit with an effect (a lower one counts as that).
    An illegal stage idles the round, or takes the first legal stage where idling is not allowed;
    `info["legal"]` is then False.

    ## Observation
    Padded tables, see `observation.py`: `stages`, `stage_job`, `schedulable`, `jobs`, `edges`,
    `cluster`.

    ## Reward
    objective "jct": minus the time (s) that jobs spent in the system since the last decision,
    summed over jobs; the return is minus the total job completion time. Objective "makespan":
    minus the time that passed. The cost before the first decision joins the first reward.

    ## Episode end
    Terminated when all jobs are done; truncated at the horizon, drawn from a geometric
    distribution with mean `horizon_s` where that is set.

    ## Arguments
    Those of `DagSchedulingSettings`, e.g. `gymnasium.make("loadmaster/DagScheduling-v0",
    arrivals="poisson", executors=20)`; or `workload_bank=` with a `Workload` of your own. With
    `record=True`, `result()` has the schedule's trace.

    ## Version history
    v0: first release.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(
        self, workload_bank: Workload | None = None, record: bool = False, **settings: Any
    ) -> None:
        self.settings = build_settings(DagSchedulingSettings, settings)
        self.workload = workload_bank or load_workload(self.settings)
        self.observation_space = obs.observation_space(self.settings)
        self.action_space = action_space(self.settings)
        self._record = record
        self._seed = 0
        self._state: SimState | None = None
        self._view = obs.padded_observation(self.settings)
        self._rows = np.zeros(self.settings.max_stages, np.int64)  # row -> stage in the state
        self._cost_column = COST_COLUMN[self.settings.objective]
        self._cost_ms = 0  # that rewards have accounted for

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start the episode of `seed`; without one, a seed is drawn from `np_random`."""
        super().reset(seed=seed)
        self._seed = seed if seed is not None else int(self.np_random.integers(1 << 31))
        self._state = initial_state(self.settings, self.workload, self._seed, self._record)
        self._view = obs.padded_observation(self.settings)
        self._cost_ms = 0
        self._advance()
        return self._observation(), {"seed": self._seed, "time_s": self._now_s()}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        state = self._running_state()
        if state.clock[cols.STATUS] != cols.DECIDE:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        row, limit = int(action[0]), int(action[1])
        legal = apply_action(state, self.workload.bank, self._view, self._rows, row, limit)
        status = self._advance()
        cost_ms = int(self._running_state().clock[self._cost_column])
        reward = (self._cost_ms - cost_ms) / REWARD_UNIT_MS
        self._cost_ms = cost_ms
        info = {"legal": legal, "time_s": self._now_s()}
        return self._observation(), reward, status == cols.DONE, status == cols.HORIZON, info

    def result(self) -> EpisodeResult:
        """Return the outcome so far."""
        return episode_result(
            self._running_state(), self.workload, self.settings, "environment", self._seed
        )

    def _advance(self) -> int:
        """Run to the next decision or the end and observe; return the status."""
        state, bank = self._running_state(), self.workload.bank
        while (status := advance(state, bank)) in cols.FULL:
            self._state = state = enlarge(state, status)
        fit = obs.observe(state, bank, self._view, self._rows)
        if fit != obs.FITS:
            now_s = self._now_s()
            self._state = None  # without an observation there is no next decision
            raise obs.too_large(fit, self.settings, now_s)
        return status

    def _running_state(self) -> SimState:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        return self._state

    def _now_s(self) -> float:
        return float(self._running_state().clock[cols.NOW]) / 1000

    def _observation(self) -> ObservationDict:
        """Copy the tables, which every step overwrites."""
        return {name: table.copy() for name, table in self._view._asdict().items()}
