"""Settings of a training run, and what training needs from a system."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Measure
from loadmaster.envs.settings import Settings
from loadmaster.models.storage import Place

# Settings that a resumed run may change. With other validation sequences its curve would break in
# two; its network and its task define the run, and so does the policy it started from.
MAY_CHANGE = ("training.", "rollouts.", "checkpoints.", "resources.", "validation.every")
WARM_START, WEIGHT_FILTER = "training.warm_start", "training.weight_filter"


class Schedule(Settings):
    """A number that moves linearly from `first` to `last`, then stays."""

    first: NonNegativeFloat
    last: NonNegativeFloat
    iterations: NonNegativeInt = 0  # length of the ramp; 0: `last` from the start

    def at(self, iteration: int) -> float:
        """The number in iteration 0, 1, .."""
        if iteration >= self.iterations:
            return self.last
        return self.first + (self.last - self.first) * iteration / self.iterations


class BaseRollouts(Settings):
    """Rollout workers; each way of learning adds what they run per iteration."""

    workers: NonNegativeInt = 2  # processes; 0: in the learner's own process


class Rollouts(BaseRollouts):
    """Groups of rollouts that share an input."""

    sequences: PositiveInt = 4  # input sequences an iteration
    per_sequence: int = Field(default=4, ge=2)  # rollouts that share one, and its baseline
    keep: float = Field(default=1.0, gt=0, le=1)  # share of decisions learnt from, drawn at random


class Evolution(Settings):
    """The search over weights of method evolution."""

    weights: tuple[str, ...] = ("*",)  # names of tables, * for any part of one; NAME/0: a row
    population: int = Field(default=16, ge=4)  # candidates an iteration
    spread: PositiveFloat = 0.1  # initial, relative to the root mean square of a table's weights


class Critic(Settings):
    """A critic that observes what all agents observe."""

    kind: Literal["none", "v", "q"] = "none"  # values the state; q: and all agents' actions
    gamma: float = Field(default=0.99, gt=0, le=1)  # discount per decision
    gae_lambda: float = Field(default=0.95, ge=0, le=1)  # trace decay per decision
    learning_rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 4  # passes over the rollouts
    minibatches: PositiveInt = 4  # per pass
    samples: PositiveInt = 8  # of the policy's actions whose mean q is the baseline (q)
    shared_input: bool = False  # compare within a sequence, by credit_horizon_s, discount_per_s (v)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shared_input and self.kind != "v":
            raise ValueError(f"shared_input=true needs kind=v; not {self.kind!r}")
        return self


class BaseLearning(Settings):
    """Length and start of a training; each way of learning adds its own settings."""

    iterations: PositiveInt = 200
    minutes: PositiveFloat | None = None  # time limit beside `iterations`
    warm_start: str | None = None  # initial policy: pretrained, a bundle's or run's folder
    weight_filter: tuple[str, ...] = ()  # names of its weights to take, * as wildcard; (): all

    finetuning: ClassVar[Mapping[str, Any]] = {}  # settings of a retraining from a trained policy


class Learning(BaseLearning):
    """How the policy is updated from the latest rollouts: REINFORCE, PPO, evolution."""

    renamed: ClassVar[Mapping[str, str]] = {
        "start": "warm_start",
        "take": "weight_filter",
        "memory_s": "credit_horizon_s",
    }
    # Rates and entropy begin where their schedules ended.
    finetuning: ClassVar[Mapping[str, Any]] = {
        "learning_rate": {"iterations": 0},
        "entropy": {"iterations": 0},
    }

    method: Literal["ppo", "reinforce", "evolution"] = "ppo"
    baseline: Literal["input", "time"] = "input"  # time: as if no rollouts shared an input
    scale: Literal["iteration", "sequence"] = "iteration"  # over which advantages are normalised
    learning_rate: Schedule = Schedule(first=1e-3, last=1e-3)
    entropy: Schedule = Schedule(first=0.04, last=0.003, iterations=60)
    epochs: PositiveInt = 3  # passes over the rollouts (ppo)
    minibatches: PositiveInt = 4  # per pass (ppo)
    clip: PositiveFloat = 0.2  # of the probability ratio (ppo)
    stop_at_kl: PositiveFloat = 0.03  # no further pass once the policy has moved this far (ppo)
    gradient_clip: PositiveFloat = 0.5  # of the gradient's norm
    averaging: PositiveInt = 1  # iterations whose mean weights are validated and saved
    discount_per_s: NonNegativeFloat = 0.0  # 0: no discount
    credit_horizon_s: PositiveFloat | None = None  # decay time of advantages; None: no decay
    differential: bool = False  # subtract the mean reward rate, for streams without an end
    critic: Critic = Critic()
    evolution: Evolution = Evolution()
    horizon: Schedule | None = None  # mean length of a rollout, s; None: the environment's own


class Episodes(BaseRollouts):
    """Episodes whose transitions are added to the replay."""

    episodes: PositiveInt = 4  # per iteration, stepped together within a worker


class OffPolicyLearning(BaseLearning):
    """DDPG; with two critics, actor_delay=2 and smoothing=0.2 it is TD3."""

    finetuning: ClassVar[Mapping[str, Any]] = {"warm_up": 0}  # no random actions

    actor_learning_rate: PositiveFloat = 3e-4
    critic_learning_rate: PositiveFloat = 3e-3
    gamma: float = Field(default=0.99, gt=0, le=1)  # discount per step
    soft_update: float = Field(default=3e-3, gt=0, le=1)  # of the target networks
    minibatch: PositiveInt = 64  # transitions
    replay: PositiveInt = 1_000_000  # rows: a transition each, and one per truncated episode
    updates_per_step: PositiveFloat = 1.0  # of the networks, per new transition
    warm_up: NonNegativeInt = 1000  # transitions of random actions before the first update
    noise: NonNegativeFloat = 0.2  # standard deviation, of actions between -1 and 1
    epsilon: float = Field(default=1.0, ge=0, le=1)  # factor of the noise
    epsilon_decay: NonNegativeFloat = 1e-6  # subtracted from it per transition
    actor_delay: PositiveInt = 1  # updates of the critic per update of actor and targets
    actor_start: NonNegativeInt = 0  # updates of the critic before the first of the actor
    smoothing: NonNegativeFloat = 0.0  # noise of the target actor's actions
    smoothing_clip: PositiveFloat = 0.5  # its largest size
    gradient_clip: PositiveFloat | None = None  # of the gradient's norm
    action_cost: NonNegativeFloat = 0.0  # of squared actions, where 0 is a rule's action


class Validation(Settings):
    """Validation during training, on sequences that are never trained on."""

    every: PositiveInt = 10  # iterations
    sequences: PositiveInt = 12
    first_seed: NonNegativeInt = 900_000_000  # training draws its seeds below this


class CheckpointConfig(Settings):
    every: PositiveInt = 10  # iterations between checkpoints
    last: PositiveInt = 3  # how many to keep


class Resources(Settings):
    """Processes that learn, in addition to the rollout workers."""

    learners: NonNegativeInt = 0  # 0: the rollout workers learn from what they recorded
    gpus: NonNegativeInt = 0  # one for each learner; sets `learners` where that is 0
    gpu_share: float = Field(default=1.0, gt=0, le=1)  # of a GPU that a learner takes

    @model_validator(mode="before")
    @classmethod
    def _one_learner_per_gpu(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("gpus") and not values.get("learners"):
            return {**values, "learners": values["gpus"]}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus not in (0, self.learners):
            raise ValueError(
                f"gpus is {self.gpus} and learners {self.learners}; expected a GPU for each "
                "learner, or none"
            )
        return self


class BaseConfig(Settings):
    """Settings of every training run, whatever it learns by."""

    seed: NonNegativeInt = 0
    rollouts: BaseRollouts = BaseRollouts()
    training: BaseLearning = BaseLearning()
    validation: Validation = Validation()
    checkpoints: CheckpointConfig = CheckpointConfig()
    resources: Resources = Resources()


class TrainingConfig(BaseConfig):
    """Learning from groups of rollouts; systems add environment and network."""

    rollouts: Rollouts = Rollouts()
    training: Learning = Learning()


class OffPolicyTraining(BaseConfig):
    """Learning from a replay of transitions; systems add environment and network."""

    rollouts: Episodes = Episodes()
    training: OffPolicyLearning = OffPolicyLearning()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (count := self.resources.learners) != 0:
            raise ValueError(
                f"resources.learners is {count}; expected 0: an off-policy training learns in the "
                "driver's process"
            )
        return self


@dataclass(frozen=True)
class Recipe:
    """How a system is trained. `config` is an instance of `config_class`."""

    system: str
    config_class: type[BaseConfig]
    metric: Callable[[Any], Measure]  # config -> what validation measures
    algorithm: Callable[[Any], Any]  # config -> an EngineConfig, ready to build
    baselines: Callable[[Any, Sequence[int]], dict[str, float]]  # config, seeds -> metric by name
    # config -> the network's settings in a bundle; InputError for what cannot run; compile once,
    # so that workers load from the cache
    network: Callable[[Any], dict[str, Any]] = lambda config: {}
    check: Callable[[Any], None] = lambda config: None
    compile: Callable[[Any], None] = lambda config: None

    @property
    def learning(self) -> type[BaseLearning]:
        """The class of the system's learning settings."""
        return type(self.config_class().training)


def refuse_critic(config: TrainingConfig, system: str) -> None:
    if (kind := config.training.critic.kind) != "none":
        raise InputError(
            f"setting training.critic.kind is {kind!r}; expected 'none': {system} has no critic"
        )


def mean_scores(
    names: Sequence[str], seeds: Sequence[int], score: Callable[[str, int], float]
) -> dict[str, float]:
    """Mean episode score of each name, in threads: compiled episodes release the GIL."""

    def mean(name: str) -> float:
        return float(np.mean([score(name, seed) for seed in seeds]))

    with ThreadPoolExecutor() as threads:
        return dict(zip(names, threads.map(mean, names), strict=True))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, branch by branch."""
    whole = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(whole.get(name), Mapping):
            whole[name] = merged(whole[name], value)
        else:
            whole[name] = value
    return whole


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def check_same_run(before: BaseConfig, after: BaseConfig, run: Place) -> None:
    """Raise InputError for a changed setting that a resumed run must keep."""
    old, new = flattened(before.model_dump(mode="json")), flattened(after.model_dump(mode="json"))
    for name in new | old:
        if old.get(name) == new.get(name):
            continue
        if name in (WARM_START, WEIGHT_FILTER) or not name.startswith(MAY_CHANGE):
            raise InputError(
                f"setting {name} is {old.get(name)!r} in {str(run)!r} and cannot become "
                f"{new.get(name)!r}; expected a new run, which may start from this one's policy: "
                f"--set {WARM_START}={run}"
            )
