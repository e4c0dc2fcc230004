"""Base of vector environments: seeds, automatic resets, rewards and observations."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

Actions = TypeVar("Actions")
Mask = NDArray[np.bool_]
ObservationDict = dict[str, NDArray[Any]]
StepResult = tuple[ObservationDict, NDArray[np.float64], Mask, Mask, dict[str, Any]]


class EpisodeVectorEnv(VectorEnv[ObservationDict, Actions, NDArray[Any]]):
    """`num_envs` environments that step together; a subclass holds and runs their simulators.

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
        observation_space: Space[Any],
        action_space: Space[Any],
        blank: Any,
        copy: bool,
    ) -> None:
        """`blank` is an observation of one environment, a named tuple of tables."""
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._views = blank._make(np.stack([table] * num_envs) for table in blank)
        self._copy = copy
        self._legal = np.ones(num_envs, np.bool_)
        self._over = np.ones(num_envs, np.bool_)
        self._rewarded = np.zeros(num_envs)  # part of `_reward_so_far` that was given
        self._reward_unit = 1.0
        self._seeds = np.zeros(num_envs, np.int64)  # of the current episodes
        self._generators = [np_random(None)[0] for _ in range(num_envs)]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start an episode in every environment; environment i gets an integer seed plus i."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        for i, own in enumerate(seed):
            if own is not None:
                self._generators[i] = np_random(own)[0]
            self._start_episode(i, own)
        self._rewarded = np.zeros(self.num_envs)
        nothing: Any = create_empty_array(self.single_action_space, self.num_envs, np.zeros)
        self._run(nothing, np.zeros(self.num_envs, np.bool_))
        return self._observation(), {"seed": self._seeds.copy(), **self._info()}

    def step(self, actions: Actions) -> StepResult:
        deciding = ~self._over
        for i in np.flatnonzero(self._over):
            self._start_episode(int(i), None)
        terminated, truncated = self._run(actions, deciding)
        total = self._reward_so_far()
        # The cost before the first decision is part of the first reward.
        rewards = np.where(deciding, total - self._rewarded, 0.0) / self._reward_unit
        self._rewarded = np.where(deciding, total, 0.0)
        info = {"legal": self._legal.copy(), **self._info()}
        return self._observation(), rewards, terminated, truncated, info

    def _start_episode(self, index: int, seed: int | None) -> None:
        if seed is None:
            seed = int(self._generators[index].integers(1 << 31))
        self._seeds[index] = seed
        self._start(index, seed)

    def _observation(self) -> ObservationDict:
        fields = self._views._asdict()
        return {name: table.copy() if self._copy else table for name, table in fields.items()}

    @abstractmethod
    def _start(self, index: int, seed: int) -> None:
        """Write the start of the episode of `seed` to the tables of environment `index`."""

    @abstractmethod
    def _run(self, actions: Actions, deciding: Mask) -> tuple[Mask, Mask]:
        """Act where `deciding`, run all to their next decision; return terminated, truncated.

        Set `_over` and `_legal`.
        """

    @abstractmethod
    def _reward_so_far(self) -> NDArray[Any]:
        """(environments,) Return the reward since each episode began, in `_reward_unit`s."""

    @abstractmethod
    def _info(self) -> dict[str, Any]: ...
