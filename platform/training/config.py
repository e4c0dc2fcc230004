"""What a user may set about a training run; every system adds its environment and network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from loadmaster.envs.settings import Settings


class Schedule(Settings):
    """A number that moves in a straight line from `first` to `last`, then stays."""

    first: NonNegativeFloat
    last: NonNegativeFloat
    iterations: NonNegativeInt = 0  # how long it moves; 0: it is `last` from the start

    def at(self, iteration: int) -> float:
        """The value in iteration 0, 1, .."""
        if iteration >= self.iterations:
            return self.last
        return self.first + (self.last - self.first) * iteration / self.iterations


class Rollouts(Settings):
    """Who rolls out, and how much in every iteration."""

    workers: NonNegativeInt = 2  # processes; 0: in the learner's own process
    sequences: PositiveInt = 4  # input sequences an iteration
    per_sequence: int = Field(default=4, ge=2)  # rollouts that share one, and its baseline
    keep: float = Field(default=1.0, gt=0, le=1)  # share of decisions learnt from, drawn at random


class Evolution(Settings):
    """What is searched, and how widely, where the method is evolution."""

    weights: tuple[str, ...] = ("*",)  # names of tables of weights, * for any part of one
    population: int = Field(default=16, ge=4)  # candidates an iteration
    spread: PositiveFloat = 0.1  # of the first ones, beside how large the weights of a table are


class Critic(Settings):
    """A critic that sees what all agents see, where advantages are to come from one."""

    kind: Literal["none", "v", "q"] = "none"  # judges the moment; q: and what everybody does
    gamma: float = Field(default=0.99, gt=0, le=1)  # what a reward counts a decision later
    gae_lambda: float = Field(default=0.95, ge=0, le=1)  # how far its errors are passed back
    learning_rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 4  # passes over the rollouts
    minibatches: PositiveInt = 4  # per pass
    samples: PositiveInt = 8  # of the policy's actions whose mean q is the baseline (q)
    shared_input: bool = False  # compared within a sequence, by memory_s and discount_per_s (v)

    @model_validator(mode="after")
    def _must_fit(self) -> Self:
        if self.shared_input and self.kind != "v":
            raise ValueError(f"shared_input=true needs kind=v; not {self.kind!r}")
        return self


class Learning(Settings):
    """How the policy is updated from the rollouts."""

    iterations: PositiveInt = 200
    minutes: PositiveFloat | None = None  # the run ends after these, should they come first
    start: str | None = None  # a policy to begin with: pretrained, a bundle's or run's folder
    take: tuple[str, ...] = ()  # of it these tables of weights, * for any part of a name; (): all
    method: Literal["ppo", "reinforce", "evolution"] = "ppo"
    baseline: Literal["input", "time"] = "input"  # time: as if no rollouts shared an input
    scale: Literal["iteration", "sequence"] = "iteration"  # over which advantages have spread 1
    learning_rate: Schedule = Schedule(first=1e-3, last=1e-3)
    entropy: Schedule = Schedule(first=0.04, last=0.003, iterations=60)
    epochs: PositiveInt = 3  # passes over the rollouts (ppo)
    minibatches: PositiveInt = 4  # per pass (ppo)
    clip: PositiveFloat = 0.2  # of the probability ratio (ppo)
    stop_at_kl: PositiveFloat = 0.03  # no further pass once the policy has moved this far (ppo)
    gradient_clip: PositiveFloat = 0.5  # of the gradient's norm
    averaging: PositiveInt = 1  # iterations whose mean weights are judged and kept
    discount_per_s: NonNegativeFloat = 0.0  # 0: a reward counts whenever it comes
    memory_s: PositiveFloat | None = None  # how long a decision answers for what follows
    differential: bool = False  # rewards less their mean rate: for streams without an end
    critic: Critic = Critic()
    evolution: Evolution = Evolution()
    horizon: Schedule | None = None  # mean length of a rollout, s; None: the environment's own

    @property
    def passes(self) -> tuple[int, int]:
        """(epochs, minibatches): REINFORCE is only right for the policy that acted, so one step."""
        return (1, 1) if self.method == "reinforce" else (self.epochs, self.minibatches)


class Validation(Settings):
    """How the run judges itself while it learns, on sequences it never learns from."""

    every: PositiveInt = 10  # iterations
    sequences: PositiveInt = 12
    first_seed: NonNegativeInt = 900_000_000  # training draws its seeds below this


class Keeping(Settings):
    """What a run leaves behind."""

    every: PositiveInt = 10  # iterations between checkpoints
    last: PositiveInt = 3  # how many to keep


class Resources(Settings):
    gpus: NonNegativeInt = 0  # for the learner


class TrainingConfig(Settings):
    """Base of every system's configuration."""

    seed: NonNegativeInt = 0
    rollouts: Rollouts = Rollouts()
    training: Learning = Learning()
    validation: Validation = Validation()
    checkpoints: Keeping = Keeping()
    resources: Resources = Resources()


# What training must know of a system. The rest of this package knows no system.


@dataclass(frozen=True)
class Recipe:
    """How a system is trained."""

    system: str
    config_class: type[TrainingConfig]
    metric: Callable[[Any], str]  # config -> what validation measures, in words; lower is better
    algorithm: Callable[[Any], Any]  # config -> RLlib's AlgorithmConfig, ready to build
    baselines: Callable[[Any, Sequence[int]], dict[str, float]]  # the metric of each, on seeds
    network: Callable[[Any], dict[str, Any]]  # config -> what a bundle says of the network
    check: Callable[[Any], None]  # config -> an InputError for what cannot run, before it does
    compile: Callable[[Any], None]  # once in this process, so that workers find it done


# What heuristics reach on the sequences that a run judges itself by.


def mean_costs(
    names: Sequence[str], seeds: Sequence[int], cost: Callable[[str, int], float]
) -> dict[str, float]:
    """Each one's mean cost of an episode; compiled episodes release the lock, so in threads."""

    def mean(name: str) -> float:
        return float(np.mean([cost(name, seed) for seed in seeds]))

    with ThreadPoolExecutor() as threads:
        return dict(zip(names, threads.map(mean, names), strict=True))
