"""Training of DAS: settings, algorithm and baselines."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from gymnasium import spaces
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import action_spaces
from loadmaster.envs.gpu_scheduling.episode import build_episode, run_episode
from loadmaster.envs.gpu_scheduling.observation import observation_space
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.metrics import Measure
from loadmaster.models.das.compiled import is_supported
from loadmaster.models.das.module import DasCritic, DasModule
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.rl.mappo import MappoConfig
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.systems.das.mixed_rollout import REFERENCE, MixedEngine
from loadmaster.platform.systems.das.rollout import COST, DasEngine
from loadmaster.platform.training.config import (
    Critic,
    Learning,
    Recipe,
    Rollouts,
    Schedule,
    TrainingConfig,
    mean_scores,
)
from loadmaster.platform.training.mixture import Changes, mixed_settings, relative_measure

# The strongest of each ordering, and the paper's first.
SHOWN = ("fifo-first-fit", "fifo-consolidate", "drf-consolidate", "las-consolidate")
SHOWN_IF_DURATIONS_ARE_KNOWN = ("sjf-consolidate", "srtf-consolidate", "tetris-consolidate")


class DasTraining(TrainingConfig):
    environment: GpuSchedulingSettings = GpuSchedulingSettings(preempt=True)
    # Changes of `environment`, through which job sequences take turns; the metric is then the cost
    # relative to that of a rule, as settings differ in their scale.
    mixture: Changes = ()
    network: DasSettings = DasSettings()
    rollouts: Rollouts = Rollouts(sequences=16, per_sequence=4, keep=0.2)
    # Scaled by sequence: run times are so unequal that one sequence would dominate.
    training: Learning = Learning(
        scale="sequence",
        learning_rate=Schedule(first=3e-3, last=5e-4, iterations=40),
        entropy=Schedule(first=0, last=0),
        epochs=2,
        minibatches=4,
        averaging=10,
        credit_horizon_s=20_000,
        critic=Critic(kind="v", shared_input=True),
    )


def algorithm(config: DasTraining) -> MappoConfig:
    environment, kind = config.environment, config.training.critic.kind
    cluster, settings = build_cluster(environment), {"network": network(config)}
    # The network takes queues of any length; small spaces are cheap to send to workers.
    smallest = environment.model_copy(update={"max_queue": 1})
    actions = spaces.Dict({**action_spaces(smallest, cluster)})
    critic = RLModuleSpec(
        module_class=DasCritic, model_config={**settings, "sees_actions": kind == "q"}
    )
    built = MappoConfig().for_training(
        config,
        spaces=(observation_space(1, cluster, environment.history), actions),
        module=RLModuleSpec(module_class=DasModule, model_config=settings),
        engine=partial(MixedEngine, mixed_settings(environment, config.mixture))
        if config.mixture
        else partial(DasEngine, environment),
    )
    return built.central_critic(critic=None if kind == "none" else critic)


def baselines(config: DasTraining, seeds: Sequence[int]) -> dict[str, float]:
    workload = load_workload(config.environment)

    def cost(name: str, seed: int) -> float:
        return run_episode(name, config.environment, seed, workload).mean_jct_s

    if config.mixture:
        engine = MixedEngine(mixed_settings(config.environment, config.mixture))
        return mean_scores((*SHOWN, REFERENCE), seeds, engine.baseline_cost)
    known = config.environment.durations == "known"
    names = (*SHOWN, *SHOWN_IF_DURATIONS_ARE_KNOWN) if known else SHOWN
    return mean_scores(names, seeds, cost)


def metric(config: DasTraining) -> Measure:
    if config.mixture:
        return relative_measure(config.environment.guide or REFERENCE)
    return Measure(COST, "mean JCT", "s")


def network(config: DasTraining) -> dict[str, Any]:
    return config.network.model_dump()


def check(config: DasTraining) -> None:
    if config.training.horizon is not None:
        raise InputError("setting training.horizon: episodes of gpu_scheduling end by themselves")
    is_guided, opening = config.environment.guide is not None, config.network.opening
    if is_guided != (opening == "rule"):
        expected = "'rule'" if is_guided else "another, or a rule as environment.guide"
        raise InputError(f"setting network.opening is {opening!r}; expected {expected}")
    members = mixed_settings(config.environment, config.mixture)
    for settings in members:
        build_episode(settings, config.validation.first_seed)  # checks machines and jobs
    if config.mixture or is_guided:
        machines = {len(build_cluster(settings).rack) for settings in members}
        if not is_supported(config.network, max(machines)):
            most = config.network.exact_up_to
            raise InputError(
                f"a guide or mixture with network.process: {max(machines)} machines; expected at "
                f"most {most} (network.exact_up_to)"
            )
        if len(machines) > 1 and config.training.method != "evolution":
            raise InputError(
                f"setting training.method is {config.training.method!r}; expected 'evolution' for "
                "a mixture of clusters with different numbers of machines"
            )


def compile_loops(config: DasTraining) -> None:
    """Compile the loops of workers and baselines, on the smallest episode."""
    engine = DasEngine(GpuSchedulingSettings(workload="toy"))
    module = DasModule(
        observation_space=None, action_space=None, model_config={"network": network(config)}
    )
    is_compiled = is_supported(config.network, len(build_cluster(config.environment).rack))
    way = engine.loop if is_compiled else engine.vector
    way.roll_out(module, [RolloutSpec(sequence=0, action_seed=0)])
    way.judge(module, [0])


RECIPE = Recipe(
    system="das",
    config_class=DasTraining,
    metric=metric,
    algorithm=algorithm,
    baselines=baselines,
    network=network,
    check=check,
    compile=compile_loops,
)
