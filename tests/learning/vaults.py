"""A cooperative game of two agents, for tests of MAPPO.

At every step each agent observes a symbol of its own and turns one of three keys. If both keys fit,
a vault opens and pays a step later. A toll, positive or negative, is due at every step. It depends
on the marks of both agents and on no action, is far larger than the pay, and is predictable only
from both marks together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from loadmaster.models.keyed_random import RNG_KEY, splitmix64
from loadmaster.models.policy import ENTROPY
from loadmaster.platform.rl.mappo import MappoConfig
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Learning, Rollouts

AGENTS = ("left", "right")
SYMBOLS, MARKS, STEPS, TOLL = 3, 3, 10, 4.0
BEST = STEPS - 1  # vaults that can pay before the end
SEEDS = range(100, 132)  # of evaluation episodes
SEEN = SYMBOLS + MARKS + 2  # numbers an agent observes: also whether a vault opened, and the time


def game_of(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Symbols (STEPS + 1, agents) and marks (agents,)."""
    rng = np.random.default_rng(seed)
    return rng.integers(SYMBOLS, size=(STEPS + 1, 2)), rng.integers(MARKS, size=2)


def toll_of(marks: NDArray[np.int64]) -> NDArray[np.float64]:
    """(...,) a step, of marks (..., agents)."""
    return np.asarray(TOLL * (marks.sum(-1) % MARKS - 1.0))


class Vaults:
    """Many games side by side, as Gymnasium's vector environments behave."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, *, seed: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
        self.symbols, self.marks = map(np.stack, zip(*map(game_of, seed), strict=True))
        self.tolls = toll_of(self.marks)
        self.opened = np.zeros(self.num_envs, np.bool_)
        self.step_now = 0
        return self._seen(), {}

    def step(self, actions: dict[str, NDArray[np.int64]]) -> tuple[Any, ...]:
        now = self.symbols[:, self.step_now % STEPS]
        rewards = self.opened - self.tolls
        self.opened = (np.stack([actions[agent] for agent in AGENTS], 1) == now).all(1)
        self.step_now += 1
        over = np.full(self.num_envs, self.step_now == STEPS)
        return self._seen(), rewards, over, np.zeros(self.num_envs, np.bool_), {}

    def _seen(self) -> dict[str, NDArray[np.float32]]:
        shown = np.eye(SYMBOLS, dtype=np.float32)[self.symbols[:, self.step_now % (STEPS + 1)]]
        marks, opened = np.eye(MARKS)[self.marks], self.opened[:, None]
        passed = np.full((self.num_envs, 1), self.step_now / STEPS)
        return {
            agent: np.concatenate([shown[:, i], marks[:, i], opened, passed], 1, dtype=np.float32)
            for i, agent in enumerate(AGENTS)
        }

    def close(self) -> None:
        pass


class Keyholders(TorchRLModule):
    """Each agent scores its keys by its own observation."""

    def setup(self) -> None:
        self.network = nn.ModuleDict({agent: nn.Linear(SEEN, SYMBOLS) for agent in AGENTS})
        for scores in self.network.values():
            nn.init.zeros_(scores.weight)

    def _scores(self, batch: dict[str, Any]) -> Tensor:
        """(B, agents, keys) log-probabilities"""
        seen = batch[Columns.OBS]
        return torch.stack([self.network[agent](seen[agent]) for agent in AGENTS], 1).log_softmax(2)

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: _by_agent(self._scores(batch).argmax(2))}

    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        logs = self._scores(batch)
        draw = _uniform(batch[RNG_KEY])
        chosen = (logs.exp().cumsum(2) < draw).sum(2).clamp(max=SYMBOLS - 1)
        return {Columns.ACTIONS: _by_agent(chosen), Columns.ACTION_LOGP: _at(logs, chosen)}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        logs = self._scores(batch)
        chosen = torch.stack([batch[Columns.ACTIONS][agent] for agent in AGENTS], 1)
        return {Columns.ACTION_LOGP: _at(logs, chosen), ENTROPY: -(logs.exp() * logs).sum(2)}


class VaultCritic(TorchRLModule):
    """The critic. `model_config`: whether it `sees_actions`, and which `agents` it observes."""

    def setup(self) -> None:
        self.agents = self.model_config["agents"]
        self.sees_actions = self.model_config["sees_actions"]
        numbers = len(self.agents) * (SEEN + (SYMBOLS if self.sees_actions else 0))
        self.worth = nn.Sequential(
            nn.Linear(numbers, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        inputs = [batch[Columns.OBS][agent] for agent in self.agents]
        if self.sees_actions:
            done = (batch[Columns.ACTIONS][agent] for agent in self.agents)
            inputs += [nn.functional.one_hot(key, SYMBOLS).float() for key in done]
        return {Columns.VF_PREDS: self.worth(torch.cat(inputs, 1)).squeeze(1)}


def _uniform(key: Tensor) -> Tensor:
    """(B, agents, 1) in the open interval (0, 1), by the keys (B,)."""
    stream = splitmix64(splitmix64(key, 0), -1)
    bits = splitmix64(stream[:, None, None], torch.arange(len(AGENTS))[:, None])
    return (((bits >> 41) & ((1 << 23) - 1)) + 0.5) * 2.0**-23


def _by_agent(keys: Tensor) -> dict[str, Tensor]:
    return dict(zip(AGENTS, keys.unbind(1), strict=True))


def _at(logs: Tensor, chosen: Tensor) -> Tensor:
    return logs.gather(2, chosen.unsqueeze(2)).squeeze(2)


OBSERVATIONS = spaces.Dict({agent: spaces.Box(0, 1, (SEEN,), np.float32) for agent in AGENTS})
ACTIONS = spaces.Dict({agent: spaces.Discrete(SYMBOLS) for agent in AGENTS})


def make_engine() -> VectorEngine:
    return VectorEngine(lambda count, horizon_s: Vaults(count))


def vaults_config(
    learning: Learning, workers: int = 0, agents: Sequence[str] = AGENTS, seed: int = 5
) -> MappoConfig:
    config = MappoConfig()
    config.environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
    config.env_runners(num_env_runners=workers)
    config.learners(num_learners=0)
    config.training(lr=0.05, grad_clip=learning.gradient_clip, grad_clip_by="global_norm")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Keyholders))
    config.debugging(seed=seed, log_level="ERROR")
    groups = Rollouts(workers=workers, sequences=16, per_sequence=2)
    config.rollout_engine(engine=make_engine, sampling=groups, learning=learning)
    kind = learning.critic.kind
    seen = {"sees_actions": kind == "q", "agents": tuple(agents)}
    critic = RLModuleSpec(module_class=VaultCritic, model_config=seen)
    return config.central_critic(critic=None if kind == "none" else critic)


def vaults_opened(returns: Sequence[float]) -> float:
    """The share of the vaults that were opened in time to pay, over the episodes of SEEDS."""
    paid = [
        STEPS * float(toll_of(game_of(seed)[1])) + own
        for seed, own in zip(SEEDS, returns, strict=True)
    ]
    return float(np.mean(paid)) / BEST
