"""AWARE's training recipe: settings, algorithm, baselines."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Measure
from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.rollout import run_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.module import AwareModule
from loadmaster.models.aware.rule_policy import RULE, run_rule
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.platform.rl.off_policy import OffPolicyConfig
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.systems.aware.algorithm import AwareLearning, MetaConfig, MetaOffPolicy
from loadmaster.platform.systems.aware.rollout import (
    ACTIONS,
    OBSERVATIONS,
    Condition,
    MarginEnvs,
    application_of,
    condition_of,
    objective,
    outcome,
)
from loadmaster.platform.training.config import (
    Episodes,
    OffPolicyTraining,
    Recipe,
    Validation,
    mean_scores,
)

Level = Literal["high", "low"]
Loads = Sequence[tuple[str, Level]]


class AwareTraining(OffPolicyTraining):
    environment: PodScalingSettings = PodScalingSettings()
    # Workload and level of the load; an episode has one of them, by its seed.
    loads: tuple[tuple[str, Level], ...] = (
        ("diurnal-like", "high"), ("bursty-like", "high"), ("diurnal-like", "low"),
    )  # fmt: skip
    network: AwareSettings = AwareSettings()
    # Reward that a step with a p99 above the SLO costs beside its own: the reward alone would trade
    # violations for use.
    violation_cost: NonNegativeFloat = 0.1
    rollouts: Episodes = Episodes(episodes=64)
    training: AwareLearning = AwareLearning()
    validation: Validation = Validation(every=10, sequences=200)


def algorithm(config: AwareTraining) -> OffPolicyConfig:
    count = len(build_setup(config.environment).applications)
    row_of = partial(application_of, count)
    built = MetaConfig(algo_class=MetaOffPolicy)
    built.row_of, built.trajectories = row_of, config.network.encoder.trajectories
    return built.for_training(
        config,
        spaces=(OBSERVATIONS, ACTIONS),
        module=RLModuleSpec(
            module_class=AwareModule,
            model_config={
                "network": network(config),
                "contexts": count if config.network.context else 0,
            },
        ),
        engine=partial(make_engine, config, row_of),
    )


def make_engine(config: AwareTraining, row_of: Callable[[int], int]) -> VectorEngine:
    conditions, cost = conditions_of(config.environment, config.loads), config.violation_cost
    return VectorEngine(
        lambda count, horizon: MarginEnvs(count, config.network, conditions, cost),
        partial(outcome, cost),
        "objective",
        context_of=row_of,
    )


def conditions_of(settings: PodScalingSettings, loads: Loads) -> list[Condition]:
    own = [
        settings.model_copy(update={"workload": workload, "load": level})
        for workload, level in loads
    ]
    return [Condition(each, build_setup(each)) for each in own]


def baselines(config: AwareTraining, seeds: Sequence[int]) -> dict[str, float]:
    conditions, cost = conditions_of(config.environment, config.loads), config.violation_cost

    def score(name: str, seed: int) -> float:
        settings, setup = condition_of(conditions, seed)
        if name == RULE:
            return objective(run_rule(settings, setup, seed, config.network.rule), cost)
        return objective(run_episode(name, settings, seed, setup), cost)

    return mean_scores([RULE, *(name for name in BASELINES if name != "random")], seeds, score)


def network(config: AwareTraining) -> dict[str, Any]:
    return config.network.model_dump()


def check(config: AwareTraining) -> None:
    if not config.loads:
        raise InputError("setting loads is empty; expected a workload and a level, or more")
    conditions_of(config.environment, config.loads)


def compile_loops(config: AwareTraining) -> None:
    """Compile the environment on the smallest episode."""
    smallest = config.environment.model_copy(update={"steps": 2, "shift": ()})
    envs = MarginEnvs(1, config.network, conditions_of(smallest, config.loads[:1]))
    envs.reset(seed=0)
    envs.step(np.zeros((1, *ACTIONS.shape), np.float32))


RECIPE = Recipe(
    system="aware",
    config_class=AwareTraining,
    metric=lambda config: Measure("objective", "objective", "", better="higher", relative=False),
    algorithm=algorithm,
    baselines=baselines,
    network=network,
    check=check,
    compile=compile_loops,
)
