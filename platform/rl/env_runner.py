"""RLlib's rollout worker, with the sampling left to an engine of ours.

Everything around sampling stays RLlib's: workers are its actors, its group restarts those that die
and its checkpoints hold their state. The weights arrive with every request instead of ahead of it:
a worker that was just restarted, or just restored, can never act on weights of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutEngine, RolloutSpec


class EngineRunner(EnvRunner, Checkpointable):
    """Runs whole rollouts in the engine that the algorithm's config names."""

    def __init__(self, *, config: Any, **settings: Any) -> None:
        super().__init__(config=config, **settings)
        self._engine: RolloutEngine | None = None
        self.make_module()

    @property
    def engine(self) -> RolloutEngine:
        """Built when first needed: the driver's own runner may never roll anything out."""
        if self._engine is None:
            self._engine = self.config.build_engine()
        return self._engine

    def make_module(self) -> None:
        spec = self.config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        self.module = spec.build()

    def answer(self, method: str, weights: Any, part: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """`sample`, `judge` or `compare`, for a caller that has to know which part was answered."""
        return part, getattr(self, method)(weights, part)

    def sample(self, weights: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        self._use(weights)
        return self.engine.roll_out(self.module, assignments)

    def judge(self, weights: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        self._use(weights)
        return self.engine.judge(self.module, seeds)

    def compare(self, candidates: Any, trials: Sequence[tuple[int, int]]) -> list[EpisodeScore]:
        """Each trial is a candidate's number and the seed of an episode."""
        found: dict[tuple[int, int], EpisodeScore] = {}
        for candidate in sorted({candidate for candidate, _ in trials}):
            seeds = [seed for other, seed in trials if other == candidate]
            verdicts = self.judge(candidates[candidate], seeds)
            found.update(zip([(candidate, seed) for seed in seeds], verdicts, strict=True))
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
        if isinstance(weights, ray.ObjectRef):  # RLlib passes them by reference, when it starts
            weights = ray.get(weights)
        if weights is not None:
            self._use(weights.get(DEFAULT_MODULE_ID, weights))

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), {"config": self.config}

    def assert_healthy(self) -> None:
        assert self.module is not None
