"""Off-policy learning with a meta-learner: embeddings of applications by their best trajectories.

Every iteration the base learner is updated as in DDPG, with each application's embedding as the
context of its transitions. Then the encoder is: the losses of the base learner, summed over sampled
applications, reach it through their embeddings (Qiu et al. 2023, algorithm 2). Trajectories are
kept as places in the replay, the best of each application by return.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.models.aware.encoder import Trajectory, TrajectoryEncoder
from loadmaster.models.aware.network import STEP_WIDTH, AwareNetwork
from loadmaster.models.ddpg.settings import CONTEXT, CONTEXT_ID
from loadmaster.models.layers import one_thread
from loadmaster.platform.rl.ddpg import DdpgLearner, actor_loss, critic_loss
from loadmaster.platform.rl.off_policy import OffPolicy, OffPolicyConfig
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.training.config import OffPolicyLearning

ENCODER = "encoder"  # name of its optimiser
TABLE_BATCH = 64  # applications whose embeddings are computed at once


class MarginLearning(OffPolicyLearning):
    """TD3 with small steps: the actor starts at the rule, whose margins are near their best."""

    actor_learning_rate: PositiveFloat = 1e-4
    critic_learning_rate: PositiveFloat = 1e-3
    gamma: float = Field(default=0.95, gt=0, le=1)
    warm_up: NonNegativeInt = 0  # the rule needs no random actions
    soft_update: float = Field(default=0.01, gt=0, le=1)
    actor_delay: PositiveInt = 2
    smoothing: NonNegativeFloat = 0.1


class AwareLearning(MarginLearning):
    """Learning from all applications, and of the encoder."""

    minibatch: PositiveInt = 128
    updates_per_step: PositiveFloat = 0.1
    noise: NonNegativeFloat = 0.25
    epsilon_decay: NonNegativeFloat = 2e-7
    action_cost: NonNegativeFloat = 0.01
    actor_start: NonNegativeInt = 2000
    meta_learning_rate: PositiveFloat = 3e-4  # of the encoder
    meta_applications: PositiveInt = 32  # sampled for an update of the encoder
    meta_updates: NonNegativeInt = 1  # an iteration
    meta_trajectories: PositiveInt = 4  # of each application, in an update
    table_every: PositiveInt = 5  # iterations between new embeddings of all applications


class MetaConfig(OffPolicyConfig):
    """OffPolicyConfig with the application of a seed, and how many trajectories each keeps."""

    learning: AwareLearning

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.learning = AwareLearning()
        self.row_of: Callable[[int], int] = lambda seed: 0
        self.trajectories = 20  # of an application

    def get_default_learner_class(self) -> type:
        return MetaLearner


class MetaLearner(DdpgLearner):
    """DDPG's learner, with an optimiser for the encoder of its module's network."""

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        super().configure_optimizers_for_module(module_id, config)
        network = self.module[module_id].unwrapped().network
        if network.encoder is not None:
            weights = list(network.encoder.parameters())
            self.add_adam(module_id, weights, self.config.learning.meta_learning_rate, ENCODER)

    def meta_update(
        self, applications: list[list[Trajectory]], batch: dict[str, NDArray[Any]]
    ) -> float:
        """Step the encoder along both losses; `batch` has each row's place among `applications`.

        Actor and critics stay: their gradients are discarded.
        """
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        network: AwareNetwork = module.network
        own = list(_encoder_of(network).parameters())
        encoder, device = self._fastest_encoder()
        embedded = encoder.embed(_on(applications, device))
        given = embedded.detach().cpu().requires_grad_()
        columns = {name: torch.from_numpy(column) for name, column in batch.items()}
        columns[CONTEXT] = given[columns.pop(CONTEXT_ID)]
        learning = self.config.learning
        loss = critic_loss(module, columns, learning.gamma)
        loss = loss + actor_loss(module, columns, learning.action_cost)
        (gradient,) = torch.autograd.grad(loss, given)
        found = torch.autograd.grad(embedded, list(encoder.parameters()), gradient.to(device))
        for weight, each in zip(own, found, strict=True):
            weight.grad = each.cpu()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID, ENCODER)
        self._set_optimizer_lr(optimizer, learning.meta_learning_rate)  # a resumed run's may differ
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    @torch.no_grad()
    def embed(self, applications: list[list[Trajectory]]) -> NDArray[np.float32]:
        """(A, embedding) of these applications."""
        encoder, device = self._fastest_encoder()
        found: NDArray[np.float32] = encoder.embed(_on(applications, device)).cpu().numpy()
        return found

    def _fastest_encoder(self) -> tuple[TrajectoryEncoder, torch.device]:
        """The encoder, or a copy with the same weights on a GPU that this process sees."""
        network: AwareNetwork = self.module[DEFAULT_MODULE_ID].unwrapped().network
        encoder = _encoder_of(network)
        if not torch.cuda.is_available():
            return encoder, torch.device("cpu")
        device = torch.device("cuda")
        copy = TrajectoryEncoder(encoder.settings, STEP_WIDTH, encoder.embedding).to(device)
        copy.load_state_dict(encoder.state_dict())
        return copy, device


def _encoder_of(network: AwareNetwork) -> TrajectoryEncoder:
    assert network.encoder is not None  # checked by the caller: without one there are no contexts
    return network.encoder


def _on(applications: list[list[Trajectory]], device: torch.device) -> list[list[Tensor]]:
    return [[torch.from_numpy(each).to(device) for each in own] for own in applications]


class MetaOffPolicy(OffPolicy):
    """OffPolicy whose contexts are embeddings, with a meta-learner that is trained beside it."""

    config: MetaConfig
    saved: ClassVar[tuple[str, ...]] = (*OffPolicy.saved, "best")

    def setup(self, config: Any) -> None:
        # By application: (return, first row, steps) of its best trajectories, the best first.
        self.best: dict[int, list[tuple[float, int, int]]] = {}
        super().setup(config)

    def draw_specs(self) -> list[RolloutSpec]:
        row_of = self.config.row_of
        return [
            RolloutSpec(spec.sequence, spec.action_seed, context=row_of(spec.sequence))
            for spec in super().draw_specs()
        ]

    def add_episode(self, recording: Recording, context: int = 0) -> None:
        first = self.replay.rows
        super().add_episode(recording, context)
        found = float(recording.rollout.reward.sum()), first, recording.decisions
        kept = sorted([*self.best.get(context, []), found], reverse=True)
        self.best[context] = kept[: self.config.trajectories]

    def training_step(self) -> None:
        super().training_step()
        learning = self.config.learning
        if not len(self._module.contexts) or not learning.meta_updates:
            return
        self._forget_replaced()
        with one_thread():
            losses = [self._meta_update(number) for number in range(learning.meta_updates)]
            if (self.iteration + 1) % learning.table_every == 0:
                self.set_contexts(self._table())
        self.metrics.log_value(("rollouts", "meta_loss"), float(np.mean(losses)), window=1)

    def _forget_replaced(self) -> None:
        """Drop trajectories whose rows the replay no longer has, of every application."""
        oldest = self.replay.rows - self.replay.capacity
        left = {
            application: [each for each in own if each[1] >= oldest]
            for application, own in self.best.items()
        }
        self.best = {application: own for application, own in left.items() if own}

    @property
    def _module(self) -> Any:
        (module,) = self.learner_group.foreach_learner(
            lambda learner: learner.module[DEFAULT_MODULE_ID].unwrapped()
        )
        return module.get()

    def _meta_update(self, number: int) -> float:
        learning = self.config.learning
        rng = np.random.default_rng(self._seed_of(10 + number))
        known = sorted(self.best)
        count = min(learning.meta_applications, len(known))
        chosen = [known[place] for place in rng.choice(len(known), count, replace=False)]
        trajectories = []
        for application in chosen:
            own = self.best[application]
            places = rng.choice(len(own), min(len(own), learning.meta_trajectories), replace=False)
            trajectories.append([self._trajectory(*own[place][1:]) for place in places])
        batch = self._transitions(chosen, rng)
        (found,) = self.learner_group.foreach_learner(
            lambda learner: learner.meta_update(trajectories, batch)
        )
        return float(found.get())

    def _trajectory(self, first: int, steps: int) -> NDArray[np.float32]:
        return self.replay.rows_at(np.arange(first, first + steps))

    def _transitions(self, chosen: list[int], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """A minibatch of the chosen applications' latest and best episodes."""
        size = self.config.learning.minibatch
        places, rows = np.empty(size, np.int64), rng.integers(len(chosen), size=size)
        for place, row in enumerate(rows):
            own = self.best[chosen[row]]
            _, first, steps = own[rng.integers(len(own))]
            places[place] = first + rng.integers(steps)
        now, following = self.replay.rows_at(places), self.replay.rows_at(places + 1)
        width = self.replay.layout.observation
        return {
            Columns.OBS: now[:, :width],
            Columns.ACTIONS: now[:, width:-1],
            Columns.REWARDS: now[:, -1],
            Columns.NEXT_OBS: following[:, :width],
            Columns.TERMINATEDS: np.zeros(size, np.float32),  # episodes are truncated
            CONTEXT_ID: rows,
        }

    def _table(self) -> NDArray[np.float32]:
        """Embeddings of all applications."""
        table: NDArray[np.float32] = self._module.contexts.cpu().numpy().copy()
        known = sorted(self.best)
        for begin in range(0, len(known), TABLE_BATCH):
            part = known[begin : begin + TABLE_BATCH]
            trajectories = [
                [self._trajectory(*each[1:]) for each in self.best[application]]
                for application in part
            ]
            (found,) = self.learner_group.foreach_learner(
                lambda learner, given=trajectories: learner.embed(given)
            )
            table[part] = found.get()
        return table
