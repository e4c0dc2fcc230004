"""Fine-tuning of AWARE's actor and critics on one application, in this process.

TD3 from the application's own transitions, by the off-policy learner's updates. The encoder stays
as it is, and so does the embedding: the base learner moves, the meta-learner does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.choice import Remembered, Singles
from loadmaster.models.aware.encoder import Trajectory
from loadmaster.models.aware.features import FEATURES
from loadmaster.models.aware.module import AwareModule
from loadmaster.models.aware.network import AwareNetwork
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.settings import MARGINS
from loadmaster.models.ddpg.settings import CONTEXT
from loadmaster.models.layers import one_thread
from loadmaster.platform.evaluation.statistics import Difference, paired_difference
from loadmaster.platform.rl.ddpg import ACTOR, CRITIC, Update, minibatch_columns, take_updates
from loadmaster.platform.rl.transitions import Description, Episode, Transitions
from loadmaster.platform.systems.aware.algorithm import MarginLearning
from loadmaster.platform.systems.aware.rollout import ACTIONS, OBSERVATIONS
from loadmaster.platform.training.trainer import quiet_rllib

EXPLORED_SEED = FIRST_SEED + 1_000_000  # of the first episode with noise
JUDGED_SEED = FIRST_SEED + 2_000_000  # of the first that weights are compared in
_COLUMNS = Description.unnamed("aware", FEATURES, len(MARGINS))


class FineTuning(MarginLearning):
    """TD3 with one episode an iteration; the critics are updated before the actor is."""

    iterations: PositiveInt = 20  # episodes with noise
    epsilon_decay: NonNegativeFloat = 0.0
    actor_start: NonNegativeInt = 300
    action_cost: NonNegativeFloat = 0.02


def learning_of(policy: AwarePolicy) -> FineTuning:
    """Settings for a policy: without a rule, actions need not stay near 0."""
    return FineTuning() if policy.settings.follows_rule else FineTuning(action_cost=0.0)


class FineTuner:
    """A copy of a policy that learns from episodes of one application; `policy` is the copy."""

    def __init__(self, policy: AwarePolicy, learning: FineTuning, seed: int = 0) -> None:
        self.learning, self._seed = learning, seed
        with quiet_rllib():
            self._module = AwareModule(
                observation_space=OBSERVATIONS,
                action_space=ACTIONS,
                model_config={"network": policy.settings.model_dump()},
            )
        self._module.network.load_state_dict(policy.network.state_dict())
        self._module.make_target_networks()
        network = self._module.network
        assert isinstance(network, AwareNetwork)
        rates = {ACTOR: learning.actor_learning_rate, CRITIC: learning.critic_learning_rate}
        optimizers = {
            name: torch.optim.Adam(getattr(network, name).parameters(), rate)
            for name, rate in rates.items()
        }
        self._update, self._updates = Update(self._module, optimizers, learning), 0
        self._episodes: list[Episode] = []
        self.policy = AwarePolicy(network, policy.trained_in, policy.name, policy.version)

    def explore(
        self, settings: PodScalingSettings, setup: Setup, seed: int, known: Remembered
    ) -> tuple[EpisodeResult, Trajectory]:
        """Run the episode of `seed` with noise; `known.estimates` are updated."""
        rng = np.random.default_rng((self._seed, seed))
        shape = settings.steps, len(MARGINS)
        noise = self.learning.noise * rng.standard_normal(shape, np.float32)
        return self.policy.record(settings, seed, setup, known, noise)

    def learn(self, trajectory: Trajectory, embedding: Singles) -> None:
        """Add an episode, and take the updates that are due for it from all episodes so far.

        The last step of a trajectory has no observation after it, and is left out.
        """
        self._episodes.append(
            Episode(
                observations=trajectory[:, :FEATURES],
                actions=trajectory[:-1, FEATURES:-1],
                rewards=trajectory[:-1, -1].astype(np.float64),
                number=len(self._episodes),
            )
        )
        log = Transitions.of_episodes(self._episodes, _COLUMNS)
        count = int(self.learning.updates_per_step * len(trajectory))
        seed = self._seed + self._updates
        drawn = log.draw((count, self.learning.minibatch), seed)
        with one_thread():
            rng = torch.Generator().manual_seed(seed)
            columns = minibatch_columns(drawn, self.learning, rng)
            if len(embedding):
                columns[CONTEXT] = torch.from_numpy(embedding).expand(*drawn.rewards.shape, -1)
            take_updates(
                self._update,
                [columns],
                self._updates,
                self.learning.actor_delay,
                self.learning.actor_start,
            )
        self._updates += count


class FineTuned(NamedTuple):
    """A fine-tuned policy, and its rewards beside those before on the same seeds."""

    policy: AwarePolicy
    explored: tuple[EpisodeResult, ...]  # episodes with noise
    before: tuple[EpisodeResult, ...]
    after: tuple[EpisodeResult, ...]

    @property
    def difference(self) -> Difference:
        """Reward after less reward before, paired by seed."""
        rewards = (np.array([each.reward for each in part]) for part in (self.after, self.before))
        return paired_difference(*rewards)

    @property
    def kept(self) -> bool:
        """Whether the fine-tuned weights are not worse."""
        return self.difference.mean >= 0


def fine_tune(
    found: Adaptation,
    settings: PodScalingSettings,
    setup: Setup,
    learning: FineTuning,
    judged: int,
) -> FineTuned:
    """Fine-tune the policy on the application of `setup`, and compare in `judged` episodes."""
    tuner = FineTuner(found.policy, learning)
    explored = []
    for seed in range(EXPLORED_SEED, EXPLORED_SEED + learning.iterations):
        result, trajectory = tuner.explore(settings, setup, seed, found.copy())
        tuner.learn(trajectory, found.known.embedding)
        explored.append(result)
    seeds = range(JUDGED_SEED, JUDGED_SEED + judged)
    before, after = (
        judge(policy, settings, setup, found.known, seeds)
        for policy in (found.policy, tuner.policy)
    )
    return FineTuned(tuner.policy, tuple(explored), before, after)


def judge(
    policy: AwarePolicy,
    settings: PodScalingSettings,
    setup: Setup,
    known: Remembered,
    seeds: Sequence[int],
) -> tuple[EpisodeResult, ...]:
    """Episodes without noise, each with what is known before it."""
    return tuple(policy.run(settings, seed, setup, known.copied()) for seed in seeds)
