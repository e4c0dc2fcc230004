"""MAPPO (Yu et al. 2022) on RLlib: several agents, one reward, one critic that sees everything.

One module decides for all agents in one forward pass. `forward_exploration` and `forward_inference`
return
  actions       a tree with a branch for each agent
  action_logp   (B, agents)
and `forward_train` returns `action_logp` and `entropy`, both (B, agents). The critic is a separate
module whose `forward_train` returns `vf_preds` (B,), normalised: of observations alone (v), or of
observations and all agents' actions (q).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import Tensor

from loadmaster.models.keyed_random import RNG_KEY, splitmix64
from loadmaster.platform.rl.advantages import (
    Decay,
    Floats,
    Rollout,
    RunningNormalizer,
    bootstrapped_advantages,
    explained_variance,
    gae,
    segments_of,
)
from loadmaster.platform.rl.algorithm import ROLLOUTS, InputDriven, InputDrivenConfig
from loadmaster.platform.rl.rollout import (
    Recording,
    batches_with,
    concatenated,
    normalised,
    on_device,
    rows_of,
    taken,
)
from loadmaster.platform.rl.workers import InputDrivenLearner

CRITIC = "critic"  # id of its module, beside the policy's
EVALUATED_ROWS = 2048  # per forward pass of the critic: a whole batch may not fit a device


class MappoLearner(InputDrivenLearner):
    """One update trains either the policy or the critic, selected by `module_id`.

    The critic is a module of its own, with its own optimiser, learning rate and gradient clipping;
    rollout workers and bundles do not hold it.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: dict[str, Tensor]
    ) -> Tensor:
        if module_id != CRITIC:
            return super().compute_loss_for_module(
                module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
            )
        error: Tensor = fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]
        loss = error.square().mean()
        self._record("loss", loss)
        return loss

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any = None, module_gradients_dict: Any
    ) -> Any:
        """Skip the module that is not updated; RLlib would log a gradient of 0 for it."""
        if not module_gradients_dict:
            return {}
        return super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )

    @torch.no_grad()
    def critic_values(
        self, columns: Any, seed: int
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32]]:
        """Normalised values of every row, (K,): of the recorded actions, and of the state.

        For V both are the same. For Q the first is None without actions, and the second is the
        mean over actions sampled by `seed`.
        """
        tensors, count = on_device(columns, self.device), rows_of(columns)
        of_actions = self.config.learning.critic.kind == "q"
        torch.manual_seed(seed)  # for modules that sample by torch's generator
        predicted: list[Tensor] = []
        state_value: list[Tensor] = []
        for first in range(0, count, EVALUATED_ROWS):
            rows = torch.arange(first, min(first + EVALUATED_ROWS, count))
            batch = taken(tensors, rows, self.device)
            if Columns.ACTIONS in batch or not of_actions:
                predicted.append(self._value(batch))
            if of_actions:
                rng_key = splitmix64(rows.to(self.device), seed)
                state_value.append(self._mean_value(batch, rng_key))
        known = torch.cat(predicted).cpu().numpy() if predicted else None
        return known, torch.cat(state_value or predicted).cpu().numpy()

    def _value(self, batch: dict[str, Any]) -> Tensor:
        found: Tensor = self.module[CRITIC].forward_train(batch)[Columns.VF_PREDS]
        return found

    def _mean_value(self, batch: dict[str, Any], rng_key: Tensor) -> Tensor:
        """Mean Q over actions of all agents sampled from the policy."""
        policy = self.module[DEFAULT_MODULE_ID]
        found = []
        for draw in range(self.config.learning.critic.samples):
            seen = {Columns.OBS: batch[Columns.OBS], RNG_KEY: splitmix64(rng_key, draw)}
            actions = policy.forward_exploration(seen)[Columns.ACTIONS]
            found.append(self._value({**batch, Columns.ACTIONS: actions}))
        return torch.stack(found).mean(0)


class MappoConfig(InputDrivenConfig):
    """InputDrivenConfig with the critic's module."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or Mappo)
        self.critic: RLModuleSpec | None = None

    def team(self, *, critic: RLModuleSpec | None) -> MappoConfig:
        """`critic` is None where `learning.critic.kind` is none."""
        self.critic = critic
        return self

    def get_default_learner_class(self) -> type:
        return MappoLearner

    def get_multi_rl_module_spec(
        self, *, inference_only: bool = False, **settings: Any
    ) -> MultiRLModuleSpec:
        spec = super().get_multi_rl_module_spec(inference_only=inference_only, **settings)
        if self.critic is not None and not inference_only:
            critic, policy = copy.deepcopy(self.critic), spec.rl_module_specs[DEFAULT_MODULE_ID]
            critic.observation_space = policy.observation_space
            critic.action_space = policy.action_space
            critic.model_config = critic.model_config or {}
            spec.rl_module_specs[CRITIC] = critic
        return spec


class Mappo(InputDriven):
    """InputDriven with advantages from a critic, where one is configured."""

    saved: ClassVar[tuple[str, ...]] = (*InputDriven.saved, "normalizer")

    def setup(self, config: Any) -> None:
        self.normalizer = RunningNormalizer()  # of the critic's targets
        super().setup(config)

    @classmethod
    def get_default_config(cls) -> MappoConfig:
        return MappoConfig()

    def advantages(self, groups: Sequence[Sequence[Recording]]) -> NDArray[np.float32]:
        learning, critic = self.config.learning, self.config.learning.critic
        if critic.kind == "none":
            return super().advantages(groups)
        recordings = [recording for group in groups for recording in group]
        (rollouts,) = self._differential([[recording.rollout for recording in recordings]])
        decay = Decay(
            critic.gamma, learning.discount_per_s, critic.gae_lambda, learning.credit_horizon_s
        )
        predicted, state_value = self.critic_values(recordings)
        errors = [
            gae(segments_of(rollout, own.kept, decay), values, following)
            for rollout, own, values, following in zip(
                rollouts, recordings, predicted, state_value, strict=True
            )
        ]
        targets = [values + error for values, error in zip(predicted, errors, strict=True)]
        explained = explained_variance(predicted, targets)
        self.metrics.log_value((ROLLOUTS, "critic_explains"), explained, window=1)
        self._fit(recordings, np.concatenate(targets))
        if critic.shared_input:
            errors = self._compared_with_group(groups, rollouts, predicted)
        elif critic.kind == "q":
            # Recorded actions against sampled ones, by the critic that was just fitted.
            predicted, state_value = self.critic_values(recordings)
            errors = [own - mean[:-1] for own, mean in zip(predicted, state_value, strict=True)]
        remaining = iter(errors)
        return normalised(
            [[next(remaining) for _ in group] for group in groups],
            per_group=learning.scale == "sequence",
        )

    def _compared_with_group(
        self,
        groups: Sequence[Sequence[Recording]],
        rollouts: Sequence[Rollout],
        predicted: Sequence[Floats],
    ) -> list[Floats]:
        """Advantages within each group, with the critic's value as the outlook.

        The rollouts of a group share what the critic cannot predict, such as arrivals.
        """
        learning, remaining = self.config.learning, iter(zip(rollouts, predicted, strict=True))
        with_values = [[_with_outlook(*next(remaining), own.kept) for own in g] for g in groups]
        horizon_s = math.inf if learning.credit_horizon_s is None else learning.credit_horizon_s
        found = iter(bootstrapped_advantages(with_values, learning.discount_per_s, horizon_s))
        return [next(found)[own.kept] for group in groups for own in group]

    def critic_values(self, recordings: Sequence[Recording]) -> tuple[list[Floats], list[Floats]]:
        """Per recording: (K,) values of its decisions, (K + 1,) of its states and what follows."""
        ends = np.cumsum([len(recording.kept) for recording in recordings])[:-1]
        (columns,) = batches_with(recordings, {}, 1)
        predicted, state_value = self._evaluate_critic(columns)
        assert predicted is not None
        truncated = [place for place, own in enumerate(recordings) if own.last is not None]
        after = np.zeros(len(recordings))
        if truncated:
            final: list[Any] = [{Columns.OBS: recordings[place].last} for place in truncated]
            after[truncated] = self._evaluate_critic(concatenated(final))[1]
        with_end = [
            np.append(values, follows)
            for values, follows in zip(np.split(state_value, ends), after, strict=True)
        ]
        return np.split(predicted, ends), with_end

    def _evaluate_critic(self, columns: dict[str, Any]) -> tuple[Floats | None, Floats]:
        """Values in the environment's units, from one learner: all have the same weights."""
        seed = self._seed_of(2)
        answers = self.learner_group.foreach_learner(
            lambda learner: learner.critic_values(columns, seed), remote_actor_ids=[0]
        )
        predicted, state_value = next(iter(answers)).get()
        real = self.normalizer.denormalize
        return None if predicted is None else real(predicted), real(state_value)

    def _fit(self, recordings: Sequence[Recording], targets: Floats) -> None:
        """Train the critic on targets from the parameters it had."""
        critic = self.config.learning.critic
        self.normalizer.update(targets)
        self._update(
            recordings,
            {Columns.VALUE_TARGETS: self.normalizer.normalize(targets)},
            module_id=CRITIC,
            num_epochs=critic.epochs,
            minibatches=critic.minibatches,
            learning_rate=critic.learning_rate,
        )


def _with_outlook(rollout: Rollout, values: Floats, kept: NDArray[np.int64]) -> Rollout:
    """The critic's values as the outlook, interpolated in time between kept decisions."""
    if not len(kept):
        return replace(rollout, outlook=np.zeros((len(rollout.time_s), 1)))
    outlook = np.interp(rollout.time_s, rollout.time_s[kept], values)
    return replace(rollout, outlook=outlook[:, None])
