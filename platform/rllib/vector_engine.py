"""An engine for any vector environment: one forward pass for all simulators of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from loadmaster.platform.rllib.advantages import Rollout
from loadmaster.platform.rllib.recording import Assignment, Recording, Verdict

TIME_S = "time_s"  # in infos: the moment each environment has reached; else steps are seconds
OBSERVATION = "observation"  # the one column of an observation that is no Dict

MakeEnvs = Callable[[int, float | None], "VectorEnv[Any, Any, Any]"]  # how many, mean horizon


class VectorEngine:
    """A `RolloutEngine` over Gymnasium's vector environments and any RLModule.

    Environments seeded alike must meet the same input. Episodes are cut from arrays once they are
    over, not built step by step.
    """

    def __init__(self, make: MakeEnvs) -> None:
        self._make = make

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        torch.manual_seed(assignments[0].luck)
        # One horizon is as good as another for environments that share a batch.
        envs = self._make(len(assignments), assignments[0].horizon_s)
        seeds = [assignment.sequence for assignment in assignments]
        film = self._film(envs, module.forward_exploration, module, seeds)
        envs.close()
        return [
            _cut(film, index, np.random.default_rng(own.luck), own.keep)
            for index, own in enumerate(assignments)
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[Verdict]:
        """What the best decisions cost is the return, negated."""
        envs = self._make(len(seeds), None)
        film = self._film(envs, module.forward_inference, module, list(seeds))
        envs.close()
        return [
            Verdict(-float(film.rewards[:length, i].sum()), int(length))
            for i, length in enumerate(film.lengths)
        ]

    def _film(
        self, envs: Any, forward: Callable[[Any], Any], module: Any, seeds: list[int]
    ) -> _Film:
        """Step all environments until the last is over."""
        observations, infos = envs.reset(seed=seeds)
        count = envs.num_envs
        running = np.ones(count, np.bool_)
        lengths = np.zeros(count, np.int64)
        frames: list[tuple[Any, ...]] = []
        time_s = _time_of(infos, np.zeros(count))
        ends = time_s.copy()
        while running.any():
            shown = {name: np.array(table) for name, table in _tables(observations).items()}
            with torch.no_grad():
                chosen = forward({Columns.OBS: _tensors(observations)})
            actions, log_probability = _chosen(module, forward, chosen)
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            frames.append((shown, actions, log_probability, np.array(rewards), time_s))
            time_s = _time_of(infos, time_s + 1)
            lengths += running
            ended = running & (terminated | truncated)
            ends[ended] = time_s[ended]
            running &= ~ended
        tables = [frame[0] for frame in frames]
        actions, logs, rewards, times = (
            np.stack([frame[place] for frame in frames]) for place in range(1, 5)
        )
        shown = {name: np.stack([each[name] for each in tables]) for name in tables[0]}
        return _Film(shown, actions, logs, rewards, times, lengths, ends)


class _Film(NamedTuple):
    """All environments side by side: S steps, B environments."""

    tables: Mapping[str, NDArray[Any]]  # (S, B, ...)
    actions: NDArray[Any]  # (S, B, ...)
    log_probability: NDArray[Any]  # (S, B)
    rewards: NDArray[Any]  # (S, B)
    time_s: NDArray[Any]  # (S, B)
    lengths: NDArray[np.int64]  # (B,) what follows belongs to no episode
    ends: NDArray[Any]  # (B,)


def _cut(film: _Film, index: int, rng: np.random.Generator, keep: float) -> Recording:
    length = film.lengths[index]
    kept = np.flatnonzero(rng.random(length) < keep)
    observations = {name: table[kept, index] for name, table in film.tables.items()}
    rewards = film.rewards[:length, index].astype(np.float64)
    return Recording(
        observations=observations.get(OBSERVATION, observations),
        actions=film.actions[kept, index],
        log_probability=film.log_probability[kept, index].astype(np.float64),
        kept=kept,
        rollout=Rollout(
            film.time_s[:length, index].astype(np.float64), rewards, float(film.ends[index])
        ),
        figures={"return": float(rewards.sum())},
    )


def _tables(observations: Any) -> Mapping[str, Any]:
    return observations if isinstance(observations, Mapping) else {OBSERVATION: observations}


def _tensors(observations: Any) -> Any:
    if isinstance(observations, Mapping):
        return {name: torch.as_tensor(table) for name, table in observations.items()}
    return torch.as_tensor(observations)


def _time_of(infos: Mapping[str, Any], otherwise: NDArray[Any]) -> NDArray[Any]:
    return np.array(infos[TIME_S], np.float64) if TIME_S in infos else otherwise


def _chosen(
    module: Any, forward: Callable[[Any], Any], chosen: Mapping[str, Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Actions and their log-probabilities, from a module that draws itself or one that leaves it.

    Greedy actions need no log-probability: nobody learns from them.
    """
    if Columns.ACTIONS in chosen:
        actions = chosen[Columns.ACTIONS].numpy()
        logs = chosen.get(Columns.ACTION_LOGP)
        return actions, np.zeros(len(actions)) if logs is None else logs.numpy()
    if forward == module.forward_inference:
        kind = module.get_inference_action_dist_cls()
        distribution = kind.from_logits(chosen[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        actions = distribution.sample().numpy()
        return actions, np.zeros(len(actions))
    kind = module.get_exploration_action_dist_cls()
    distribution = kind.from_logits(chosen[Columns.ACTION_DIST_INPUTS])
    drawn = distribution.sample()
    return drawn.numpy(), distribution.logp(drawn).numpy()
