"""Policies of untrained networks, and parts of AWARE's compiled model as functions for tests."""

from typing import Any

import numpy as np
import torch

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import ROW_COLUMNS, Floats, SimConstants
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.choice import PodDecision, nothing_known
from loadmaster.models.aware.network import AwareNetwork
from loadmaster.models.aware.plan_choice import Margins, choose_plan
from loadmaster.models.aware.pod_model import (
    Forecast,
    expected_service,
    full_memory,
    mean_memory,
    memory_of_level,
    oom_probability,
)
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.aware.settings import AwareSettings

SMALL = {
    "actor": [8], "critic": [8], "embedding": 4, "encoder": {"hidden": 6, "trajectories": 3},
}  # fmt: skip


def network_of(seed: int = 1, size: float = 0.3, **settings: Any) -> AwareNetwork:
    """An untrained network whose outputs depend on all inputs; size 0: its actions are zeros."""
    torch.manual_seed(seed)
    network = AwareNetwork(build_settings(AwareSettings, {**SMALL, **settings}))
    for table in (network.actor.weights[-1], network.actor.biases[-1]):
        torch.nn.init.normal_(table, std=size)
    if network.encoder is not None:
        torch.nn.init.constant_(network.encoder.out.bias, 0.5)  # so that ReLU hides nothing
    return network


def policy_of(seed: int = 1, size: float = 0.3, **settings: Any) -> AwarePolicy:
    return AwarePolicy(network_of(seed, size, **settings), PodScalingSettings())


def decisions(
    policy: AwarePolicy, settings: PodScalingSettings, setup: Setup, seed: int = 1
) -> list[tuple[PodDecision, Floats]]:
    """Decisions of an episode, each with the plan before it."""
    runner, found = EpisodeRunner(settings, setup, seed), []
    state = runner.episode.state
    for _, decision in policy.steps(runner, nothing_known(policy.settings.context)):
        found.append((decision, state.plan.copy()))
        carry_out(setup.constants, state, decision.plan)
    return found


@compiled
def _model(
    constants: SimConstants,
    app: Floats,
    row: Floats,
    load: Forecast,
    margin: float,
    plan: Floats,
    level: float,
) -> tuple[float, float, float, float, float, float]:
    cores, mib, replicas = plan[0], plan[1], plan[2]
    preserved, use = expected_service(constants, app, row, load, margin, replicas, cores)
    return (
        preserved,
        use,
        mean_memory(constants, app, load, replicas, cores),
        oom_probability(constants, app, load, replicas, cores, mib),
        memory_of_level(constants, app, load, replicas, cores, level),
        full_memory(constants, app),
    )


def model(
    constants: SimConstants, app: Floats, load: Forecast, plan: Any,
    margin: float = 1.0, level: float = 5.0,
) -> tuple[float, float, float, float, float, float]:  # fmt: skip
    """SLO preservation, CPU use, mean MiB, OOM probability, MiB of a level, MiB of all workers."""
    plan = np.array(plan, np.float64)
    return _model(constants, app, np.zeros(ROW_COLUMNS), load, margin, plan, level)


@compiled
def choose(
    constants: SimConstants,
    app: Floats,
    forecast: Forecast,
    margins: Margins,
    now: Floats,
    row: Floats,
    plan: Floats,
) -> float:
    return choose_plan(constants, app, forecast, margins, now, row, plan)
