"""Settings of AWARE: the rule it starts from, its networks, and a bundle's training.

Imports neither torch nor numba.
"""

import math
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.applications import GENERATED, TRAINED
from loadmaster.envs.pod_scaling.describe import describe_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.settings import Settings
from loadmaster.models.ddpg.settings import Widths
from loadmaster.models.manifest import Manifest, describe_training, training_environment

# What the actor sets, in this order: see `plan_choice.Margins`.
MARGINS = ("load", "spread", "latency", "oom", "change", "restart")


class RuleSettings(Settings):
    """Parameters of the rule in rule.py, by a search on training seeds of `train`."""

    gain: float = Field(default=0.25, gt=0, le=1)  # weight of the last step's load
    load: PositiveFloat = 1.066  # factor of the forecast
    spread: PositiveFloat = 0.616  # factor of its deviation
    latency: PositiveFloat = 1.224  # factor of the p99
    oom: PositiveFloat = 2.0  # reward that pods killed for their memory cost
    change: PositiveFloat = 0.008  # reward a step that other replicas have to gain
    restart: PositiveFloat = 0.008  # reward a step that smaller memory has to gain

    @property
    def margins(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in MARGINS)


class Reach(Settings):
    """Logarithm of the factor by which the actor changes a margin at most."""

    load: NonNegativeFloat = 0.2
    spread: NonNegativeFloat = 0.5
    latency: NonNegativeFloat = 0.2
    oom: NonNegativeFloat = 0.7
    change: NonNegativeFloat = 1.5
    restart: NonNegativeFloat = 1.5

    @property
    def margins(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in MARGINS)


# Which features the networks read. `published`: the state of the published agent. `forecast`: also
# the forecast of the load, and what the present allocation would yield at it. `all`: also the
# estimates of the application.
Inputs = Literal["all", "published", "forecast"]


class EncoderSettings(Settings):
    """The meta-learner: a recurrent network over trajectories, and how many of them."""

    kind: Literal["gru", "lstm", "mean", "none"] = "gru"  # mean: no recurrence; none: no embedding
    hidden: PositiveInt = 256
    layers: PositiveInt = 2
    bidirectional: bool = True
    trajectories: PositiveInt = 20  # M, the best of an application by reward


# What the actor sets. `margins`: those of the rule. `plans`: CPU, memory and replicas themselves,
# without the rule, as the published agent does; three of its numbers are not used.
Sets = Literal["margins", "plans"]


class AwareSettings(Settings):
    """Sizes of actor, critics and encoder, and the rule whose margins the actor sets."""

    actor_sets: Sets = "margins"
    actor: Widths = (64, 64)
    critic: Widths = (64, 64)
    critics: Literal[1, 2] = 2
    embedding: PositiveInt = 64
    critic_context: bool = True  # false: only the actor's input contains the embedding
    inputs: Inputs = "all"
    encoder: EncoderSettings = EncoderSettings()
    rule: RuleSettings = RuleSettings()
    reach: Reach = Reach()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.encoder.hidden > 4096 or self.embedding > 4096:
            raise ValueError("an encoder of more than 4,096 units; expected fewer")
        return self

    @property
    def follows_rule(self) -> bool:
        return self.actor_sets == "margins"

    @property
    def context(self) -> int:
        return 0 if self.encoder.kind == "none" else self.embedding


def training_settings(manifest: Manifest) -> PodScalingSettings:
    """Environment settings that the bundle was trained with."""
    return training_environment(manifest, PodScalingSettings)


def trained_on(manifest: Manifest) -> str:
    """The applications, load and conditions of the training, in words."""

    def in_words(settings: PodScalingSettings) -> str:
        count = {"train": TRAINED, "test": GENERATED - TRAINED}.get(settings.application, 1)
        return ", ".join([settings.workload, describe_episode(settings, count)])

    return describe_training(manifest, PodScalingSettings, in_words)


def distance(manifest: Manifest, settings: PodScalingSettings) -> tuple[float, ...]:
    """Distance of `settings` from those of the training; the smaller tuple is nearer.

    Compared in this order: weights of the reward, resize mode, level of the load, its factor.
    """
    try:
        own = training_settings(manifest)
    except InputError:
        return (math.inf,)
    return (
        abs(own.slo_weight - settings.slo_weight) + abs(own.use_weight - settings.use_weight),
        own.resize != settings.resize,
        own.load != settings.load,
        abs(math.log(own.load_scale / settings.load_scale)),
    )
