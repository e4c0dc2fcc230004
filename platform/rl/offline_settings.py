"""Settings of learning from logged transitions alone."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from loadmaster.envs.settings import Settings
from loadmaster.models.ddpg.settings import Widths


class OfflineLayers(Settings):
    """Hidden layers of the networks."""

    actor: Widths = (64, 64)
    critic: Widths = (64, 64)  # also those of values, perturbations and the generator
    critics: Literal[1, 2] = 2


class IqlSettings(Settings):
    """Implicit Q-learning."""

    expectile: float = Field(default=0.8, ge=0.5, lt=1)  # of the values of logged actions
    temperature: PositiveFloat = 1.0  # factor of advantages, in standard deviations of rewards
    most_weight: PositiveFloat = 100.0  # of a transition


class BcqSettings(Settings):
    """Batch-constrained Q-learning."""

    candidates: PositiveInt = 10  # actions of the generator for each logged state
    perturbation: float = Field(default=0.05, ge=0, le=2)  # the largest
    lower_share: float = Field(default=0.75, ge=0, le=1)  # of the lower critic in a target
    generator_updates: PositiveInt = 3_000
    generator_learning_rate: PositiveFloat = 3e-3
    most_deviations: PositiveFloat = 1.5  # of a candidate from the mean, in standard deviations


class OfflineSettings(Settings):
    """Learning from a log: its algorithm, and what all of them have."""

    algorithm: Literal["iql", "bcq", "ddpg"] = "iql"  # ddpg: without a remedy, to compare
    updates: PositiveInt = 20_000
    minibatch: PositiveInt = 64  # transitions
    actor_learning_rate: PositiveFloat = 1e-3
    critic_learning_rate: PositiveFloat = 1e-3
    gamma: float = Field(default=0.99, gt=0, lt=1)  # discount per step
    soft_update: float = Field(default=5e-3, gt=0, le=1)  # of the target networks
    gradient_clip: PositiveFloat | None = None  # of the gradient's norm
    # Least scale of an observation's number, as a share of its mean's size. One that a rule hardly
    # changes would else be magnified, and what the policy itself changes in it with it.
    least_spread: NonNegativeFloat = 0.1
    action_cost: NonNegativeFloat = 0.0  # of squared actions, where 0 is a rule's action (ddpg)
    network: OfflineLayers = OfflineLayers()
    iql: IqlSettings = IqlSettings()
    bcq: BcqSettings = BcqSettings()
    seed: NonNegativeInt = 0
