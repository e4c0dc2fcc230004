"""RLlib's rollout worker with a `RolloutEngine` that makes whole rollouts.

Everything around sampling stays RLlib's: workers are its actors, its group restarts those that die,
and its checkpoints hold their state. Weights come with every request, so a worker that was just
restarted or restored never acts on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutEngine, RolloutSpec

Task = Literal["sample", "evaluate", "compare"]


class EngineRunner(EnvRunner, Checkpointable):
    """Runs rollouts in the engine that the algorithm's config builds."""

    def __init__(self, *, config: Any, **settings: Any) -> None:
        super().__init__(config=config, **settings)
        self._engine: RolloutEngine | None = None
        self.make_module()

    @property
    def engine(self) -> RolloutEngine:
        """Built on first use: the driver's own runner may never roll out."""
        if self._engine is None:
            self._engine = self.config.build_engine()
        return self._engine

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
        self._use(weights)
        return self.engine.roll_out(self.module, assignments)

    def evaluate(self, weights: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        """Score the greedy policy."""
        self._use(weights)
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

    def _use(self, weights: Any) -> None:
        self.module.set_state(weights)

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
            self._use(weights.get(DEFAULT_MODULE_ID, weights))

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), {"config": self.config}

    def assert_healthy(self) -> None:
        assert self.module is not None
