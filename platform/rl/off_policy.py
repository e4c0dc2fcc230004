"""Learning from a replay of all transitions so far, on RLlib's workers and learner."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import LEARNER_RESULTS

from loadmaster.envs.errors import InputError
from loadmaster.models.ddpg.settings import CONTEXT_ID
from loadmaster.models.layers import one_thread
from loadmaster.platform.rl.base import (
    END_SEED,
    FIRST_SEED,
    ROLLOUTS,
    EngineAlgorithm,
    EngineConfig,
    Weights,
)
from loadmaster.platform.rl.ddpg import DdpgLearner
from loadmaster.platform.rl.replay import Layout, Minibatches, Position, Replay
from loadmaster.platform.rl.rollout import Recording, RolloutSpec, summary_metrics
from loadmaster.platform.training.config import (
    Episodes,
    OffPolicyLearning,
)

REPLAY = "replay"  # folder in the run's, or in a checkpoint; key of its position in a state
CHUNK = 256  # updates whose minibatches are drawn at once
EXPLORATION, CONTEXTS = "exploration", "contexts"  # buffers of the module, among its weights
NETWORK, TARGET = "network.", "target_network."  # prefixes of weights


class OffPolicyConfig(EngineConfig):
    """EngineConfig with the settings of episodes and of learning from a replay."""

    sampling: Episodes
    learning: OffPolicyLearning

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or OffPolicy)
        self.sampling, self.learning = Episodes(), OffPolicyLearning()

    def get_default_learner_class(self) -> type:
        return DdpgLearner


class OffPolicy(EngineAlgorithm):
    """One iteration: roll out episodes, append them to the replay, update from drawn minibatches.

    A checkpoint refers to the replay in the run's folder by its id and number of rows. Without such
    a folder the replay is temporary, and every checkpoint holds a copy.
    """

    config: OffPolicyConfig
    saved: ClassVar[tuple[str, ...]] = ("steps", "updates")

    def setup(self, config: Any) -> None:
        self.steps = 0  # transitions so far
        self.updates = 0
        self._replay: Replay | None = None  # made with the first transition, or restored
        self._checkpoint: Path | None = None  # being restored
        super().setup(config)

    @classmethod
    def get_default_config(cls) -> OffPolicyConfig:
        return OffPolicyConfig()

    def training_step(self) -> None:
        began = time.perf_counter()
        specs, noise = self.draw_specs(), self._exploration()
        weights = {**self.module_weights(), EXPLORATION: noise}
        recordings: list[Recording] = self._run_all("record", specs, weights)
        for spec, recording in zip(specs, recordings, strict=True):
            self.add_episode(recording, spec.context)
        rolled_out = time.perf_counter()
        self._learn(sum(recording.decisions for recording in recordings))
        metrics = summary_metrics(recordings)
        metrics["noise"] = float(noise[0])
        metrics["replay_rows"] = float(self.replay.length)
        metrics["updates"] = float(self.updates)
        metrics["workers"] = float(self.env_runner_group.num_healthy_remote_env_runners())
        metrics["rollout_seconds"] = rolled_out - began
        metrics["update_seconds"] = time.perf_counter() - rolled_out
        for name, value in metrics.items():
            self.metrics.log_value((ROLLOUTS, name), value, window=1)

    def draw_specs(self) -> list[RolloutSpec]:
        """The iteration's episodes; a subclass may choose their contexts."""
        rng, count = self._rng(), self.config.sampling.episodes
        sequences = rng.integers(FIRST_SEED, END_SEED, count)
        action_seeds = rng.integers(1 << 40, size=count)
        return [
            RolloutSpec(int(sequence), int(action_seed))
            for sequence, action_seed in zip(sequences, action_seeds, strict=True)
        ]

    def _exploration(self) -> NDArray[np.float32]:
        """Standard deviation of the noise, and the share of random actions."""
        learning = self.config.learning
        epsilon = max(0.0, learning.epsilon - learning.epsilon_decay * self.steps)
        warming_up = self.steps < learning.warm_up
        return np.array([learning.noise * epsilon, float(warming_up)], np.float32)

    def add_episode(self, recording: Recording, context: int = 0) -> None:
        """Append an episode, of this training or from elsewhere, to the replay."""
        if len(recording.kept) < recording.decisions:
            raise InputError(
                f"an episode of {recording.decisions:,} decisions has {len(recording.kept):,} of "
                "them; expected all: transitions are consecutive"
            )
        columns = {CONTEXT_ID: context} if CONTEXT_ID in self.replay.layout.integers else {}
        last = None if recording.last is None else recording.last[0]
        self.replay.append(
            recording.observations, recording.actions, recording.rollout.reward, last, **columns
        )

    def _learn(self, steps: int) -> None:
        """Count new transitions and take the updates that are due for them."""
        learning = self.config.learning
        before = max(0, self.steps - learning.warm_up)
        self.steps += steps
        after = max(0, self.steps - learning.warm_up)
        due = int(learning.updates_per_step * after) - int(learning.updates_per_step * before)
        if not due:
            return
        seed = self._seed_of(2)
        with one_thread():
            (found,) = self.learner_group.foreach_learner(
                lambda learner: learner.learn(self._draw(due), first=self.updates, seed=seed)
            )
        self.updates += due
        for name, value in found.get().items():
            self.metrics.log_value((LEARNER_RESULTS, DEFAULT_MODULE_ID, name), value, window=1)

    def _draw(self, updates: int) -> Iterator[Minibatches]:
        """Minibatches of this iteration, CHUNK at a time."""
        seed, size = self._seed_of(3), self.config.learning.minibatch
        for first in range(0, updates, CHUNK):
            yield self.replay.draw((min(CHUNK, updates - first), size), seed + first)

    # Weights.

    def set_module_weights(self, weights: Weights) -> None:
        """Replace the weights; the target networks become copies of them."""
        targets = {
            TARGET + name.removeprefix(NETWORK): table
            for name, table in weights.items()
            if name.startswith(NETWORK)
        }
        super().set_module_weights({**weights, **targets})

    def set_contexts(self, table: NDArray[np.float32]) -> None:
        """Replace the vectors that transitions and episodes refer to by `RolloutSpec.context`."""
        super().set_module_weights({CONTEXTS: table})

    # Replay and checkpoints.

    @property
    def replay(self) -> Replay:
        if self._replay is None:
            self._replay = Replay.create(self._replay_folder, *self._replay_shape)
        return self._replay

    @property
    def _replay_folder(self) -> Path:
        return Path(self.config.run_folder or self.logdir) / REPLAY

    @property
    def _replay_shape(self) -> tuple[Layout, int]:
        observation, action = self.config.observation_space, self.config.action_space
        given = self.config.get_rl_module_spec().model_config or {}
        integers = {CONTEXT_ID: "int32"} if given.get("contexts") else {}
        layout = Layout(observation.shape[0], action.shape[0], integers)
        return layout, self.config.learning.replay

    def get_state(self, components: Any = None, **settings: Any) -> dict[str, Any]:
        position = None
        if self._replay is not None:
            # Without a run's folder a copy follows: see `save_to_path`.
            in_place = self.config.run_folder is not None
            position = tuple(self._replay.save() if in_place else self._replay.position)
        return {**super().get_state(components, **settings), REPLAY: position}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        position = state.get(REPLAY)
        self._replay = None if position is None else self._open_replay(Position(*position))

    def _open_replay(self, position: Position) -> Replay:
        folder = self._replay_folder
        copy = None if self._checkpoint is None else self._checkpoint / REPLAY
        if copy is not None and copy.is_dir():
            Replay.read_copy(copy, folder, *self._replay_shape)
        found = Replay.restore(folder, *self._replay_shape, position)
        if found is None:
            raise InputError(f"{folder} is not the replay of the checkpoint; expected it there")
        if self.config.run_folder is None:
            found.saved = None
        return found

    def save_to_path(self, path: Any = None, **settings: Any) -> Any:
        saved = super().save_to_path(path, **settings)
        if self.config.run_folder is None and self._replay is not None:
            self._replay.write_copy(Path(saved) / REPLAY)
        return saved

    def restore_from_path(self, path: Any, **settings: Any) -> None:
        self._checkpoint = Path(path)
        try:
            super().restore_from_path(path, **settings)
        finally:
            self._checkpoint = None
