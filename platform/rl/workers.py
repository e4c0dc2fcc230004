"""RLlib's rollout workers, which also learn from what they recorded."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from loadmaster.platform.rl.learner import STATE, InputDrivenLearner
from loadmaster.platform.rl.peers import PeerError, Peers, Rendezvous
from loadmaster.platform.rl.rollout import (
    EpisodeScore,
    Recording,
    RolloutEngine,
    RolloutSpec,
    Sample,
)

Task = Literal["sample", "record", "evaluate", "compare"]
REPLACE_S = 600.0  # until one of the workers is back, if all died: a new machine takes minutes
PAUSE_S = 0.2


def wait_for_workers(
    group: Any, restore: Callable[[Any], Any], limit_s: float = REPLACE_S
) -> list[int]:
    """Numbers of the healthy workers of RLlib's group; where all died, wait for the first.

    Ray starts them again as soon as a node has room. `restore` finds out which are back.
    """
    end = time.monotonic() + limit_s
    while not (found := list(group.healthy_env_runner_ids())):
        if time.monotonic() >= end:
            raise RuntimeError(f"no rollout worker was back within {limit_s:.0f} s")
        restore(group)
        time.sleep(PAUSE_S)
    return found


class EngineRunner(EnvRunner, Checkpointable):
    """Runs whole rollouts in the engine that the algorithm's config builds, and learns from them.

    Everything around sampling stays RLlib's: its group restarts workers that die, and its
    checkpoints hold their state. Weights come with every request, so a worker that was just
    restarted or restored never acts on others. Recordings of the last request stay in the worker
    for its learner; where learners have processes of their own, Ray's object store passes them on.
    """

    def __init__(self, *, config: Any, **settings: Any) -> None:
        super().__init__(config=config, **settings)
        self._recordings: dict[RolloutSpec, Recording] = {}
        self._rendezvous: Rendezvous | None = None
        self._number = 0
        self.group = 0  # number of the group of learners that this one is in; 0: none
        self.make_module()

    @cached_property
    def engine(self) -> RolloutEngine:
        """Built on first use: the driver's own runner may never roll out."""
        built: RolloutEngine = self.config.engine()
        return built

    def make_module(self) -> None:
        spec = self.config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        self.module = spec.build()

    def run_task(
        self, task: Task, weights: Any, work: Sequence[Any], worker: int = 0
    ) -> list[tuple[Any, Any]]:
        """Run a task on each item of `work`; pairs of item and result.

        `worker` is this one's number in the driver.
        """
        self._number = worker
        tasks: dict[Task, Callable[[Any, Sequence[Any]], list[Any]]] = {
            "sample": self.sample,
            "record": self.record,
            "evaluate": self.evaluate,
            "compare": self.compare,
        }
        return list(zip(work, tasks[task](weights, work), strict=True))

    def sample(self, weights: Any, specs: Sequence[RolloutSpec]) -> list[Sample]:
        self.module.set_state(weights)
        self._recordings = {}  # before the next are made, to need the memory once
        made = self.engine.roll_out(self.module, specs)
        passed_on = self.config.num_learners > 0
        if not passed_on:
            self._recordings = dict(zip(specs, made, strict=True))
        return [
            Sample(
                spec=spec,
                worker=self._number,
                kept=one.kept,
                rollout=one.rollout,
                figures=one.figures,
                truncated=one.last is not None,
                data=ray.put(one) if passed_on else None,
            )
            for spec, one in zip(specs, made, strict=True)
        ]

    def record(self, weights: Any, specs: Sequence[RolloutSpec]) -> list[Recording]:
        """Roll out and return everything, for a replay in the driver."""
        self.module.set_state(weights)
        return self.engine.roll_out(self.module, specs)

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

    # Learning.

    @cached_property
    def learner(self) -> InputDrivenLearner:
        """Built on first use; its state comes with `join`."""
        built: InputDrivenLearner = self.config.build_learner(spaces=self.get_spaces())
        return built

    def open_rendezvous(self) -> tuple[str, int]:
        """Start the store by which a group of learners is formed; its address."""
        self._rendezvous = Rendezvous()
        return self._rendezvous.address

    def join(
        self, group: int, state: Any, rank: int, size: int, address: tuple[str, int] | None
    ) -> bool:
        """Join a group of learners with the driver's state; False if a member does not connect."""
        self.group, self.learner.peers = 0, None  # closes the connections of the last group
        self.learner.set_state(state)
        try:
            if address is not None:
                self.learner.peers = Peers(address, rank, size)
        except PeerError:
            return False
        self.group = group
        return True

    def learn(
        self, group: int, specs: Sequence[RolloutSpec], **arguments: Any
    ) -> tuple[dict[str, float], Any] | None:
        """Learn from own recordings with the group: metrics and, of the first member, the state.

        None if this worker or another was replaced meanwhile.
        """
        if group != self.group:
            return None
        try:
            metrics = self.call_learner("learn", specs, **arguments)
        except PeerError:
            self.group, self.learner.peers = 0, None  # so that the others notice at once
            return None
        peers = self.learner.peers
        first = peers is None or peers.rank == 0
        return metrics, self.learner.get_state(components=STATE) if first else None

    def call_learner(self, method: str, specs: Sequence[RolloutSpec], **arguments: Any) -> Any:
        """Call a learner's method with own recordings."""
        recordings = [self._recordings[spec] for spec in specs]
        keys = [spec.action_seed for spec in specs]
        return getattr(self.learner, method)(recordings, keys=keys, **arguments)

    # RLlib.

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
