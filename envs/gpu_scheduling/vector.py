"""Many GPU scheduling environments stepped in one compiled call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from loadmaster.envs.episode_seeds import EpisodeSeeds
from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.desk import Desk, new_desk
from loadmaster.envs.gpu_scheduling.env import Action, GpuSchedulingEnv, ObservationDict
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode
from loadmaster.envs.gpu_scheduling.fleet import empty_fleet, put, step_fleet
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import Observation, blank_observation
from loadmaster.envs.gpu_scheduling.rewards import published_terms, total_reward
from loadmaster.envs.gpu_scheduling.rollout import result_of
from loadmaster.envs.gpu_scheduling.state import SimState, new_state


class GpuSchedulingVectorEnv(VectorEnv[ObservationDict, Mapping[str, Action], NDArray[Any]]):
    """`num_envs` clusters side by side, each as `GpuSchedulingEnv`, whose page describes it.

    Gymnasium's vector form: one observation and one reward for both agents, which share them, and
    a mapping of agents to actions. Environment i seeded with s lives through the same episodes as
    a single one seeded with s, so equal seeds give rollouts that share their jobs. A finished
    environment starts its next episode in the step that follows; that step's action is ignored
    and its reward is 0. With `copy=False` the observations are views that the next step
    overwrites.
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
        single = GpuSchedulingEnv(workload_bank, **settings)
        self.settings, self.workload = single.settings, single.workload
        self.cluster, self.scales = single.cluster, single.scales
        self.possible_agents = list(AGENTS)
        self.num_envs = num_envs
        self.single_observation_space = single.observation_space(ORDERING)
        self.single_action_space = spaces.Dict({**single.action_spaces})
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._copy = copy
        self._shapes = {
            agent: (num_envs, *space.shape) for agent, space in single.action_spaces.items()
        }
        self._terms = published_terms(self.settings, self.cluster)
        blank = blank_observation(self.settings.max_queue, self.cluster, self.settings.history)
        self._views = Observation._make(np.stack([table] * num_envs) for table in blank)
        self._fleet = empty_fleet(num_envs, *self._begin(0))
        self._status = np.full(num_envs, at.DONE, np.int64)
        self._legal = np.ones(num_envs, np.bool_)
        self._rewarded = np.zeros(num_envs)
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
        nothing = {agent: np.zeros(shape, np.float32) for agent, shape in self._shapes.items()}
        self._run(nothing, np.zeros(self.num_envs, np.bool_))
        return self._observation(), {"seed": self._seeds.now.copy(), **self._told()}

    def step(
        self, actions: Mapping[str, Action]
    ) -> tuple[
        ObservationDict, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        drawn = {agent: self._read(actions, agent) for agent in AGENTS}
        deciding = self._status == at.DECIDE
        for i in np.flatnonzero(~deciding):
            self._start(int(i), None)
        self._run(drawn, deciding)
        total = total_reward(self.settings, self.scales, self._fleet.desks.sums)
        # What passes before an episode's first decision joins that decision's reward.
        rewards = np.where(deciding, total - self._rewarded, 0.0)
        self._rewarded = np.where(deciding, total, 0.0)
        over = self._status == at.DONE
        info = {"legal": self._legal.copy(), **self._told()}
        return self._observation(), rewards, over, np.zeros_like(over), info

    def result(self, index: int) -> EpisodeResult:
        """The outcome of environment `index` as it stands."""
        jobs = int(self._fleet.sizes[index, 0])
        state = SimState._make(table[index] for table in self._fleet.states)
        state = state._replace(progress=state.progress[:jobs])
        drawn = Jobs._make(table[index, :jobs].copy() for table in self._fleet.jobs)
        return result_of(state, self.cluster, drawn, "environment", int(self._seeds.now[index]))

    def _start(self, index: int, seed: int | None) -> None:
        seed = self._seeds.next(index, seed)
        self._rewarded[index] = 0
        self._fleet = put(self._fleet, index, *self._begin(seed))
        for name, table in self._views._asdict().items():
            if name != "rack":
                table[index] = 0

    def _begin(self, seed: int) -> tuple[SimState, Jobs, Desk]:
        episode = build_episode(self.settings, seed, self.workload)
        state = new_state(self.settings, *episode)
        return state, episode.jobs, new_desk(self.settings, *episode[:2])

    def _run(self, drawn: Mapping[str, Action], deciding: NDArray[np.bool_]) -> None:
        step_fleet(
            self._fleet, self.cluster, self._terms, deciding, drawn[ORDERING],
            drawn[PLACEMENT], self._views, self._legal, self._status,
        )  # fmt: skip

    def _read(self, actions: Mapping[str, Action], agent: str) -> Action:
        if agent not in actions:
            raise InputError(f"no actions of agent {agent!r}; expected some of each of {AGENTS}")
        drawn = np.ascontiguousarray(actions[agent], np.float32)
        shape = self._shapes[agent]
        if drawn.shape != shape:
            raise InputError(f"actions of {agent!r} have shape {drawn.shape}; expected {shape}")
        return drawn

    def _told(self) -> dict[str, Any]:
        states = self._fleet.states
        hidden = np.maximum(states.clock[:, at.QUEUED] - self.settings.max_queue, 0)
        return {"time_s": states.times[:, at.NOW].copy(), "hidden": hidden}

    def _observation(self) -> ObservationDict:
        fields = self._views._asdict()
        return {name: table.copy() if self._copy else table for name, table in fields.items()}
