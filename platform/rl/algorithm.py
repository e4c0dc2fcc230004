"""Learning from groups of rollouts that share their input, on RLlib's workers and learners."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import LEARNER_RESULTS

from loadmaster.platform.rl.advantages import (
    Rollout,
    bootstrapped_advantages,
    group_advantages,
    with_differential_rewards,
)
from loadmaster.platform.rl.base import (
    END_SEED,
    FIRST_SEED,
    ROLLOUTS,
    TRIES,
    EngineAlgorithm,
    EngineConfig,
    Weights,
)
from loadmaster.platform.rl.evolution import WeightSearch, relative_costs
from loadmaster.platform.rl.learner import InputDrivenLearner
from loadmaster.platform.rl.learners import (
    Learners,
    LearnersLost,
    ProcessLearners,
    WorkerLearners,
)
from loadmaster.platform.rl.rollout import (
    RolloutSpec,
    Sample,
    normalised,
    summary_metrics,
)
from loadmaster.platform.training.config import BaseConfig, Learning, Rollouts, TrainingConfig

RATE_DECAY = 0.9  # of the running mean reward per second


class InputDrivenConfig(EngineConfig):
    """EngineConfig with the settings of groups of rollouts and of learning from them."""

    sampling: Rollouts
    learning: Learning

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or InputDriven)
        self.sampling, self.learning = Rollouts(), Learning()
        self.expected_work: Callable[[int], float] | None = None  # of a rollout, by its sequence

    def for_training(
        self,
        config: BaseConfig,
        *,
        expected_work: Callable[[int], float] | None = None,
        **parts: Any,
    ) -> Self:
        """`expected_work` of a sequence balances the workers; None: all take about as long."""
        assert isinstance(config, TrainingConfig)
        self.training(lr=config.training.learning_rate.first)
        self.expected_work = expected_work
        return super().for_training(config, **parts)

    def costs_of(self, specs: Sequence[RolloutSpec]) -> list[float] | None:
        """Expected work of each rollout; None: unknown."""
        if self.expected_work is None:
            return None
        sequences = {spec.sequence for spec in specs}
        by_sequence = {sequence: self.expected_work(sequence) for sequence in sequences}
        return [by_sequence[spec.sequence] for spec in specs]

    def get_default_learner_class(self) -> type:
        return InputDrivenLearner


class InputDriven(EngineAlgorithm):
    """One iteration: draw input sequences, roll each out several times, learn from differences."""

    config: InputDrivenConfig
    saved: ClassVar[tuple[str, ...]] = ("reward_rate", "averaged", "search")  # own state

    def setup(self, config: Any) -> None:
        self.reward_rate: float | None = None  # running mean reward per second
        self.search: WeightSearch | None = None  # where the method is evolution
        self.averaged: Weights | None = None  # running mean of the weights
        super().setup(config)
        self.learners: Learners = (
            WorkerLearners(self.env_runner_group, self.learner_group)
            if self.learner_group.is_local
            else ProcessLearners(self.learner_group)
        )

    @classmethod
    def get_default_config(cls) -> InputDrivenConfig:
        return InputDrivenConfig()

    def training_step(self) -> None:
        """One iteration; one in which a learner dies is repeated with the workers that are left."""
        before = {name: copy.copy(getattr(self, name)) for name in self.saved}
        for _ in range(TRIES):
            try:
                metrics = self._iterate()
                break
            except LearnersLost:
                self.restore_env_runners(self.env_runner_group)
                for name, value in before.items():
                    setattr(self, name, copy.copy(value))
        else:
            raise RuntimeError(f"learners died in each of {TRIES} tries")
        for name, value in metrics.items():
            self.metrics.log_value((ROLLOUTS, name), value, window=1)

    def _iterate(self) -> dict[str, float]:
        began = time.perf_counter()
        if self.config.learning.method == "evolution":
            metrics, rolled_out = self._evolve(), time.perf_counter()
        else:
            groups = self.roll_out(self._draw_specs())
            rolled_out = time.perf_counter()
            self._learn(groups)
            metrics = summary_metrics([sample for group in groups for sample in group])
        self._average_weights()
        metrics["workers"] = float(self.env_runner_group.num_healthy_remote_env_runners())
        metrics["rollout_seconds"] = rolled_out - began
        metrics["update_seconds"] = time.perf_counter() - rolled_out
        return metrics

    def _learn(self, groups: Sequence[Sequence[Sample]]) -> None:
        """Update the policy once from groups that share their input."""
        learning = self.config.learning
        # REINFORCE is valid only for the policy that acted: one step.
        once, began = learning.method == "reinforce", time.perf_counter()
        advantages = self.advantages(groups)
        seconds = time.perf_counter() - began
        self.metrics.log_value((ROLLOUTS, "advantage_seconds"), seconds, window=1)
        self._update(
            [sample for group in groups for sample in group],
            {Columns.ADVANTAGES: advantages},
            epochs=1 if once else learning.epochs,
            minibatches=1 if once else learning.minibatches,
            learning_rate=learning.learning_rate.at(self.iteration),
            entropy_weight=learning.entropy.at(self.iteration),
        )

    def _update(
        self,
        samples: Sequence[Sample],
        columns: Mapping[str, NDArray[np.float32]],
        module_id: str = DEFAULT_MODULE_ID,
        **settings: Any,
    ) -> None:
        """Update the learners on the samples with more columns, and log their metrics."""
        ends = np.cumsum([len(sample.kept) for sample in samples])[:-1]
        parts = {name: np.split(column, ends) for name, column in columns.items()}
        more = [
            {name: part[place] for name, part in parts.items()} for place in range(len(samples))
        ]
        seed = self._seed_of(1)
        found = self.learners.learn(samples, more, module_id=module_id, seed=seed, **settings)
        for name, value in found.items():
            self.metrics.log_value((LEARNER_RESULTS, module_id, name), value, window=1)

    def _average_weights(self) -> None:
        """Update the running mean of the weights (Polyak and Juditsky, 1992).

        Its memory is that of a mean over the last `averaging` iterations.
        """
        averaging = self.config.learning.averaging
        if averaging == 1:
            self.averaged = None
            return
        iterations = min(self.iteration + 1, averaging)
        latest = self.module_weights()
        before = latest if self.averaged is None else self.averaged
        self.averaged = {
            name: before[name] + (value - before[name]) / np.float32(iterations)
            for name, value in latest.items()
        }

    def _evolve(self) -> dict[str, float]:
        """One generation: score every candidate on the same sequences; its metrics."""
        if self.search is None:
            how = self.config.learning.evolution
            patterns = [f"*{pattern}" for pattern in how.weights]
            self.search = WeightSearch(self.module_weights(), patterns, how.spread, how.population)
        rng = self._rng()
        # Successive sequences: every setting of a mixture has its turn.
        sequences = self.config.sampling.sequences
        first = int(rng.integers(FIRST_SEED, END_SEED - sequences))
        seeds = list(range(first, first + sequences))
        points = self.search.ask(rng)
        candidates = [self.search.weights_at(point) for point in points]
        trials = [(candidate, seed) for seed in seeds for candidate in range(len(candidates))]
        scores = self._run_all("compare", trials, candidates)
        values, losses = (
            np.array(each).reshape(len(seeds), -1).T
            for each in zip(*((score.value, score.loss) for score in scores), strict=True)
        )
        self.search.tell(points, relative_costs(losses))
        self.set_module_weights(self.search.mean_weights())
        return {
            "decisions": float(sum(score.decisions for score in scores)),
            "rollouts": float(len(trials)),
            "cost_mean": float(values.mean()),
            "cost_best": float(values[losses.mean(axis=1).argmin()].mean()),
            "spread": self.search.spread,
        }

    def _draw_specs(self) -> list[RolloutSpec]:
        groups, horizon, rng = self.config.sampling, self.config.learning.horizon, self._rng()
        sequences = rng.integers(FIRST_SEED, END_SEED, groups.sequences)
        action_seeds = rng.integers(1 << 40, size=(groups.sequences, groups.per_sequence))
        horizon_s = horizon.at(self.iteration) if horizon else None
        return [
            RolloutSpec(int(sequence), int(action_seed), groups.keep, horizon_s)
            for sequence, own in zip(sequences, action_seeds, strict=True)
            for action_seed in own
        ]

    def roll_out(self, assignments: Sequence[RolloutSpec]) -> list[list[Sample]]:
        """Groups of two or more samples of one sequence.

        What a dying worker did not return is left out; a baseline needs two.
        """
        for _ in range(TRIES):
            costs = self.config.costs_of(assignments)
            made = self._run_on_workers("sample", assignments, self.module_weights(), costs)
            by_sequence: dict[int, list[Sample]] = {}
            for spec in assignments:  # the order does not depend on which worker was first
                if spec in made:
                    by_sequence.setdefault(spec.sequence, []).append(made[spec])
            groups = [group for group in by_sequence.values() if len(group) >= 2]
            if groups:
                return groups
            self.restore_env_runners(self.env_runner_group)
        raise RuntimeError(f"no rollout worker answered in {TRIES} tries")

    def advantages(self, groups: Sequence[Sequence[Sample]]) -> NDArray[np.float32]:
        """(kept decisions,) with mean 0 and standard deviation 1."""
        learning = self.config.learning
        rollouts = self._differential([[each.rollout for each in group] for group in groups])
        if learning.baseline == "time":
            rollouts = [[rollout for group in rollouts for rollout in group]]
        if learning.credit_horizon_s is not None:
            found = bootstrapped_advantages(
                rollouts, learning.discount_per_s, learning.credit_horizon_s
            )
        else:
            found = [
                advantage
                for group in rollouts
                for advantage in group_advantages(group, learning.discount_per_s)
            ]
        remaining = iter(found)
        kept = [[next(remaining)[own.kept] for own in group] for group in groups]
        return normalised(kept, per_group=learning.scale == "sequence")

    def _differential(self, groups: Sequence[Sequence[Rollout]]) -> list[list[Rollout]]:
        """Subtract the running mean reward rate, where `differential` is set."""
        if not self.config.learning.differential:
            return [list(group) for group in groups]
        rollouts = [rollout for group in groups for rollout in group]
        now = sum(float(r.reward.sum()) for r in rollouts) / sum(r.end_s for r in rollouts)
        before = now if self.reward_rate is None else self.reward_rate
        rate = self.reward_rate = RATE_DECAY * before + (1 - RATE_DECAY) * now
        return [[with_differential_rewards(rollout, rate) for rollout in group] for group in groups]

    def policy_weights(self) -> Weights:
        return self.module_weights() if self.averaged is None else self.averaged

    def set_module_weights(self, weights: Weights) -> None:
        super().set_module_weights(weights)
        self.learners.reset()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.learners.reset()
