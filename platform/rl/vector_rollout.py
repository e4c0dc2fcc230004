"""A rollout engine for any vector environment: one forward pass for all its environments."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from loadmaster.models.ddpg.settings import CONTEXT_ID
from loadmaster.models.keyed_random import RNG_KEY, splitmix64
from loadmaster.models.ragged import Ragged, Tree, leaves, rows_of, tree_map
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import (
    EpisodeScore,
    Recording,
    RolloutSpec,
)

INITIAL_STEPS = 64  # of a RolloutBuffer
BATCH_ENVS = 32  # environments in a forward pass, where they are sorted by rows in use
TIME_S = "time_s"  # in infos: the environments' clocks; without it a step is a second

MakeEnvs = Callable[[int, float | None], "VectorEnv[Any, Any, Any]"]  # count, mean horizon
Indices = slice | NDArray[np.int64]  # of environments
Outcome = Callable[[Any, int], Mapping[str, float]]  # environments, index -> episode metrics


class Rows(NamedTuple):
    """Which tables have one row per item of a queue whose length changes, such as waiting jobs.

    Rows in use come first. Only they are passed to the module, up to the longest queue of the
    batch, and only they are recorded.
    """

    mask: str  # observation table of rows in use: (rows,) bool
    tables: frozenset[str]  # observation tables with such rows, including the mask
    actions: frozenset[str]  # agents whose actions have such rows


class RolloutBuffer:
    """Tables (S steps, B environments, ...) of environments that are stepped together."""

    def __init__(self, count: int, rows: Rows | None = None) -> None:
        self.rows = rows
        self.steps, self.capacity = 0, INITIAL_STEPS
        self.tables: dict[str, Tree] = {}
        self.lengths = np.zeros(count, np.int64)  # of each episode; later steps are ignored
        self.ends_s = np.zeros(count)
        self.last: dict[int, Tree] = {}  # final observations of truncated episodes
        self.figures: dict[int, Mapping[str, float]] = {}  # metrics of finished episodes

    def add_observation(self, observations: Tree, time_s: NDArray[np.float64]) -> Tree:
        """Copy the observations of the next step, since environments may overwrite theirs."""
        if self.steps == self.capacity:
            self.capacity = 2 * self.capacity
            self.tables = tree_map(lambda table: np.concatenate([table, table]), self.tables)
        self._write(observations=observations, time_s=time_s)
        return tree_map(lambda table: table[self.steps], self.tables["observations"])

    def add_step(self, **done: Tree) -> None:
        """Write `actions`, `log_probability` and `reward` and complete the step."""
        self._write(**done)
        self.steps += 1

    def add_truncation(self, index: int, observations: Tree) -> None:
        """Keep the final observation of an episode that was truncated."""
        self.last[index] = tree_map(lambda table: np.array(table[index : index + 1]), observations)

    def extract(self, index: int, rng: np.random.Generator, keep: float) -> Recording:
        """The episode of environment `index`, with a share `keep` of decisions drawn by `rng`."""
        length = self.lengths[index]
        kept = np.flatnonzero(rng.random(length) < keep)
        # Copies even where all are kept: a view would hold the whole buffer in memory.
        part = tree_map(lambda table: table[kept, index], self.tables)
        observations, actions = part["observations"], part["actions"]
        last = self.last.get(index)
        if self.rows is not None:
            mask = self.rows.mask
            last = last and _without_padding(last, last, self.rows.tables, mask)
            actions = _without_padding(actions, observations, self.rows.actions, mask)
            observations = _without_padding(observations, observations, self.rows.tables, mask)
        reward = self.tables["reward"][:length, index].astype(np.float64)
        time_s = self.tables["time_s"][:length, index].astype(np.float64)
        return Recording(
            observations=observations,
            actions=actions,
            log_probability=part["log_probability"].astype(np.float64),
            kept=kept,
            rollout=Rollout(time_s, reward, float(self.ends_s[index])),
            figures={"return": float(reward.sum()), **self.figures.get(index, {})},
            last=last,
        )

    def _write(self, **shown: Tree) -> None:
        for name, tree in shown.items():
            if name not in self.tables:
                self.tables[name] = tree_map(
                    lambda leaf: np.empty_like(leaf, shape=(self.capacity, *np.shape(leaf))), tree
                )
            for table, leaf in zip(leaves(self.tables[name]), leaves(tree), strict=True):
                table[self.steps] = leaf


class VectorEngine:
    """A `RolloutEngine` over Gymnasium's vector environments and any RLModule.

    Observations and actions may be trees, with a branch for each agent or shared by all of them;
    one module decides for all agents at once. Environments seeded alike must get the same input.
    `outcome` returns an episode's metrics when it ends; `metric` names the one to report, the
    return where there is none.

    A module with a table of contexts (models/ddpg/module.py) gets the row of each environment:
    `RolloutSpec.context`, and of validations `context_of` the seed.

    A module that samples by the column `RNG_KEY` (models/keyed_random.py) samples the same in any
    batch, so the number of workers does not change the result.
    """

    def __init__(
        self,
        make: MakeEnvs,
        outcome: Outcome | None = None,
        metric: str | None = None,
        rows: Rows | None = None,
        context_of: Callable[[int], int] = lambda seed: 0,
    ) -> None:
        self._make, self._outcome, self._metric, self._rows = make, outcome, metric, rows
        self._context_of = context_of

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        action_seeds = torch.tensor([own.action_seed for own in assignments])
        # For modules that sample by torch's generator.
        torch.manual_seed(assignments[0].action_seed)
        # Environments that share a batch share a horizon.
        envs = self._make(len(assignments), assignments[0].horizon_s)
        seeds = [assignment.sequence for assignment in assignments]
        columns = self._contexts(module, [assignment.context for assignment in assignments])
        buffer = self._run(envs, module.forward_exploration, module, seeds, action_seeds, columns)
        envs.close()
        return [
            buffer.extract(index, np.random.default_rng(own.action_seed), own.keep)
            for index, own in enumerate(assignments)
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        envs = self._make(len(seeds), None)
        columns = self._contexts(module, [self._context_of(seed) for seed in seeds])
        buffer = self._run(envs, module.forward_inference, module, list(seeds), None, columns)
        envs.close()
        scores = []
        for index, length in enumerate(buffer.lengths):
            total = float(buffer.tables["reward"][:length, index].sum())
            value = total if self._metric is None else buffer.figures[index][self._metric]
            scores.append(EpisodeScore(value, int(length), loss=-total))
        return scores

    @staticmethod
    def _contexts(module: Any, contexts: Sequence[int]) -> dict[str, torch.Tensor]:
        """Columns that stay the same in all steps."""
        has_table = len(getattr(module, "contexts", ())) > 0
        return {CONTEXT_ID: torch.tensor(contexts)} if has_table else {}

    def _run(
        self,
        envs: Any,
        forward: Callable[[Any], Any],
        module: Any,
        seeds: list[int],
        action_seeds: torch.Tensor | None,
        columns: Mapping[str, torch.Tensor],
    ) -> RolloutBuffer:
        """Step all environments until the last episode ends; `columns` are those of all steps."""
        observations, infos = envs.reset(seed=seeds)
        buffer = RolloutBuffer(envs.num_envs, self._rows)
        running = np.ones(envs.num_envs, np.bool_)
        time_s = _time_of(infos, np.zeros(envs.num_envs))
        while running.any():
            shown = buffer.add_observation(observations, time_s)
            more = dict(columns)
            if action_seeds is not None:
                more[RNG_KEY] = splitmix64(action_seeds, buffer.steps)
            decided = [
                self._decide(module, forward, shown, indices, more)
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
        going = np.flatnonzero(running)
        if self._rows is None:
            return [slice(None) if running.all() else going]
        used = shown[self._rows.mask][going].sum(1)
        shortest_first = going[np.argsort(used, kind="stable")]
        return list(np.array_split(shortest_first, math.ceil(len(going) / BATCH_ENVS)))

    def _decide(
        self,
        module: Any,
        forward: Callable[[Any], Any],
        shown: Tree,
        indices: Indices,
        columns: Mapping[str, torch.Tensor],
    ) -> dict[str, Tree]:
        """Actions and log-probabilities at `indices`, zeros elsewhere."""
        batch = {Columns.OBS: tree_map(torch.as_tensor, self._select(shown, indices))}
        batch |= {name: column[indices] for name, column in columns.items()}
        with torch.no_grad():
            actions, logs = _actions_of(module, forward, forward(batch))
        count = rows_of(shown)
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

    def _spread_actions(self, actions: Tree, shown: Tree, indices: Indices, count: int) -> Tree:
        if self._rows is None:
            return tree_map(lambda action: _spread(action, indices, count), actions)
        rows = shown[self._rows.mask].shape[1]
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


def _without_padding(
    tree: Mapping[str, Any], observation: Mapping[str, Any], names: frozenset[str], mask: str
) -> dict[str, Any]:
    """(K, rows, ...) tables of these names as ragged columns, others unchanged."""
    used = observation[mask].astype(np.bool_)  # (K, rows)
    counts = used.sum(1)
    return {
        name: Ragged(table[used], counts) if name in names else table
        for name, table in tree.items()
    }


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
        return actions, np.zeros(rows_of(actions)) if logs is None else logs.numpy()
    if forward == module.forward_inference:
        kind = module.get_inference_action_dist_cls()
        distribution = kind.from_logits(output[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        actions = distribution.sample().numpy()
        return actions, np.zeros(len(actions))
    kind = module.get_exploration_action_dist_cls()
    distribution = kind.from_logits(output[Columns.ACTION_DIST_INPUTS])
    sampled = distribution.sample()
    return sampled.numpy(), distribution.logp(sampled).numpy()
