"""A rollout engine for any vector environment: one forward pass for all its environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from loadmaster.models.keyed_random import RNG_KEY, splitmix64
from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutSpec
from loadmaster.platform.rl.rollout_buffer import RolloutBuffer, Rows, Tree, leaves, tree_map

BATCH_ENVS = 32  # environments in a forward pass, where they are sorted by rows in use
TIME_S = "time_s"  # in infos: the environments' clocks; without it a step is a second

MakeEnvs = Callable[[int, float | None], "VectorEnv[Any, Any, Any]"]  # count, mean horizon
Indices = slice | NDArray[np.int64]  # of environments
Outcome = Callable[[Any, int], Mapping[str, float]]  # environments, index -> episode metrics


class VectorEngine:
    """A `RolloutEngine` over Gymnasium's vector environments and any RLModule.

    Observations and actions may be trees, with a branch for each agent or shared by all of them;
    one module decides for all agents at once. Environments seeded alike must get the same input.
    `outcome` returns an episode's metrics when it ends; `cost` names the one to minimise, the
    negated return where there is none.

    A module that samples by the column `RNG_KEY` (models/keyed_random.py) samples the same in any
    batch, so the number of workers does not change the result.
    """

    def __init__(
        self,
        make: MakeEnvs,
        outcome: Outcome | None = None,
        cost: str | None = None,
        rows: Rows | None = None,
    ) -> None:
        self._make, self._outcome, self._cost, self._rows = make, outcome, cost, rows

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        action_seeds = torch.tensor([own.action_seed for own in assignments])
        torch.manual_seed(
            assignments[0].action_seed
        )  # for modules that sample by torch's generator
        # Environments that share a batch share a horizon.
        envs = self._make(len(assignments), assignments[0].horizon_s)
        seeds = [assignment.sequence for assignment in assignments]
        buffer = self._run(envs, module.forward_exploration, module, seeds, action_seeds)
        envs.close()
        return [
            buffer.extract(index, np.random.default_rng(own.action_seed), own.keep)
            for index, own in enumerate(assignments)
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        envs = self._make(len(seeds), None)
        buffer = self._run(envs, module.forward_inference, module, list(seeds), None)
        envs.close()
        scores = []
        for index, length in enumerate(buffer.lengths):
            loss = -float(buffer.tables["reward"][:length, index].sum())
            cost = loss if self._cost is None else buffer.figures[index][self._cost]
            scores.append(EpisodeScore(cost, int(length), loss))
        return scores

    def _run(
        self,
        envs: Any,
        forward: Callable[[Any], Any],
        module: Any,
        seeds: list[int],
        action_seeds: torch.Tensor | None,
    ) -> RolloutBuffer:
        """Step all environments until the last episode ends."""
        observations, infos = envs.reset(seed=seeds)
        buffer = RolloutBuffer(envs.num_envs, self._rows)
        running = np.ones(envs.num_envs, np.bool_)
        time_s = _time_of(infos, np.zeros(envs.num_envs))
        while running.any():
            shown = buffer.add_observation(observations, time_s)
            rng_key = None if action_seeds is None else splitmix64(action_seeds, buffer.steps)
            decided = [
                self._decide(module, forward, shown, indices, rng_key)
                for indices in self._batches(shown, running)
            ]
            # Each part is 0 where the others are not.
            whole = reduce(lambda one, other: tree_map(np.add, one, other), decided)
            observations, rewards, terminated, truncated, infos = envs.step(whole["actions"])
            buffer.add_step(**whole, reward=rewards)
            time_s = _time_of(infos, time_s + 1)
            buffer.lengths += running
            over = terminated | truncated
            for index in map(int, np.flatnonzero(running & over)):
                buffer.ends_s[index] = time_s[index]
                if self._outcome is not None:
                    buffer.figures[index] = self._outcome(envs, index)
                if not terminated[index]:
                    buffer.add_truncation(index, observations)
            running &= ~over
        return buffer

    def _batches(self, shown: Tree, running: NDArray[np.bool_]) -> list[Indices]:
        """The running environments, in batches for the module.

        One batch, unless they differ in rows in use: one long queue would pad all short ones.
        """
        if self._rows is None:
            return [slice(None) if running.all() else np.flatnonzero(running)]
        going = np.flatnonzero(running)
        used = shown[self._rows.mask][going].sum(1)
        shortest_first = going[np.argsort(used, kind="stable")]
        return list(np.array_split(shortest_first, math.ceil(len(going) / BATCH_ENVS)))

    def _decide(
        self,
        module: Any,
        forward: Callable[[Any], Any],
        shown: Tree,
        indices: Indices,
        rng_key: torch.Tensor | None,
    ) -> dict[str, Tree]:
        """Actions and log-probabilities at `indices`, zeros elsewhere."""
        batch = {Columns.OBS: tree_map(torch.as_tensor, self._select(shown, indices))}
        if rng_key is not None:
            batch[RNG_KEY] = rng_key[indices]
        with torch.no_grad():
            actions, logs = _actions_of(module, forward, forward(batch))
        count = len(next(leaves(shown)))
        return {
            "actions": self._spread_actions(actions, shown, indices, count),
            "log_probability": _spread(logs, indices, count),
        }

    def _select(self, observations: Tree, indices: Indices) -> Tree:
        """Observations at `indices`, without rows that none of them uses."""
        if self._rows is None:
            return tree_map(lambda table: table[indices], observations)
        used = int(observations[self._rows.mask][indices].sum(1).max(initial=1))
        return {
            name: table[indices, :used] if name in self._rows.tables else table[indices]
            for name, table in observations.items()
        }

    def _spread_actions(
        self, actions: Tree, observations: Tree, indices: Indices, count: int
    ) -> Tree:
        if self._rows is None:
            return tree_map(lambda action: _spread(action, indices, count), actions)
        rows = observations[self._rows.mask].shape[1]
        return {
            agent: _spread(action, indices, count, rows if agent in self._rows.actions else None)
            for agent, action in actions.items()
        }


def _spread(
    values: NDArray[Any], indices: Indices, count: int, rows: int | None = None
) -> NDArray[Any]:
    """(count, ...) with `values` at `indices`, else 0; `rows` also extends the second axis."""
    if isinstance(indices, slice) and rows in (None, *values.shape[1:2]):
        return values
    shape = (count, *values.shape[1:]) if rows is None else (count, rows, *values.shape[2:])
    whole = np.zeros(shape, values.dtype)
    if rows is None:
        whole[indices] = values
    else:
        whole[indices, : values.shape[1]] = values
    return whole


def _time_of(infos: Mapping[str, Any], default: NDArray[Any]) -> NDArray[Any]:
    return np.array(infos[TIME_S], np.float64) if TIME_S in infos else default


def _actions_of(
    module: Any, forward: Callable[[Any], Any], output: Mapping[str, Any]
) -> tuple[Tree, NDArray[Any]]:
    """Actions and log-probabilities, sampled here where the module returns a distribution.

    Greedy actions have log-probability 0: nothing is learnt from them.
    """
    if Columns.ACTIONS in output:
        actions = tree_map(lambda action: action.numpy(), output[Columns.ACTIONS])
        logs = output.get(Columns.ACTION_LOGP)
        return actions, np.zeros(len(next(leaves(actions)))) if logs is None else logs.numpy()
    if forward == module.forward_inference:
        kind = module.get_inference_action_dist_cls()
        distribution = kind.from_logits(output[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        actions = distribution.sample().numpy()
        return actions, np.zeros(len(actions))
    kind = module.get_exploration_action_dist_cls()
    distribution = kind.from_logits(output[Columns.ACTION_DIST_INPUTS])
    sampled = distribution.sample()
    return sampled.numpy(), distribution.logp(sampled).numpy()
