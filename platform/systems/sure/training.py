"""SURE's training recipe: settings, algorithm, baselines."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Measure
from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.job_files import load_job
from loadmaster.envs.stream_scaling.rollout import run_episode
from loadmaster.envs.stream_scaling.settings import DAY_MIN, StreamScalingSettings
from loadmaster.models.sure.module import SureModule
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.settings import SureSettings
from loadmaster.platform.rl.algorithm import InputDrivenConfig
from loadmaster.platform.systems.sure.rollout import SureEngine
from loadmaster.platform.training.config import (
    Learning,
    Recipe,
    Rollouts,
    Schedule,
    TrainingConfig,
    Validation,
    mean_scores,
    refuse_critic,
)


class SureTraining(TrainingConfig):
    environment: StreamScalingSettings = StreamScalingSettings(minutes=2 * DAY_MIN)
    jobs: tuple[str, ...] = ("small-1",)  # an episode has one of them, by its seed
    network: SureSettings = SureSettings()
    rollouts: Rollouts = Rollouts(sequences=4, per_sequence=4, keep=0.25)
    training: Learning = Learning(
        learning_rate=Schedule(first=1e-3, last=1e-4, iterations=100),
        entropy=Schedule(first=0, last=0),
        epochs=3,
        minibatches=4,
        credit_horizon_s=2 * 3600.0,
        scale="sequence",
    )
    validation: Validation = Validation(every=10, sequences=8)


def algorithm(config: SureTraining) -> InputDrivenConfig:
    # Observations differ in size from job to job, and RLlib's own connectors are not used.
    box = spaces.Box(-1, 1, (1,), np.float32)
    jobs = [config.environment.model_copy(update={"job": job}) for job in config.jobs]
    return InputDrivenConfig().for_training(
        config,
        spaces=(box, box),
        module=RLModuleSpec(module_class=SureModule, model_config={"network": network(config)}),
        engine=partial(SureEngine, config.environment, config.jobs),
        expected_work=partial(_expected_work, [len(load_job(job).tasks) for job in jobs]),
    )


def _expected_work(tasks: Sequence[int], sequence: int) -> float:
    """Tasks of the job that a sequence is of: each decision is about all of them."""
    return float(tasks[sequence % len(tasks)])


def baselines(config: SureTraining, seeds: Sequence[int]) -> dict[str, float]:
    setups = {}
    for job in config.jobs:
        settings = config.environment.model_copy(update={"job": job})
        setups[job] = (settings, build_setup(settings))

    def score(name: str, seed: int) -> float:
        settings, setup = setups[config.jobs[seed % len(config.jobs)]]
        return run_episode(name, settings, seed, setup).reward

    return mean_scores([name for name in BASELINES if name != "random"], seeds, score)


def network(config: SureTraining) -> dict[str, Any]:
    return config.network.model_dump()


def check(config: SureTraining) -> None:
    refuse_critic(config, "sure")
    if not config.jobs:
        raise InputError("setting jobs is empty; expected the name of a job or more")
    for job in config.jobs:
        build_setup(config.environment.model_copy(update={"job": job}))


def compile_loops(config: SureTraining) -> None:
    """Compile the environment on the smallest episode."""
    smallest = StreamScalingSettings(minutes=5, history=config.environment.history)
    engine = SureEngine(smallest, ("small-1",))
    engine.judge(SimpleNamespace(network=SureNetwork(config.network)), [0])


RECIPE = Recipe(
    system="sure",
    config_class=SureTraining,
    metric=lambda config: Measure("reward", "reward", "", better="higher", relative=False),
    algorithm=algorithm,
    baselines=baselines,
    network=network,
    check=check,
    compile=compile_loops,
)
