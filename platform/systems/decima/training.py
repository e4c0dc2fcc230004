"""Decima's training recipe: settings, algorithm, baselines."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.env import action_space
from loadmaster.envs.dag_scheduling.observation import observation_space
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.metrics import Measure
from loadmaster.models.decima.gradient import DecisionMinibatches, log_probability_and_entropy
from loadmaster.models.decima.module import DecimaModule
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.platform.rl.algorithm import InputDrivenConfig
from loadmaster.platform.rl.rollout import RolloutSpec, columns_of
from loadmaster.platform.systems.decima.rollout import (
    REFERENCE,
    DecimaEngine,
    rule_cost,
    sequence_work,
)
from loadmaster.platform.training.config import (
    Learning,
    Recipe,
    Rollouts,
    Schedule,
    TrainingConfig,
    mean_scores,
    refuse_critic,
)
from loadmaster.platform.training.mixture import Changes, mixed_settings, relative_measure


class DecimaTraining(TrainingConfig):
    environment: DagSchedulingSettings = DagSchedulingSettings()
    # Changes of `environment`, through which job sequences take turns; the metric is then the cost
    # relative to that of `srpt-caps`, as settings differ in their scale.
    mixture: Changes = ()
    network: DecimaSettings = DecimaSettings()
    # Rounded results of the sweep tune_configs/decima/asha.yaml, with two changes outside its
    # space: a falling learning rate gains 3% after 80 iterations, and learning from half of the
    # decisions shortens an iteration by a third at no cost in quality.
    rollouts: Rollouts = Rollouts(sequences=4, per_sequence=4, keep=0.5)
    training: Learning = Learning(
        learning_rate=Schedule(first=4.5e-3, last=5e-4, iterations=120),
        entropy=Schedule(first=9e-3, last=1e-4, iterations=40),
        epochs=4,
        minibatches=3,
        clip=0.27,
        credit_horizon_s=30.0,
    )


def algorithm(config: DecimaTraining) -> InputDrivenConfig:
    environment = config.environment
    # The network takes tables of any size; small spaces, since they are sent to every worker.
    smallest = environment.model_copy(update={"max_jobs": 1, "max_stages": 1, "max_edges": 1})
    mixture = mixed_settings(environment, config.mixture)
    limits = max(one.total_executors for one in mixture)
    sizes = {"network": network(config), "limits": limits}
    return InputDrivenConfig().for_training(
        config,
        spaces=(observation_space(smallest), action_space(smallest)),
        module=RLModuleSpec(module_class=DecimaModule, model_config=sizes),
        engine=partial(DecimaEngine, environment, mixture if config.mixture else ()),
        expected_work=partial(sequence_work, mixture),
    )


def metric(config: DecimaTraining) -> Measure:
    if config.mixture:
        return relative_measure(REFERENCE)
    if config.environment.objective == "makespan":
        return Measure("makespan_s", "makespan", "s")
    return Measure("jct_s", "mean JCT", "s")


def baselines(config: DecimaTraining, seeds: Sequence[int]) -> dict[str, float]:
    mixture = mixed_settings(config.environment, config.mixture) if config.mixture else ()
    engine = DecimaEngine(config.environment, mixture)

    def cost(name: str, seed: int) -> float:
        return engine.cost(seed, rule_cost(engine.mixture.member(seed), seed, name))

    return mean_scores([name for name in BASELINES if name != "random"], seeds, cost)


def network(config: DecimaTraining) -> dict[str, Any]:
    return config.network.model_dump()


def check(config: DecimaTraining) -> None:
    refuse_critic(config, "decima")
    for settings in mixed_settings(config.environment, config.mixture):
        load_workload(settings)


def compile_loops(config: DecimaTraining) -> None:
    """Compile the loops of a worker, and its training pass, on the smallest episode."""
    engine = DecimaEngine(DagSchedulingSettings(workload="toy", jobs=1, executors=2))
    network = DecimaNetwork(config.network)
    module = SimpleNamespace(network=network)
    recordings = engine.roll_out(module, [RolloutSpec(sequence=0, action_seed=0)])
    engine.judge(module, [0])
    batches = DecisionMinibatches(columns_of(recordings, [{}]), network)
    selected = batches.select(torch.arange(1))[Columns.OBS]
    log_probability, entropy = log_probability_and_entropy(selected)
    (log_probability + entropy).sum().backward()  # type: ignore[no-untyped-call]


RECIPE = Recipe(
    system="decima",
    config_class=DecimaTraining,
    metric=metric,
    algorithm=algorithm,
    baselines=baselines,
    network=network,
    check=check,
    compile=compile_loops,
)
