"""An engine for any vector environment: one forward pass for all simulators of a worker."""

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
from loadmaster.platform.rl.rollout_buffer import RolloutBuffer, Rows, Tree, leaves, mapped

TOGETHER = 32  # environments shown to a module at once, where they are sorted by rows in use
TIME_S = "time_s"  # in infos: the moment each environment has reached; else steps are seconds

MakeEnvs = Callable[[int, float | None], "VectorEnv[Any, Any, Any]"]  # how many, mean horizon
Who = slice | NDArray[np.int64]  # which environments
Outcome = Callable[[Any, int], Mapping[str, float]]  # the environments, which one has just ended


class VectorEngine:
    """A `RolloutEngine` over Gymnasium's vector environments and any RLModule.

    Observations and actions may be trees, with a branch for each agent or shared by all of them;
    one module decides for all agents at once. Environments seeded alike must meet the same input.
    Episodes are cut from arrays once they are over, not built step by step. `outcome` tells an
    episode's figures as it ends; `cost` is the one of them to be lowered, the return negated
    where there is none.

    A module that draws by the column `luck` (models/keyed_random.py) draws the same whatever the
    batch, so the number of workers changes nothing.
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
        lucks = torch.tensor([own.luck for own in assignments])
        torch.manual_seed(assignments[0].luck)  # for modules that draw as torch does
        # One horizon is as good as another for environments that share a batch.
        envs = self._make(len(assignments), assignments[0].horizon_s)
        seeds = [assignment.sequence for assignment in assignments]
        film = self._film(envs, module.forward_exploration, module, seeds, lucks)
        envs.close()
        return [
            film.cut(index, np.random.default_rng(own.luck), own.keep)
            for index, own in enumerate(assignments)
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """What the best decisions cost."""
        envs = self._make(len(seeds), None)
        film = self._film(envs, module.forward_inference, module, list(seeds), None)
        envs.close()
        return [
            EpisodeScore(self._cost_of(film, index), int(length), self._loss_of(film, index))
            for index, length in enumerate(film.lengths)
        ]

    def _cost_of(self, film: RolloutBuffer, index: int) -> float:
        if self._cost is not None:
            return film.figures[index][self._cost]
        return self._loss_of(film, index)

    def _loss_of(self, film: RolloutBuffer, index: int) -> float:
        return -float(film.tables["reward"][: film.lengths[index], index].sum())

    def _film(
        self,
        envs: Any,
        forward: Callable[[Any], Any],
        module: Any,
        seeds: list[int],
        lucks: torch.Tensor | None,
    ) -> RolloutBuffer:
        """Step all environments until the last is over."""
        observations, infos = envs.reset(seed=seeds)
        film = RolloutBuffer(envs.num_envs, self._rows)
        running = np.ones(envs.num_envs, np.bool_)
        time_s = _time_of(infos, np.zeros(envs.num_envs))
        while running.any():
            shown = film.see(observations, time_s)
            luck = None if lucks is None else splitmix64(lucks, film.steps)
            chosen = [
                self._decided(module, forward, shown, who, luck)
                for who in self._parts(shown, running)
            ]
            # Each is 0 where the others are not.
            whole = reduce(lambda one, other: mapped(np.add, one, other), chosen)
            observations, rewards, terminated, truncated, infos = envs.step(whole["actions"])
            film.note(**whole, reward=rewards)
            time_s = _time_of(infos, time_s + 1)
            film.lengths += running
            over = terminated | truncated
            for index in map(int, np.flatnonzero(running & over)):
                film.ends_s[index] = time_s[index]
                if self._outcome is not None:
                    film.figures[index] = self._outcome(envs, index)
                if not terminated[index]:
                    film.cut_off(index, observations)
            running &= ~over
        return film

    def _parts(self, shown: Tree, running: NDArray[np.bool_]) -> list[Who]:
        """The environments that go on, in groups that are shown to the module together.

        All at once, unless they differ in how many rows they use: one long queue would lengthen
        all the short ones.
        """
        if self._rows is None:
            return [slice(None) if running.all() else np.flatnonzero(running)]
        going = np.flatnonzero(running)
        used = shown[self._rows.mask][going].sum(1)
        shortest_first = going[np.argsort(used, kind="stable")]
        return list(np.array_split(shortest_first, math.ceil(len(going) / TOGETHER)))

    def _decided(
        self,
        module: Any,
        forward: Callable[[Any], Any],
        shown: Tree,
        who: Who,
        luck: torch.Tensor | None,
    ) -> dict[str, Tree]:
        """What `who` do, and 0 for everybody else."""
        batch = {Columns.OBS: mapped(torch.as_tensor, self._seen(shown, who))}
        if luck is not None:
            batch[RNG_KEY] = luck[who]
        with torch.no_grad():
            actions, logs = _chosen(module, forward, forward(batch))
        count = len(next(leaves(shown)))
        return {
            "actions": self._for_all(actions, shown, who, count),
            "log_probability": _spread(logs, who, count),
        }

    def _seen(self, observations: Tree, who: Who) -> Tree:
        """Of the environments `who`, without the rows that none of them uses."""
        if self._rows is None:
            return mapped(lambda table: table[who], observations)
        used = int(observations[self._rows.mask][who].sum(1).max(initial=1))
        return {
            name: table[who, :used] if name in self._rows.tables else table[who]
            for name, table in observations.items()
        }

    def _for_all(self, actions: Tree, observations: Tree, who: Who, count: int) -> Tree:
        """Every environment is given an action: zeros where its episode is over."""
        if self._rows is None:
            return mapped(lambda action: _spread(action, who, count), actions)
        rows = observations[self._rows.mask].shape[1]
        return {
            agent: _spread(action, who, count, rows if agent in self._rows.actions else None)
            for agent, action in actions.items()
        }


def _spread(values: NDArray[Any], who: Who, count: int, rows: int | None = None) -> NDArray[Any]:
    """(count, ...) with `values` where `who` is; `rows` also lengthens the second axis."""
    if isinstance(who, slice) and rows in (None, *values.shape[1:2]):
        return values
    shape = (count, *values.shape[1:]) if rows is None else (count, rows, *values.shape[2:])
    whole = np.zeros(shape, values.dtype)
    if rows is None:
        whole[who] = values
    else:
        whole[who, : values.shape[1]] = values
    return whole


def _time_of(infos: Mapping[str, Any], otherwise: NDArray[Any]) -> NDArray[Any]:
    return np.array(infos[TIME_S], np.float64) if TIME_S in infos else otherwise


def _chosen(
    module: Any, forward: Callable[[Any], Any], chosen: Mapping[str, Any]
) -> tuple[Tree, NDArray[Any]]:
    """Actions and their log-probabilities, from a module that draws itself or one that leaves it.

    Greedy actions need no log-probability: nobody learns from them.
    """
    if Columns.ACTIONS in chosen:
        actions = mapped(lambda action: action.numpy(), chosen[Columns.ACTIONS])
        logs = chosen.get(Columns.ACTION_LOGP)
        return actions, np.zeros(len(next(leaves(actions)))) if logs is None else logs.numpy()
    if forward == module.forward_inference:
        kind = module.get_inference_action_dist_cls()
        distribution = kind.from_logits(chosen[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        actions = distribution.sample().numpy()
        return actions, np.zeros(len(actions))
    kind = module.get_exploration_action_dist_cls()
    distribution = kind.from_logits(chosen[Columns.ACTION_DIST_INPUTS])
    drawn = distribution.sample()
    return drawn.numpy(), distribution.logp(drawn).numpy()
