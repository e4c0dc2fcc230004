"""What is known of an application from logged features alone, whoever acted.

The last features of an episode have the parameters that were estimated until then. Estimates with
the same parameters are made from them: sums of a regression whose spread is that of the logged
loads, so that later reports weigh as much beside them as beside the original ones.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.baselines import Baseline
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters
from loadmaster.envs.pod_scaling.baselines.memory import RuleState, new_rule_state
from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.observation import LOAD_UNIT
from loadmaster.envs.pod_scaling.rollout import run_control_step
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.simulator import requests_at_cpu
from loadmaster.envs.pod_scaling.state import (
    CPU,
    HORIZON,
    NOW,
    REPLICAS,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.choice import trajectory_of
from loadmaster.models.aware.encoder import Trajectory
from loadmaster.models.aware.estimates import (
    CPU_SECONDS,
    IO,
    IO_SEEN,
    KEEP,
    MOST_RHO,
    REQUESTS,
    begin_episode,
    blank_application,
    new_estimates,
    write_memory,
)
from loadmaster.models.aware.features import (
    FEATURES,
    FeatureParameters,
    write_features,
)
from loadmaster.models.aware.rule import Scratch, observe_step, scratch
from loadmaster.models.aware.settings import MARGINS, RuleSettings

_CPU_LIMIT, _REPLICAS, _READY, _CPU_USE, _LOAD = 0, 2, 3, 4, 9  # places in STATE_COLUMNS


class LoggedEpisode(NamedTuple):
    """Features before each control step and after the last, and rewards of the steps."""

    features: NDArray[np.float32]  # (steps + 1, FEATURES)
    rewards: NDArray[np.float64]  # (steps,), the environment's

    @property
    def reward(self) -> float:
        return float(self.rewards.mean())

    def trajectory(self, mask: NDArray[np.float32]) -> Trajectory:
        """For the encoder, with the rule's margins, which are zeros, as actions."""
        steps = len(self.rewards)
        actions = np.zeros((steps, len(MARGINS)), np.float32)
        return trajectory_of(self.features[:steps] * mask, actions, self.rewards)


def record_rule(
    baseline: Baseline, settings: PodScalingSettings, setup: Setup, seed: int, estimates: Floats
) -> LoggedEpisode:
    """The episode of `seed` under a rule; `estimates` of the application are updated."""
    runner = EpisodeRunner(settings, setup, seed)
    begin_episode(estimates)
    features = np.zeros((settings.steps + 1, FEATURES), np.float32)
    state = runner.episode.state
    _run(
        *(baseline.rule, baseline.values, setup.constants, state, new_rule_state(state)),
        *(RuleSettings().gain, estimates, blank_application(), scratch(), features),
    )
    return LoggedEpisode(features, runner.result(baseline.name).rewards.copy())


@compiled
def _run(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    gain: float,
    estimates: Floats,
    app: Floats,
    tables: Scratch,
    features: NDArray[np.float32],
) -> None:
    """Run a rule to the end of the episode, and write the features of every control step."""
    place = 0
    observe_step(constants, state, gain, estimates, app, tables)
    write_features(constants, state, estimates, app, features[place])
    while state.clock[NOW] < state.clock[HORIZON]:
        run_control_step(rule, parameters, constants, state, memory)
        place += 1
        observe_step(constants, state, gain, estimates, app, tables)
        write_features(constants, state, estimates, app, features[place])


def logged_estimates(features: NDArray[np.float32], constants: SimConstants) -> Floats:
    """Estimates with the parameters of the last of these features (rows, FEATURES)."""
    found, rows = new_estimates(), features.astype(np.float64)
    last = FeatureParameters.of(features[-1])
    low, high = constants.low, constants.high
    cores = low[CPU] * (high[CPU] / low[CPU]) ** rows[:, _CPU_LIMIT]
    replicas = low[REPLICAS] * (high[REPLICAS] / low[REPLICAS]) ** rows[:, _REPLICAS]
    ready = replicas * rows[:, _READY]
    rates = np.expm1(rows[:, _LOAD] * LOAD_UNIT)  # requests a second
    weights = KEEP ** (STEP_INTERVALS * np.arange(len(rows))[::-1])
    found[REQUESTS] = STEP_INTERVALS * INTERVAL_S * float(weights @ rates)
    found[CPU_SECONDS] = last.cpu_s * found[REQUESTS]
    found[IO], found[IO_SEEN] = last.io_s, len(rows) - 1.0
    settled = (rows[:, _CPU_USE] <= MOST_RHO) & (rows[:, _READY] >= 1) & (rates > 0)
    if last.reports > 0 and settled.any():
        at_cpu = np.zeros(len(rows))
        _write_at_cpu(np.minimum(rows[:, _CPU_USE], MOST_RHO), cores, at_cpu)
        weights = np.where(settled, weights, 0.0)
        per_pod = rates / np.maximum(ready, 1.0)
        moments = _moments(last.reports * weights / weights.sum(), at_cpu, per_pod)
        line = last.idle_mib, last.request_mib, last.request_mib * last.memory_io_s
        write_memory(found, last.reports, moments, line)
    return found


def _moments(weights: Floats, a: Floats, b: Floats) -> tuple[float, float, float, float, float]:
    """Means of a and b, and sums of their products about the means."""
    total = weights.sum()
    mean_a, mean_b = float(weights @ a / total), float(weights @ b / total)
    own_a, own_b = a - mean_a, b - mean_b
    squares = float(weights @ own_a**2), float(weights @ own_b**2)
    return mean_a, mean_b, squares[0], float(weights @ (own_a * own_b)), squares[1]


@compiled
def _write_at_cpu(rho: Floats, cores: Floats, found: Floats) -> None:
    for place in range(len(found)):
        found[place] = requests_at_cpu(rho[place], cores[place])
