"""Episodes under a baseline, run in compiled code."""

import numpy as np

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.stream_scaling.baselines import BASELINES, Baseline
from loadmaster.envs.stream_scaling.baselines.formulas import Parameters
from loadmaster.envs.stream_scaling.baselines.rules import (
    RuleState,
    new_rule_state,
    recommend,
)
from loadmaster.envs.stream_scaling.calibration import tuned_baseline
from loadmaster.envs.stream_scaling.episode import (
    EpisodeResult,
    Setup,
    build_episode,
    build_setup,
    episode_result,
)
from loadmaster.envs.stream_scaling.episode_runner import warm_up
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import step_minute
from loadmaster.envs.stream_scaling.state import (
    HORIZON,
    MINUTE,
    JobTables,
    SimConstants,
    SimState,
)


@compiled
def run_rule(
    rule: int,
    parameters: Parameters,
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    plan: Ints,
    trace: Ints,
) -> None:
    """Run a rule to the end of the episode; `trace` is (minutes, N) or has no rows.

    With N + 1 columns, the last is 1 in the minutes in which the rule restarts the job.
    """
    while state.clock[MINUTE] < state.clock[HORIZON]:
        restarted = False
        if recommend(rule, parameters, job, constants, state, memory, plan):
            restarted = rescale(job, constants, state, plan)
        minute = state.clock[MINUTE] - WARM_UP_MIN
        if minute < len(trace):
            for task in range(len(plan)):
                trace[minute, task] = state.parallelism[task]
            for column in range(len(plan), trace.shape[1]):
                trace[minute, column] = restarted
        step_minute(job, constants, state)


def run_baseline(
    baseline: Baseline,
    settings: StreamScalingSettings,
    setup: Setup,
    seed: int,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a baseline on the episode of `seed`; thread-safe."""
    trace = np.zeros((settings.minutes if record else 0, len(setup.tables.cap)), np.int64)
    state = simulate_rule(baseline, settings, setup, seed, trace)
    return episode_result(settings, state, baseline.name, seed, trace if record else None)


def simulate_rule(
    baseline: Baseline, settings: StreamScalingSettings, setup: Setup, seed: int, trace: Ints
) -> SimState:
    """The state at the end of the episode of `seed` under a baseline; `trace` as in `run_rule`."""
    tasks = len(setup.tables.cap)
    if baseline.plan and len(baseline.plan) != tasks:
        raise InputError(
            f"{baseline.name}: a plan for {len(baseline.plan)} tasks; "
            f"expected {tasks}, one number for each task of {setup.job.name}"
        )
    episode = build_episode(settings, setup, seed)
    warm_up(setup.tables, episode.constants, episode.state)
    run_rule(
        baseline.rule, baseline.values, setup.tables, episode.constants, episode.state,
        new_rule_state(tasks, baseline.plan), np.zeros(tasks, np.int64), trace,
    )  # fmt: skip
    return episode.state


def run_episode(
    policy: str,
    settings: StreamScalingSettings,
    seed: int,
    setup: Setup | None = None,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a named policy, tuned, on the episode of `seed`; thread-safe."""
    if policy not in BASELINES:
        raise unknown_name("policy", policy, BASELINES)
    chosen = setup or build_setup(settings)
    baseline = tuned_baseline(policy, settings, chosen)
    return run_baseline(baseline, settings, chosen, seed, record=record)
