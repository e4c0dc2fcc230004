"""Several agents, one reward, one critic that sees everything: MAPPO (Yu et al. 2022), on RLlib.

One module decides for all agents, so that one forward pass serves all agents of all environments.
It answers `forward_exploration` and `forward_inference` with
  actions       a tree with a branch for each agent
  action_logp   (B, agents)
and `forward_train` with `action_logp` and `entropy`, both (B, agents). The critic is a module of
its own that answers `forward_train` with `vf_preds` (B,), in units of its own: of observations
alone (v), or of observations and all agents' actions (q).

Nothing here knows an environment: sequences, groups, workers and their faults are InputDriven's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS
from torch import Tensor

from loadmaster.models.keyed_random import RNG_KEY, splitmix64
from loadmaster.platform.rl.advantages import Rollout, bootstrapped_advantages
from loadmaster.platform.rl.algorithm import InputDriven, InputDrivenConfig
from loadmaster.platform.rl.batches import batches_with, less, normalised
from loadmaster.platform.rl.learner import InputDrivenLearner
from loadmaster.platform.rl.rollout import Recording, joined, on_device, rows_of, taken
from loadmaster.platform.rl.values import Decay, Floats, Yardstick, errors_ahead, explained, legs_of

# RLlib's learner for agents that share a reward: the policy, and a critic that sees everything.


CRITIC = "critic"  # its module's name, beside the policy's
AT_ONCE = 2048  # rows that are judged in one pass: all would not always fit a device


class Judgement(NamedTuple):
    """A critic's, in units of its own.

    V says the same of a moment and of what was done then. Q says of the moment what it says of
    actions that the policy would draw, on average.
    """

    judged: NDArray[np.float32] | None  # (K,) of what was done
    promised: NDArray[np.float32] | None  # (K,) of the moment


class TeamLearner(InputDrivenLearner):
    """One update is either the policy's or the critic's, as `module_id` says.

    The critic is a module of its own: it has an optimiser and a learning rate of its own, its
    gradient is clipped apart, and neither rollout workers nor bundles ever see it.
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
        self._tally("loss", loss)
        return loss

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any = None, module_gradients_dict: Any
    ) -> Any:
        """RLlib would log a gradient of 0 for the module that is not being updated."""
        if not module_gradients_dict:
            return {}
        return super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )

    @torch.no_grad()
    def judge(self, columns: Any, seed: int, sees_actions: bool) -> Judgement:
        """Of every row, by `seed` where draws are needed; rows without actions have no `judged`."""
        tensors, count = on_device(columns, self.device), rows_of(columns)
        torch.manual_seed(seed)  # for modules that draw as torch does
        judged: list[Tensor] = []
        promised: list[Tensor] = []
        for first in range(0, count, AT_ONCE):
            rows = torch.arange(first, min(first + AT_ONCE, count))
            batch = taken(tensors, rows, self.device)
            if Columns.ACTIONS in batch or not sees_actions:
                judged.append(self._worth(batch))
            if sees_actions:
                promised.append(self._expected(batch, splitmix64(rows.to(self.device), seed)))
        said = torch.cat(judged).cpu().numpy() if judged else None
        ahead = torch.cat(promised).cpu().numpy() if promised else said
        return Judgement(said, ahead)

    def _worth(self, batch: dict[str, Any]) -> Tensor:
        found: Tensor = self.module[CRITIC].forward_train(batch)[Columns.VF_PREDS]
        return found

    def _expected(self, batch: dict[str, Any], luck: Tensor) -> Tensor:
        """The mean over a few draws of all agents together."""
        policy, samples = self.module[DEFAULT_MODULE_ID], self.config.learning.critic.samples
        found = []
        for draw in range(samples):
            seen = {Columns.OBS: batch[Columns.OBS], RNG_KEY: splitmix64(luck, draw)}
            actions = policy.forward_exploration(seen)[Columns.ACTIONS]
            found.append(self._worth({**batch, Columns.ACTIONS: actions}))
        return torch.stack(found).mean(0)


YARDSTICK = "yardstick"


class MappoConfig(InputDrivenConfig):
    """InputDriven's, and the critic's module."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or Mappo)
        self.critic: Any = None

    def team(self, *, critic: Any = NotProvided) -> MappoConfig:
        """`critic` is an RLModuleSpec; None where `learning.critic.kind` is none."""
        if critic is not NotProvided:
            self.critic = critic
        return self

    def get_default_learner_class(self) -> type:
        return TeamLearner

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
    """Advantages from a critic, where there is one; else from rollouts that share their input."""

    def setup(self, config: Any) -> None:
        self.yardstick = Yardstick()  # of what the critic learns
        self._told: dict[str, float] = {}  # of the critic, in this iteration
        super().setup(config)

    @classmethod
    def get_default_config(cls) -> MappoConfig:
        return MappoConfig()

    def _advantages(self, groups: Sequence[Sequence[Recording]]) -> NDArray[np.float32]:
        learning = self.config.learning
        if learning.critic.kind == "none":
            return super()._advantages(groups)
        recordings = [recording for group in groups for recording in group]
        rollouts = [recording.rollout for recording in recordings]
        if learning.differential:
            rate = self._reward_rate([rollouts])
            rollouts = [less(rollout, rate) for rollout in rollouts]
        decay = Decay(
            learning.critic.gamma,
            learning.discount_per_s,
            learning.critic.gae_lambda,
            learning.memory_s,
        )
        judged, promised = self._judged(recordings)
        errors = [
            errors_ahead(legs_of(rollout, own.kept, decay), said, ahead)
            for rollout, own, said, ahead in zip(
                rollouts, recordings, judged, promised, strict=True
            )
        ]
        targets = [said + error for said, error in zip(judged, errors, strict=True)]
        self._told = {"critic_explains": explained(judged, targets)}
        self._fit(recordings, np.concatenate(targets))
        if learning.critic.shared_input:
            errors = self._compared(groups, rollouts, judged)
        elif learning.critic.kind == "q":
            # What was decided against what might have been: Q has to know of it first.
            judged, promised = self._judged(recordings)
            errors = [said - ahead[:-1] for said, ahead in zip(judged, promised, strict=True)]
        remaining = iter(errors)
        return normalised(
            [[next(remaining) for _ in group] for group in groups],
            alike=learning.scale == "sequence",
        )

    def _compared(
        self,
        groups: Sequence[Sequence[Recording]],
        rollouts: Sequence[Rollout],
        judged: Sequence[Floats],
    ) -> list[Floats]:
        """What the critic cannot foresee, such as arrivals, the others of a group met as well."""
        learning, remaining = self.config.learning, iter(zip(rollouts, judged, strict=True))
        told = [[_with_outlook(*next(remaining), own.kept) for own in group] for group in groups]
        memory_s = math.inf if learning.memory_s is None else learning.memory_s
        found = iter(bootstrapped_advantages(told, learning.discount_per_s, memory_s))
        return [next(found)[own.kept] for group in groups for own in group]

    def _judged(self, recordings: Sequence[Recording]) -> tuple[list[Floats], list[Floats]]:
        """Of each recording: the critic on its decisions (K,), and on its moments (K + 1,)."""
        ends = np.cumsum([len(recording.kept) for recording in recordings])[:-1]
        (columns,) = batches_with(recordings, {}, 1)
        said, ahead = self._ask(columns)
        assert said is not None
        cut_off = [place for place, own in enumerate(recordings) if own.last is not None]
        after = np.zeros(len(recordings))
        if cut_off:
            ends_seen: list[Any] = [{Columns.OBS: recordings[place].last} for place in cut_off]
            after[cut_off] = self._ask(joined(ends_seen))[1]
        promised = [
            np.append(moments, follows)
            for moments, follows in zip(np.split(ahead, ends), after, strict=True)
        ]
        return np.split(said, ends), promised

    def _ask(self, columns: dict[str, Any]) -> tuple[Floats | None, Floats]:
        """In the environment's units. One learner is asked: all of them have the same weights."""
        seed = int(
            np.random.default_rng([self.config.seed or 0, self.iteration, 2]).integers(1 << 31)
        )
        sees_actions = self.config.learning.critic.kind == "q"
        answers = self.learner_group.foreach_learner(
            lambda learner: learner.judge(columns, seed, sees_actions),
            remote_actor_ids=[0],
        )
        said, ahead = next(iter(answers)).get()
        return None if said is None else self.yardstick.real(said), self.yardstick.real(ahead)

    def _fit(self, recordings: Sequence[Recording], targets: Floats) -> None:
        """The critic, to targets from the parameters it had."""
        critic = self.config.learning.critic
        self.yardstick.take_in(targets)
        standard = self.yardstick.standard(targets)
        learners = max(1, self.config.num_learners)
        results = self._update(
            batches_with(recordings, {Columns.VALUE_TARGETS: standard}, learners),
            module_id=CRITIC,
            num_epochs=critic.epochs,
            minibatches=critic.minibatches,
            learning_rate=critic.learning_rate,
            shuffle_seed=self._number(self.iteration),
        )
        self.metrics.aggregate(results, key=LEARNER_RESULTS)

    def _report(
        self, figures: dict[str, float], began: float, rolled_out: float | None = None
    ) -> None:
        super()._report({**figures, **self._told}, began, rolled_out)

    def get_state(self, components: Any = None, **settings: Any) -> dict[str, Any]:
        return {**super().get_state(components, **settings), YARDSTICK: self.yardstick}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.yardstick = state.get(YARDSTICK, self.yardstick)


def _with_outlook(rollout: Rollout, judged: Floats, kept: NDArray[np.int64]) -> Rollout:
    """The critic's judgement as the outlook, between kept decisions on straight lines in time."""
    if not len(kept):
        return replace(rollout, outlook=np.zeros((len(rollout.time_s), 1)))
    return replace(
        rollout, outlook=np.interp(rollout.time_s, rollout.time_s[kept], judged)[:, None]
    )
