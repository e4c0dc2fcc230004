"""Episodes under a baseline, run in compiled code."""

from loadmaster.envs.compiled import compiled
from loadmaster.envs.errors import unknown_name
from loadmaster.envs.pod_scaling.baselines import BASELINES, Baseline
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters
from loadmaster.envs.pod_scaling.baselines.memory import RuleState, new_rule_state
from loadmaster.envs.pod_scaling.baselines.rules import recommend
from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import (
    Episode,
    EpisodeResult,
    Setup,
    build_episode,
    build_setup,
    episode_result,
)
from loadmaster.envs.pod_scaling.episode_runner import warm_up
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.simulator import step_interval
from loadmaster.envs.pod_scaling.state import HORIZON, NOW, SimConstants, SimState


@compiled
def run_control_step(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
) -> None:
    """Run a rule for the intervals of one control step."""
    for _ in range(STEP_INTERVALS):
        recommend(rule, parameters, constants, state, memory)
        step_interval(constants, state)


@compiled
def run(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
) -> None:
    """Run a rule to the end of the episode."""
    while state.clock[NOW] < state.clock[HORIZON]:
        recommend(rule, parameters, constants, state, memory)
        step_interval(constants, state)


def run_baseline(
    baseline: Baseline, settings: PodScalingSettings, setup: Setup, seed: int
) -> EpisodeResult:
    """Run a baseline with its own parameters on the episode of `seed`; thread-safe."""
    return _run_rule(baseline, setup, build_episode(settings, setup, seed), seed)


def run_episode(
    policy: str, settings: PodScalingSettings, seed: int, setup: Setup | None = None
) -> EpisodeResult:
    """Run a named policy, tuned for the episode's application, on that of `seed`; thread-safe."""
    if policy not in BASELINES:
        raise unknown_name("policy", policy, BASELINES)
    chosen = setup or build_setup(settings)
    episode = build_episode(settings, chosen, seed)
    tuned = tuned_baseline(policy, settings, episode.application.name)
    return _run_rule(tuned, chosen, episode, seed)


def _run_rule(baseline: Baseline, setup: Setup, episode: Episode, seed: int) -> EpisodeResult:
    application, state = episode
    warm_up(setup.constants, state)
    run(baseline.rule, baseline.values, setup.constants, state, new_rule_state(state))
    return episode_result(state, application, baseline.name, seed)
