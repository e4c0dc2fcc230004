"""Learning from groups of rollouts that share their input, on RLlib's workers and learners."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core import (
    COMPONENT_LEARNER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS

from loadmaster.platform.rl.advantages import Rollout, bootstrapped_advantages, group_advantages
from loadmaster.platform.rl.batches import figures_of, learning_batches, less, normalised
from loadmaster.platform.rl.env_runner import EngineRunner
from loadmaster.platform.rl.evolution import WeightSearch, relative_costs
from loadmaster.platform.rl.learner import InputDrivenLearner
from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutEngine, RolloutSpec

ROLLOUTS = "rollouts"  # where an iteration's figures are in RLlib's results
REWARD_RATE, AVERAGED, SEARCH = "reward_rate", "averaged", "search"
RATE_MEMORY = 0.9  # of the running mean of rewards per second
FIRST_SEED, END_SEED = 1_000_000, 900_000_000  # sequences to learn from; others are for judging
TRIES = 5  # to get any rollout at all while workers are being replaced


class InputDrivenConfig(AlgorithmConfig):
    """RLlib's config, and the three records that say how to roll out and learn."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or InputDriven)
        self.engine: Callable[[], RolloutEngine] | None = None
        self.groups: Any = None
        self.learning: Any = None
        self.env_runner_cls = EngineRunner
        # A worker that dies is replaced, and the iteration goes on with what the others brought.
        self.restart_failed_env_runners = True
        self.ignore_env_runner_failures = False
        self.env_runner_health_probe_timeout_s = 10.0
        self.env_runner_restore_timeout_s = 60.0
        self.max_requests_in_flight_per_env_runner = 4
        self.create_local_env_runner = True

    def input_driven(
        self,
        *,
        engine: Any = NotProvided,
        groups: Any = NotProvided,
        learning: Any = NotProvided,
    ) -> InputDrivenConfig:
        """`engine` builds a RolloutEngine, in the process that needs one."""
        for name, value in (("engine", engine), ("groups", groups), ("learning", learning)):
            if value is not NotProvided:
                setattr(self, name, value)
        return self

    def build_engine(self) -> RolloutEngine:
        assert self.engine is not None, "input_driven(engine=...) was not called"
        return self.engine()

    def get_default_learner_class(self) -> type:
        return InputDrivenLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Empty: a system says what its module is, there is no default that would fit."""
        return RLModuleSpec()


class InputDriven(Algorithm):
    """One iteration: draw input sequences, roll each out several times, learn from the differences.

    Whatever is drawn depends on the seed and the iteration alone, so a run that was killed and
    resumed goes on exactly as if nothing had happened.
    """

    def setup(self, config: Any) -> None:
        self.reward_rate: float | None = None  # running mean of rewards per second
        self.search: WeightSearch | None = None  # where the method is evolution
        self.averaged: dict[str, NDArray[Any]] | None = None  # running mean of the weights
        super().setup(config)

    def _setup_logdir(self) -> None:
        """Where Tune gives no folder RLlib makes one in the home folder; ours leaves no trace."""
        if self._storage:
            super()._setup_logdir()
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="lm-algorithm-")
            self._logdir = self._scratch.name

    @classmethod
    def get_default_config(cls) -> InputDrivenConfig:
        return InputDrivenConfig()

    def training_step(self) -> None:
        began = time.perf_counter()
        if self.config.learning.method == "evolution":
            self._report(self._evolve(), began)
            return
        groups = self.roll_out(self._draw_assignments())
        rolled_out = time.perf_counter()
        self.metrics.aggregate(self.learn(groups), key=LEARNER_RESULTS)
        figures = figures_of([recording for group in groups for recording in group])
        self._report(figures, began, rolled_out)

    def _report(
        self, figures: dict[str, float], began: float, rolled_out: float | None = None
    ) -> None:
        now = time.perf_counter()
        figures["workers"] = float(self.env_runner_group.num_healthy_remote_env_runners())
        figures["rollout_seconds"] = (rolled_out or now) - began
        figures["update_seconds"] = now - (rolled_out or now)
        for name, value in figures.items():
            self.metrics.log_value((ROLLOUTS, name), value, window=1)

    def learn(self, groups: Sequence[Sequence[Recording]]) -> Any:
        """One update from groups that shared their input; the learner's results."""
        learning, iteration = self.config.learning, self.iteration
        recordings = [recording for group in groups for recording in group]
        advantages = self._advantages(groups)
        epochs, minibatches = learning.passes
        results = self._update(
            learning_batches(recordings, advantages, max(1, self.config.num_learners)),
            num_epochs=epochs,
            minibatches=minibatches,
            learning_rate=learning.learning_rate.at(iteration),
            entropy_weight=learning.entropy.at(iteration),
            shuffle_seed=self._number(iteration),
        )
        self._average()
        return results

    def _average(self) -> None:
        """Polyak and Juditsky (1992): noisy steps lead around a good point; their mean is nearer.

        It forgets as fast as a mean over the last so many iterations does.
        """
        iterations = min(self.iteration + 1, self.config.learning.averaging)
        if self.config.learning.averaging == 1:  # the latest weights are all it takes
            self.averaged = None
            return
        latest = self.module_weights()
        before = latest if self.averaged is None else self.averaged
        self.averaged = {
            name: before[name] + (value - before[name]) / np.float32(iterations)
            for name, value in latest.items()
        }

    def _evolve(self) -> dict[str, float]:
        """One generation: every candidate on the same sequences; its figures."""
        learning, groups = self.config.learning, self.config.groups
        if self.search is None:
            how = learning.evolution
            self.search = WeightSearch(
                self.module_weights(),
                [f"*{pattern}" for pattern in how.weights],
                how.spread,
                how.population,
            )
        rng = np.random.default_rng([self.config.seed or 0, self.iteration])
        seeds = rng.integers(FIRST_SEED, END_SEED, groups.sequences).tolist()
        points, candidates = self.search.candidates(rng)
        trials = [(candidate, seed) for seed in seeds for candidate in range(len(candidates))]
        verdicts = self._all_of("compare", trials, candidates)
        costs, losses = (
            np.array(each).reshape(len(seeds), -1).T
            for each in zip(*((verdict.cost, verdict.loss) for verdict in verdicts), strict=True)
        )
        self.search.search.tell(points, relative_costs(losses))
        self.set_module_weights(self.search.mean())
        self._average()
        return {
            "decisions": float(sum(verdict.decisions for verdict in verdicts)),
            "rollouts": float(len(trials)),
            "cost_mean": float(costs.mean()),
            "cost_best": float(costs.mean(axis=1).min()),
            "spread": self.search.search.spread,
        }

    def judge(self, seeds: Sequence[int]) -> list[float]:
        """The greedy policy's metric on each of these episodes, spread over the workers."""
        return [each.cost for each in self._all_of("judge", seeds, self.policy_weights())]

    def _all_of(self, method: str, work: Sequence[Any], weights: Any) -> list[EpisodeScore]:
        """A verdict on each, though workers may die on the way."""
        found: dict[Any, EpisodeScore] = {}
        for _ in range(TRIES):
            todo = [each for each in work if each not in found]
            for part, verdicts in self._on_workers(method, todo, weights):
                found.update(zip(part, verdicts, strict=True))
            if len(found) == len(work):
                return [found[each] for each in work]
        raise RuntimeError(f"no rollout worker answered in {TRIES} tries")

    def _draw_assignments(self) -> list[RolloutSpec]:
        groups, horizon = self.config.groups, self.config.learning.horizon
        rng = np.random.default_rng([self.config.seed or 0, self.iteration])
        sequences = rng.integers(FIRST_SEED, END_SEED, groups.sequences)
        lucks = rng.integers(1 << 40, size=(groups.sequences, groups.per_sequence))
        horizon_s = horizon.at(self.iteration) if horizon else None
        return [
            RolloutSpec(int(sequence), int(luck), groups.keep, horizon_s)
            for sequence, own in zip(sequences, lucks, strict=True)
            for luck in own
        ]

    def roll_out(self, assignments: Sequence[RolloutSpec]) -> list[list[Recording]]:
        """Groups of two or more recordings of one sequence.

        What a dying worker did not deliver is left out; a group needs two to compare.
        """
        for _ in range(TRIES):
            delivered: dict[RolloutSpec, Recording] = {}
            for part, recordings in self._on_workers("sample", assignments, self.module_weights()):
                delivered.update(zip(part, recordings, strict=True))
            by_sequence: dict[int, list[Recording]] = {}
            for assignment in assignments:  # in the order asked for, whoever answered first
                if assignment in delivered:
                    by_sequence.setdefault(assignment.sequence, []).append(delivered[assignment])
            groups = [group for group in by_sequence.values() if len(group) >= 2]
            if groups:
                return groups
            self.restore_env_runners(self.env_runner_group)
        raise RuntimeError(f"no rollout worker answered in {TRIES} tries")

    def _on_workers(
        self, method: str, work: Sequence[Any], weights: Any
    ) -> list[tuple[Sequence[Any], list[Any]]]:
        """Deal the work out to the healthy workers; what each was given, and what it answered."""
        group = self.env_runner_group
        workers = group.healthy_env_runner_ids()
        if not group.num_remote_env_runners():
            return [(work, getattr(group.local_env_runner, method)(weights, work))]
        if not workers:
            self.restore_env_runners(group)
            workers = group.healthy_env_runner_ids()
        parts = [list(work[place :: len(workers)]) for place in range(len(workers))]
        shared = ray.put(weights)
        busy = [(worker, part) for worker, part in zip(workers, parts, strict=True) if part]

        # The part comes back with the answer: RLlib drops the answers of workers that failed. It
        # passes each worker arguments of its own only to methods called by name.
        return list(
            group.foreach_env_runner(
                "answer",
                kwargs=[{"method": method, "weights": shared, "part": part} for _, part in busy],
                remote_worker_ids=[worker for worker, _ in busy],
                local_env_runner=False,
            )
        )

    def policy_weights(self) -> Any:
        """Of the policy that is judged and kept, by name."""
        return self.module_weights() if self.averaged is None else self.averaged

    def module_weights(self) -> Any:
        """Of the policy that acts and learns, as numpy arrays, by name."""
        state = self.learner_group.get_state(
            components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
        )
        weights = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
        # RLlib makes a Python float of a tensor without dimensions, which is none of ours.
        return {
            name: np.asarray(value, np.float32) if isinstance(value, float) else value
            for name, value in weights.items()
        }

    def set_module_weights(self, weights: Mapping[str, Any]) -> None:
        """Begin with these; workers are sent them with their next request."""
        module = {COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: dict(weights)}}
        self.learner_group.set_state({COMPONENT_LEARNER: module})

    def _advantages(self, groups: Sequence[Sequence[Recording]]) -> NDArray[np.float32]:
        """(decisions learnt from,) with mean 0 and spread 1."""
        learning = self.config.learning
        rollouts = [[recording.rollout for recording in group] for group in groups]
        if learning.differential:
            rate = self._reward_rate(rollouts)
            rollouts = [[less(rollout, rate) for rollout in group] for group in rollouts]
        if learning.baseline == "time":
            rollouts = [[rollout for group in rollouts for rollout in group]]
        if learning.memory_s is not None:
            found = bootstrapped_advantages(rollouts, learning.discount_per_s, learning.memory_s)
        else:
            found = [
                advantage
                for group in rollouts
                for advantage in group_advantages(group, learning.discount_per_s)
            ]
        remaining = iter(found)
        learnt = [[next(remaining)[own.kept] for own in group] for group in groups]
        return normalised(learnt, alike=learning.scale == "sequence")

    def _reward_rate(self, groups: Sequence[Sequence[Rollout]]) -> float:
        rollouts = [rollout for group in groups for rollout in group]
        now = sum(float(r.reward.sum()) for r in rollouts) / sum(r.end_s for r in rollouts)
        before = now if self.reward_rate is None else self.reward_rate
        self.reward_rate = RATE_MEMORY * before + (1 - RATE_MEMORY) * now
        return self.reward_rate

    def _update(self, batches: list[Any], **settings: Any) -> Any:
        if self.learner_group.is_local:
            return self.learner_group.update(batch=batches[0], **settings)
        return self.learner_group.update(batches=batches, **settings)

    def _number(self, iteration: int) -> int:
        return int(np.random.default_rng([self.config.seed or 0, iteration, 1]).integers(1 << 31))

    def get_state(self, components: Any = None, **settings: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(components, **settings)
        state[REWARD_RATE], state[AVERAGED] = self.reward_rate, self.averaged
        state[SEARCH] = self.search
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.reward_rate = state.get(REWARD_RATE, self.reward_rate)
        self.averaged = state.get(AVERAGED, self.averaged)
        self.search = state.get(SEARCH, self.search)
