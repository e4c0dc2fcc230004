"""Vector environment: many stream scaling episodes stepped in one compiled call."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_internal
from loadmaster.envs.stream_scaling.env import StreamScalingEnv
from loadmaster.envs.stream_scaling.episode import EpisodeResult, build_episode, episode_result
from loadmaster.envs.stream_scaling.episode_runner import decide_and_advance, warm_up
from loadmaster.envs.stream_scaling.jobs import Job
from loadmaster.envs.stream_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.stream_scaling.rewards import reward_sum
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN
from loadmaster.envs.stream_scaling.state import (
    HORIZON,
    MINUTE,
    RESTARTS,
    JobTables,
    SimConstants,
    SimState,
)
from loadmaster.envs.vector_env import EpisodeVectorEnv, Mask


@compiled
def _step_batch(
    job: JobTables,
    constants: SimConstants,
    keys: Ints,
    states: SimState,
    deciding: NDArray[np.bool_],
    actions: NDArray[np.float32],
    max_factor: float,
    minutes: int,
    week_minutes: Ints,
    plan: Ints,
    views: Observation,
    legal: NDArray[np.bool_],
    over: NDArray[np.bool_],
) -> None:
    """Act and advance where `deciding`, and observe every episode."""
    for i in range(len(deciding)):
        state, own = _state_of(states, i), _with_key(constants, keys[i])
        legal[i] = True
        new = len(views.times[i])
        if deciding[i]:
            before = state.clock[MINUTE]
            legal[i] = decide_and_advance(job, own, state, actions[i], max_factor, minutes, plan)
            new = state.clock[MINUTE] - before
        over[i] = state.clock[MINUTE] >= state.clock[HORIZON]
        view = Observation(
            views.snapshots[i], views.times[i], views.tasks[i], views.edges[i], views.restart[i]
        )
        observe(job, state, week_minutes[i], view, new)


@njit_internal
def _with_key(p: SimConstants, key: int) -> SimConstants:
    return SimConstants(
        p.buffer, p.contention, p.restart_min, p.restore_min_per_mb, p.checkpoint_min,
        p.shared_queue, p.published, p.plan_limit, p.noise,
        p.missing, key,
    )  # fmt: skip


@njit_internal
def _state_of(s: SimState, i: int) -> SimState:
    """Views of episode i's tables."""
    return SimState(
        s.clock[i], s.times[i], s.sums[i], s.load[i], s.offered[i], s.parallelism[i], s.queue[i],
        s.variance[i], s.wanted[i], s.jitter[i], s.arrived[i], s.departed[i], s.age[i],
        s.age_variance[i], s.inflow[i], s.room[i], s.reserved[i], s.departure_jitter[i],
        s.checkpoint[i], s.barrier[i], s.pending[i], s.metrics[i], s.outcome[i],
    )  # fmt: skip


class StreamScalingVectorEnv(EpisodeVectorEnv[NDArray[np.float32]]):
    """`num_envs` environments as described at `StreamScalingEnv`."""

    def __init__(
        self, num_envs: int, custom_job: Job | None = None, copy: bool = True, **settings: Any
    ) -> None:
        single = StreamScalingEnv(custom_job, **settings)
        self.settings, self.setup = single.settings, single.setup
        self._scale = single.settings.action_factor
        tables = self.setup.tables
        blank = blank_observation(tables, self.setup.job.levels, self.settings.history)
        super().__init__(num_envs, single.observation_space, single.action_space, blank, copy)
        self._reward_unit = float(self.settings.decide_every_min)
        first = build_episode(self.settings, self.setup, 0)
        self._states = SimState._make(np.stack([table] * num_envs) for table in first.state)
        self._constants = first.constants
        self._keys = np.zeros(num_envs, np.int64)
        self._week_minutes = np.zeros(num_envs, np.int64)
        self._plan = np.zeros(len(tables.cap), np.int64)

    def result(self, index: int) -> EpisodeResult:
        """The outcome of environment `index` so far."""
        state = SimState._make(table[index] for table in self._states)
        return episode_result(self.settings, state, "environment", int(self._seeds[index]))

    def _start(self, index: int, seed: int) -> None:
        episode = build_episode(self.settings, self.setup, seed)
        warm_up(self.setup.tables, episode.constants, episode.state)
        tables: Iterable[NDArray[Any]] = self._states
        for table, own in zip(tables, episode.state, strict=True):
            table[index] = own
        self._keys[index] = episode.constants.key
        self._week_minutes[index] = episode.week_minute

    def _run(self, actions: NDArray[np.float32], deciding: Mask) -> tuple[Mask, Mask]:
        over = np.zeros(self.num_envs, np.bool_)
        _step_batch(
            self.setup.tables, self._constants, self._keys, self._states, deciding,
            np.asarray(actions, np.float32), self._scale, self.settings.decide_every_min,
            self._week_minutes, self._plan, self._views, self._legal, over,
        )  # fmt: skip
        self._over = over
        return np.zeros_like(over), over

    def _reward_so_far(self) -> NDArray[np.float64]:
        total: NDArray[np.float64] = reward_sum(self.settings, self._states.sums)
        return total

    def _info(self) -> dict[str, Any]:
        clock = self._states.clock
        return {
            "minute": clock[:, MINUTE] - WARM_UP_MIN,
            "restarts": clock[:, RESTARTS].copy(),
        }
