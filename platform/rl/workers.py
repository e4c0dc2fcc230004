"""RLlib's workers: env runners make rollouts, learners update the policy from them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.checkpoints import Checkpointable
from torch import Tensor

from loadmaster.models.policy import ENTROPY
from loadmaster.platform.rl.rollout import (
    EpisodeScore,
    Recording,
    RolloutEngine,
    RolloutSpec,
    on_device,
    rows_of,
    taken,
)

Task = Literal["sample", "evaluate", "compare"]


class EngineRunner(EnvRunner, Checkpointable):
    """Runs whole rollouts in the engine that the algorithm's config builds.

    Everything around sampling stays RLlib's: its group restarts workers that die, and its
    checkpoints hold their state. Weights come with every request, so a worker that was just
    restarted or restored never acts on others.
    """

    def __init__(self, *, config: Any, **settings: Any) -> None:
        super().__init__(config=config, **settings)
        self.make_module()

    @cached_property
    def engine(self) -> RolloutEngine:
        """Built on first use: the driver's own runner may never roll out."""
        built: RolloutEngine = self.config.engine()
        return built

    def make_module(self) -> None:
        spec = self.config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        self.module = spec.build()

    def run_task(self, task: Task, weights: Any, work: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Run a task on each item of `work`; pairs of item and result."""
        tasks: dict[Task, Callable[[Any, Sequence[Any]], list[Any]]] = {
            "sample": self.sample,
            "evaluate": self.evaluate,
            "compare": self.compare,
        }
        return list(zip(work, tasks[task](weights, work), strict=True))

    def sample(self, weights: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        self.module.set_state(weights)
        return self.engine.roll_out(self.module, assignments)

    def evaluate(self, weights: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """Score the greedy policy."""
        self.module.set_state(weights)
        return self.engine.judge(self.module, seeds)

    def compare(
        self, candidates: Sequence[Any], trials: Sequence[tuple[int, int]]
    ) -> list[EpisodeScore]:
        """Score several candidates' weights; a trial is a candidate's index and a seed."""
        found: dict[tuple[int, int], EpisodeScore] = {}
        for candidate in sorted({candidate for candidate, _ in trials}):
            seeds = [seed for other, seed in trials if other == candidate]
            scores = self.evaluate(candidates[candidate], seeds)
            found.update(zip([(candidate, seed) for seed in seeds], scores, strict=True))
        return [found[trial] for trial in trials]

    def get_spaces(self) -> dict[str, Any]:
        pair = (self.config.observation_space, self.config.action_space)
        return {INPUT_ENV_SPACES: pair, INPUT_ENV_SINGLE_SPACES: pair, DEFAULT_MODULE_ID: pair}

    def get_metrics(self) -> Any:
        return self.metrics.reduce()

    def get_state(
        self, components: Any = None, *, not_components: Any = None, **settings: Any
    ) -> dict[str, Any]:
        if not self._check_component(COMPONENT_RL_MODULE, components, not_components):
            return {}
        return {COMPONENT_RL_MODULE: self.module.get_state(**settings)}

    def set_state(self, state: dict[str, Any]) -> None:
        weights = state.get(COMPONENT_RL_MODULE)
        if isinstance(weights, ray.ObjectRef):  # RLlib passes a reference when it starts workers
            weights = ray.get(weights)
        if weights is not None:
            self.module.set_state(weights.get(DEFAULT_MODULE_ID, weights))

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), {"config": self.config}

    def assert_healthy(self) -> None:
        assert self.module is not None


class InputDrivenLearner(TorchLearner):
    """Policy gradient with advantages that were computed before the update: REINFORCE and PPO.

    A module's training pass returns either the log-probability and entropy of the batch's actions,
    or parameters of its distribution, as usual in RLlib. A module that decides for several agents
    returns both per agent: (B, agents).
    """

    def _create_iterator_if_necessary(
        self,
        *,
        training_data: Any,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int = 1,
        minibatches: int = 1,
        learning_rate: float | None = None,
        entropy_weight: float = 0.0,
        shuffle_seed: int = 0,
        **_: Any,
    ) -> Iterator[MultiAgentBatch]:
        self._module_id, self._entropy_weight = module_id, entropy_weight
        if learning_rate is not None:
            for _name, optimizer in self.get_optimizers_for_module(module_id):
                self._set_optimizer_lr(optimizer, learning_rate)
        self._minibatch_metrics: dict[str, list[Tensor]] = {}
        return self._minibatches(training_data.batch, num_epochs, minibatches, shuffle_seed)

    def _minibatches(
        self, columns: Any, epochs: int, minibatches: int, seed: int
    ) -> Iterator[MultiAgentBatch]:
        """Every decision once an epoch, in an order given by the seed."""
        tensors = on_device(columns, self.device)
        count = rows_of(columns)
        shuffle = torch.Generator().manual_seed(seed)
        learning = self.config.learning
        kl_limit = learning.stop_at_kl if learning.method == "ppo" else math.inf
        for _ in range(epochs):
            order = torch.randperm(count, generator=shuffle)
            for rows in order.tensor_split(min(minibatches, count)):
                batch = SampleBatch(taken(tensors, rows, self.device))
                yield MultiAgentBatch({self._module_id: batch}, env_steps=len(rows))
            kl = self._minibatch_metrics.get("kl")  # a critic has none
            if kl and float(kl[-1]) > kl_limit:
                return

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: dict[str, Tensor]
    ) -> Tensor:
        log_probability, entropy = self._log_probability(module_id, batch, fwd_out)
        advantage = batch[Columns.ADVANTAGES]
        if log_probability.dim() == 2:  # each agent has its own ratio; the advantage is shared
            advantage = advantage.unsqueeze(1)
        log_ratio = log_probability - batch[Columns.ACTION_LOGP]
        ratio = log_ratio.exp()
        if self.config.learning.method == "ppo":
            clip = self.config.learning.clip
            bounded = ratio.clamp(1 - clip, 1 + clip)
            # PPO (Schulman et al. 2017), eq. 7, for each agent (Yu et al. 2022, MAPPO).
            gain = torch.min(ratio * advantage, bounded * advantage).mean(0).sum()
        else:
            # REINFORCE: grad log pi(a|s) * advantage.
            gain = (log_probability * advantage).mean(0).sum()
        total_entropy = entropy.mean(0).sum()
        kl = (ratio - 1 - log_ratio).mean(0)  # Schulman's estimator, never below 0
        self._record("entropy", total_entropy)
        self._record("kl", kl.max())  # of the agent that moved furthest
        loss: Tensor = -gain - self._entropy_weight * total_entropy
        return loss

    def _log_probability(
        self, module_id: str, batch: Any, fwd_out: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of the batch's actions, and entropy."""
        if Columns.ACTION_LOGP in fwd_out:
            return fwd_out[Columns.ACTION_LOGP], fwd_out[ENTROPY]
        kind = self.module[module_id].unwrapped().get_train_action_dist_cls()
        distribution = kind.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return distribution.logp(batch[Columns.ACTIONS]), distribution.entropy()

    def _record(self, name: str, value: Tensor) -> None:
        self._minibatch_metrics.setdefault(name, []).append(value.detach())

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        super().after_gradient_based_update(timesteps=timesteps)
        for name, values in self._minibatch_metrics.items():
            mean = float(torch.stack(values).mean())
            self.metrics.log_value((self._module_id, name), mean, window=1)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return []
