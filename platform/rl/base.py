"""What every algorithm shares: RLlib's workers with a rollout engine, weights, seeds and state."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import ray
from gymnasium import Space
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.platform.rl.rollout import RolloutEngine, balanced_shares
from loadmaster.platform.rl.workers import EngineRunner, Task, wait_for_workers
from loadmaster.platform.training.config import BaseConfig, BaseLearning, BaseRollouts

ROLLOUTS = "rollouts"  # key of an iteration's metrics in RLlib's results
FIRST_SEED, END_SEED = 1_000_000, 900_000_000  # sequences to learn from; others validate
TRIES = 5  # to get a result from workers of which some die meanwhile

Weights = Mapping[str, NDArray[Any]]


class EngineConfig(AlgorithmConfig):
    """RLlib's config with a rollout engine, and the settings of its rollouts and of learning."""

    sampling: BaseRollouts  # of an iteration
    learning: BaseLearning

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.engine: Callable[[], RolloutEngine] | None = None  # built where it is needed
        self.run_folder: str | None = None  # for data beside the checkpoints; None: temporary
        self.env_runner_cls = EngineRunner
        # A worker that dies is replaced; the iteration continues with the others' results.
        self.restart_failed_env_runners = True
        self.ignore_env_runner_failures = False
        self.env_runner_health_probe_timeout_s = 0.5  # of every iteration without all workers
        self.env_runner_restore_timeout_s = 60.0
        self.max_requests_in_flight_per_env_runner = 4
        self.create_local_env_runner = True
        # Each request has all that a worker needs, so RLlib's exchange of the workers' states after
        # every iteration is left out.
        self.merge_env_runner_states = False
        self.broadcast_env_runner_states = False

    def rollout_engine(
        self,
        *,
        engine: Callable[[], RolloutEngine] | None = None,
        sampling: BaseRollouts | None = None,
        learning: BaseLearning | None = None,
    ) -> Self:
        """`engine` builds a RolloutEngine in the process that needs it. None: as it was."""
        self.engine = engine or self.engine
        self.sampling = sampling or self.sampling
        self.learning = learning or self.learning
        return self

    def for_training(
        self,
        config: BaseConfig,
        *,
        spaces: tuple[Space[Any], Space[Any]],
        module: RLModuleSpec,
        engine: Callable[[], RolloutEngine],
    ) -> Self:
        """Take a training's settings; `spaces` are of observations and of actions."""
        self.environment(observation_space=spaces[0], action_space=spaces[1])
        self.env_runners(num_env_runners=config.rollouts.workers)
        resources = config.resources
        self.learners(
            num_learners=resources.learners,
            num_cpus_per_learner=0 if resources.gpus else 1,
            num_gpus_per_learner=resources.gpu_share if resources.gpus else 0,
        )
        self.rl_module(rl_module_spec=module)
        self.debugging(seed=config.seed, log_level="ERROR")
        return self.rollout_engine(
            engine=engine, sampling=config.rollouts, learning=config.training
        )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Empty: each system defines its module."""
        return RLModuleSpec()


class EngineAlgorithm(Algorithm):
    """Runs rollouts and validations on the workers, and keeps the state of exact resumes.

    All random numbers depend on the seed and the iteration only, so a run that was killed and
    resumed continues exactly.
    """

    config: EngineConfig
    saved: ClassVar[tuple[str, ...]] = ()  # attributes in checkpoints

    def _setup_logdir(self) -> None:
        """Use a temporary folder where Tune gives none; RLlib would use the home folder."""
        if self._storage:
            super()._setup_logdir()
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="lm-algorithm-")
            self._logdir = self._scratch.name

    def episode_values(self, seeds: Sequence[int]) -> list[float]:
        """The metric of the greedy policy on the episodes of `seeds`, run by the workers."""
        return [score.value for score in self._run_all("evaluate", seeds, self.policy_weights())]

    def _run_all(self, task: Task, work: Sequence[Any], weights: Any) -> list[Any]:
        """A result for every item; what a dying worker did not return is run again."""
        found: dict[Any, Any] = {}
        for _ in range(TRIES):
            found.update(
                self._run_on_workers(task, [each for each in work if each not in found], weights)
            )
            if len(found) == len(work):
                return [found[each] for each in work]
        raise RuntimeError(f"no rollout worker answered in {TRIES} tries")

    def _run_on_workers(
        self,
        task: Task,
        work: Sequence[Any],
        weights: Any,
        costs: Sequence[float] | None = None,
    ) -> dict[Any, Any]:
        """Distribute work over the healthy workers; results by item, without those that failed.

        `costs`: of each item, relative to the others; None: all cost the same.
        """
        group = self.env_runner_group
        if not group.num_remote_env_runners():
            return dict(group.local_env_runner.run_task(task, weights, work))
        workers = wait_for_workers(group, self.restore_env_runners)
        busy = workers[: len(work)]
        shares = balanced_shares(work, costs or [1.0] * len(work), len(busy))
        shared = ray.put(weights)
        # RLlib passes each worker its own arguments only to methods called by name.
        answers = group.foreach_env_runner(
            "run_task",
            kwargs=[
                {
                    "task": task,
                    "weights": shared,
                    "work": share,
                    "worker": worker,
                }
                for share, worker in zip(shares, busy, strict=True)
            ],
            remote_worker_ids=busy,
            local_env_runner=False,
        )
        return {item: result for answer in answers for item, result in answer}

    def policy_weights(self) -> Weights:
        """Weights to validate and save, by name."""
        return self.module_weights()

    def module_weights(self) -> Weights:
        """Weights that act and learn, as numpy arrays, by name."""
        state = self.learner_group.get_state(
            components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
        )
        weights = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
        # RLlib turns a tensor without dimensions into a Python float.
        return {
            name: np.asarray(value, np.float32) if isinstance(value, float) else value
            for name, value in weights.items()
        }

    def set_module_weights(self, weights: Weights) -> None:
        """Replace the learner's weights; workers get them with their next request."""
        module = {COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: dict(weights)}}
        self.learner_group.set_state({COMPONENT_LEARNER: module})

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.config.seed or 0, self.iteration])

    def _seed_of(self, stream: int) -> int:
        """A seed of this iteration, for one of its streams of random numbers."""
        rng = np.random.default_rng([self.config.seed or 0, self.iteration, stream])
        return int(rng.integers(1 << 31))

    def get_state(self, components: Any = None, **settings: Any) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.saved}
        return {**super().get_state(components, **settings), **own}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for name in self.saved:
            setattr(self, name, state.get(name, getattr(self, name)))
