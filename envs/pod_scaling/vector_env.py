"""Vector environment: many pod scaling episodes stepped in one compiled call."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.env import PodScalingEnv
from loadmaster.envs.pod_scaling.episode import (
    Episode,
    EpisodeResult,
    build_episode,
    episode_result,
)
from loadmaster.envs.pod_scaling.episode_runner import decide_and_advance, warm_up
from loadmaster.envs.pod_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, WARM_UP_STEPS
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    NOW,
    OOMS,
    RESTARTS,
    SUM_REWARD,
    SimConstants,
    SimState,
)
from loadmaster.envs.vector_env import EpisodeVectorEnv, Mask


@compiled
def _step_batch(
    constants: SimConstants,
    states: SimState,
    deciding: NDArray[np.bool_],
    actions: NDArray[np.float32],
    views: Observation,
    legal: NDArray[np.bool_],
    over: NDArray[np.bool_],
) -> None:
    """Act and advance where `deciding`, and observe every episode."""
    for i in range(len(deciding)):
        state = state_of(states, i)
        legal[i] = True
        if deciding[i]:
            legal[i] = decide_and_advance(constants, state, actions[i])
        over[i] = state.clock[NOW] >= state.clock[HORIZON]
        observe(constants, state, Observation(views.state[i]))


@njit_internal
def state_of(s: SimState, i: int) -> SimState:
    """Views of episode i's tables."""
    return SimState(
        s.clock[i], s.requests[i], s.plan[i], s.pods[i], s.nodes[i], s.totals[i], s.rows[i],
        s.step[i], s.sums[i], s.outcome[i], s.reports[i], s.apps[i], s.app_of[i], s.arrivals[i],
        s.rates[i], s.levels[i], s.phases[i], s.peaks[i], s.delays[i], s.missing[i],
    )  # fmt: skip


class PodScalingVectorEnv(EpisodeVectorEnv[NDArray[Any]]):
    """`num_envs` environments as described at `PodScalingEnv`."""

    def __init__(
        self,
        num_envs: int,
        applications: tuple[Application, ...] = (),
        copy: bool = True,
        **settings: Any,
    ) -> None:
        single = PodScalingEnv(applications, **settings)
        self.settings, self.setup = single.settings, single.setup
        super().__init__(
            num_envs, single.observation_space, single.action_space, blank_observation(), copy
        )
        first = build_episode(self.settings, self.setup, 0)
        self._states = SimState._make(np.stack([table] * num_envs) for table in first.state)
        self._applications = [first.application] * num_envs

    @property
    def applications(self) -> tuple[str, ...]:
        """Names of the applications of the current episodes, as they begin."""
        return tuple(application.name for application in self._applications)

    def result(self, index: int) -> EpisodeResult:
        """The outcome of environment `index` so far."""
        state = SimState._make(table[index] for table in self._states)
        application, seed = self._applications[index], int(self._seeds[index])
        return episode_result(state, application, "environment", seed)

    def _start(self, index: int, seed: int) -> None:
        episode = self._episode(seed)
        warm_up(self.setup.constants, episode.state)
        tables: Iterable[NDArray[Any]] = self._states
        for table, own in zip(tables, episode.state, strict=True):
            table[index] = own
        self._applications[index] = episode.application

    def _episode(self, seed: int) -> Episode:
        return build_episode(self.settings, self.setup, seed)

    def _run(self, actions: NDArray[Any], deciding: Mask) -> tuple[Mask, Mask]:
        over = np.zeros(self.num_envs, np.bool_)
        _step_batch(
            self.setup.constants, self._states, deciding, np.asarray(actions, np.float32),
            self._views, self._legal, over,
        )  # fmt: skip
        self._over = over
        return np.zeros_like(over), over

    def _reward_so_far(self) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self._states.sums[:, SUM_REWARD].copy()
        return total

    def _info(self) -> dict[str, Any]:
        clock = self._states.clock
        return {
            "step": clock[:, NOW] // STEP_INTERVALS - WARM_UP_STEPS,
            "restarts": clock[:, RESTARTS].copy(),
            "ooms": clock[:, OOMS].copy(),
        }
