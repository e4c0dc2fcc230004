"""Base of environments whose episodes are stepped by a runner: resets, rewards, observations."""

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

ObservationDict = dict[str, NDArray[Any]]


class Runner(Protocol):
    """An episode; `view` is its observation, a named tuple of tables that `decide` overwrites."""

    @property
    def view(self) -> Any: ...

    @property
    def over(self) -> bool: ...

    def decide(self, action: NDArray[np.float32]) -> bool:
        """Act, and simulate until the next decision; whether the action is legal."""


RunnerType = TypeVar("RunnerType", bound=Runner)


class EpisodeEnv(gymnasium.Env[ObservationDict, NDArray[Any]], Generic[RunnerType]):
    """An environment without terminal states; a subclass starts the episode of a seed."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    _runner: RunnerType | None = None
    _rewarded = 0.0  # part of `_reward_so_far` that was given
    _reward_unit = 1.0

    @property
    def runner(self) -> RunnerType:
        if self._runner is None:
            raise gymnasium.error.ResetNeeded("no episode was started: call reset() first")
        return self._runner

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start the episode of `seed`; without one, of the next number of the generator."""
        super().reset(seed=seed)
        chosen = seed if seed is not None else int(self.np_random.integers(1 << 31))
        self._runner, self._rewarded = self._start(chosen), 0.0
        return self._observation(), {"seed": chosen, **self._first_info(), **self._info()}

    def step(
        self, action: NDArray[Any]
    ) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        if self._runner is None or self._runner.over:
            raise gymnasium.error.ResetNeeded("no episode is in progress: call reset() first")
        legal = self._runner.decide(np.asarray(action, np.float32))
        total = self._reward_so_far()
        reward, self._rewarded = (total - self._rewarded) / self._reward_unit, total
        info = {"legal": legal, **self._info()}
        return self._observation(), reward, False, self._runner.over, info

    def _observation(self) -> ObservationDict:
        """Copy the tables, which every step overwrites."""
        return {name: table.copy() for name, table in self.runner.view._asdict().items()}

    def _first_info(self) -> dict[str, Any]:
        """Entries of the `info` of a reset, beside those of `_info`."""
        return {}

    @abstractmethod
    def _start(self, seed: int) -> RunnerType:
        """The episode of `seed` at its first decision."""

    @abstractmethod
    def _reward_so_far(self) -> float:
        """The reward since the episode began, in `_reward_unit`s."""

    @abstractmethod
    def _info(self) -> dict[str, Any]: ...
