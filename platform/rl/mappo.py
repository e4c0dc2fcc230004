"""MAPPO (Yu et al. 2022) on RLlib: several agents, one reward, one critic of the whole state.

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
from collections.abc import Mapping, Sequence
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
from loadmaster.models.ragged import concatenated, rows_of
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
from loadmaster.platform.rl.algorithm import InputDriven, InputDrivenConfig
from loadmaster.platform.rl.base import ROLLOUTS
from loadmaster.platform.rl.learner import InputDrivenLearner, keys_of_rows
from loadmaster.platform.rl.rollout import Recording, Sample, columns_of, normalised

CRITIC = "critic"  # id of its module, beside the policy's
Values = NDArray[np.float32]
EVALUATED_ROWS = 2048  # per forward pass of the critic: a whole batch may not fit a device


class MappoLearner(InputDrivenLearner):
    """One update trains either the policy or the critic, selected by `module_id`.

    The critic is a module of its own, with its own optimiser and learning rate; rollout workers
    hold it only to learn, bundles not at all.
    """

    def _loss(
        self,
        module_id: str,
        batch: Mapping[str, Any],
        output: Mapping[str, Any],
        entropy: Tensor | float,
    ) -> tuple[Tensor, Tensor]:
        if module_id != CRITIC:
            return super()._loss(module_id, batch, output, entropy)
        error: Tensor = output[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]
        loss = error.square().mean()
        nothing = torch.zeros_like(loss)
        return loss, torch.stack([loss, nothing, nothing]).detach()

    @torch.no_grad()
    def critic_values(
        self, recordings: Sequence[Recording], keys: Sequence[int], seed: int
    ) -> list[tuple[Values, Values]]:
        """Normalised values of each recording: (K,) of its actions, (K + 1,) of its states.

        The last is the value of the final state of a truncated episode, else nan. For V both are
        the same. For Q the value of a state is the mean over actions sampled by `seed`.
        """
        if not recordings:
            return []
        ends = np.cumsum([len(recording.kept) for recording in recordings])[:-1]
        columns = columns_of(recordings, [{}] * len(recordings))
        row_keys = keys_of_rows(recordings, keys)
        predicted, state_value = self._evaluate(columns, splitmix64(row_keys, seed))
        assert predicted is not None
        final = np.full(len(recordings), np.nan, np.float32)
        truncated = [place for place, own in enumerate(recordings) if own.last is not None]
        if truncated:
            last = concatenated([{Columns.OBS: recordings[place].last} for place in truncated])
            of_last = splitmix64(torch.tensor([keys[place] for place in truncated]), seed)
            final[truncated] = self._evaluate(last, of_last)[1]
        return [
            (own, np.append(values, after))
            for own, values, after in zip(
                np.split(predicted, ends), np.split(state_value, ends), final, strict=True
            )
        ]

    def _evaluate(self, columns: Any, row_keys: Tensor) -> tuple[Values | None, Values]:
        """(rows,) values of the recorded actions, if there are any, and of the states."""
        batches, count = self._minibatches(CRITIC, columns), rows_of(columns)
        of_actions = self.config.learning.critic.kind == "q"
        if count:  # for modules that sample by torch's generator
            torch.manual_seed(int(row_keys[0]))
        predicted: list[Tensor] = []
        state_value: list[Tensor] = []
        for first in range(0, count, EVALUATED_ROWS):
            rows = torch.arange(first, min(first + EVALUATED_ROWS, count))
            batch = batches.select(rows)
            if Columns.ACTIONS in batch or not of_actions:
                predicted.append(self._value(batch))
            if of_actions:
                rng_key = row_keys[rows].to(self.device)
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

    def central_critic(self, *, critic: RLModuleSpec | None) -> MappoConfig:
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

    def advantages(self, groups: Sequence[Sequence[Sample]]) -> NDArray[np.float32]:
        learning, critic = self.config.learning, self.config.learning.critic
        if critic.kind == "none":
            return super().advantages(groups)
        samples = [sample for group in groups for sample in group]
        (rollouts,) = self._differential([[sample.rollout for sample in samples]])
        decay = Decay(
            critic.gamma, learning.discount_per_s, critic.gae_lambda, learning.credit_horizon_s
        )
        predicted, state_value = self.critic_values(samples)
        errors = [
            gae(segments_of(rollout, own.kept, decay), values, following)
            for rollout, own, values, following in zip(
                rollouts, samples, predicted, state_value, strict=True
            )
        ]
        targets = [values + error for values, error in zip(predicted, errors, strict=True)]
        explained = explained_variance(predicted, targets)
        self.metrics.log_value((ROLLOUTS, "critic_explains"), explained, window=1)
        self._fit(samples, np.concatenate(targets))
        if critic.shared_input:
            errors = self._compared_with_group(groups, rollouts, predicted)
        elif critic.kind == "q":
            # Recorded actions against sampled ones, by the critic that was just fitted.
            predicted, state_value = self.critic_values(samples)
            errors = [own - mean[:-1] for own, mean in zip(predicted, state_value, strict=True)]
        remaining = iter(errors)
        return normalised(
            [[next(remaining) for _ in group] for group in groups],
            per_group=learning.scale == "sequence",
        )

    def _compared_with_group(
        self,
        groups: Sequence[Sequence[Sample]],
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

    def critic_values(self, samples: Sequence[Sample]) -> tuple[list[Floats], list[Floats]]:
        """Per sample: (K,) values of its decisions, (K + 1,) of its states and what follows."""
        found = self.learners.call("critic_values", samples, seed=self._seed_of(2))
        real = self.normalizer.denormalize
        state_value = []
        for sample, (_, values) in zip(samples, found, strict=True):
            state_value.append(real(values))
            if not sample.truncated:
                state_value[-1][-1] = 0.0
        return [real(predicted) for predicted, _ in found], state_value

    def _fit(self, samples: Sequence[Sample], targets: Floats) -> None:
        """Train the critic on targets from the parameters it had."""
        critic = self.config.learning.critic
        self.normalizer.update(targets)
        self._update(
            samples,
            {Columns.VALUE_TARGETS: self.normalizer.normalize(targets)},
            module_id=CRITIC,
            epochs=critic.epochs,
            minibatches=critic.minibatches,
            learning_rate=critic.learning_rate,
        )


def _with_outlook(rollout: Rollout, values: Floats, kept: NDArray[np.int64]) -> Rollout:
    """The critic's values as the outlook, interpolated in time between kept decisions."""
    if not len(kept):
        return replace(rollout, outlook=np.zeros((len(rollout.time_s), 1)))
    outlook = np.interp(rollout.time_s, rollout.time_s[kept], values)
    return replace(rollout, outlook=outlook[:, None])
