"""PettingZoo's parallel environments as a vector environment, for those that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.rl.rollout_buffer import Tree, mapped
from loadmaster.platform.rl.vector_rollout import TIME_S


class ParallelTeams:
    """Environments of agents that share a reward, stepped one after the other.

    Observations and actions have a branch for each agent. An episode that is over waits for the
    others: what it is told to do is ignored.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs, self.num_envs = list(envs), len(envs)

    def reset(self, *, seed: Sequence[int]) -> tuple[Tree, dict[str, Any]]:
        begun = [env.reset(seed=own) for env, own in zip(self.envs, seed, strict=True)]
        self._seen = [observations for observations, _ in begun]
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        self._time_s = np.zeros(self.num_envs)
        for index, (_, infos) in enumerate(begun):
            self._time_s[index] = _time_of(infos, 0.0)
        return self._observations(), {TIME_S: self._time_s.copy()}

    def step(
        self, actions: Mapping[str, Tree]
    ) -> tuple[Tree, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        rewards = np.zeros(self.num_envs)
        for index in np.flatnonzero(~(self._terminated | self._truncated)):
            chosen = {agent: mapped(lambda a, i=index: a[i], own) for agent, own in actions.items()}
            seen, reward, over, cut_off, infos = self.envs[index].step(chosen)
            if len(set(reward.values())) != 1:
                raise ValueError(f"agents that learn as a team share their reward; got {reward}")
            self._seen[index] = seen
            rewards[index] = next(iter(reward.values()))
            self._terminated[index] = all(over.values())
            self._truncated[index] = all(cut_off.values())
            self._time_s[index] = _time_of(infos, self._time_s[index] + 1)
        infos = {TIME_S: self._time_s.copy()}
        return self._observations(), rewards, self._terminated.copy(), self._truncated.copy(), infos

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _observations(self) -> Tree:
        return mapped(lambda *tables: np.stack(tables), *self._seen)


def _time_of(infos: Mapping[str, Mapping[str, Any]], otherwise: float) -> float:
    """The moment that an agent's infos tell; else steps are seconds."""
    return float(next((own[TIME_S] for own in infos.values() if TIME_S in own), otherwise))
