"""Schedules: plans and the minutes from which they apply, run through the simulator.

Searches simulate thousands of schedules of one episode. They keep states in slots, which share the
tables that do not change and those that no later minute reads, and copy the others.
"""

from typing import NamedTuple

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.baselines import Baseline
from loadmaster.envs.stream_scaling.episode import (
    Episode,
    EpisodeResult,
    Setup,
    build_episode,
    episode_result,
)
from loadmaster.envs.stream_scaling.episode_runner import warm_up
from loadmaster.envs.stream_scaling.restart import fit_plan, rescale
from loadmaster.envs.stream_scaling.rewards import reward_sum
from loadmaster.envs.stream_scaling.rollout import simulate_rule
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import step_minute
from loadmaster.envs.stream_scaling.state import (
    MINUTE,
    SUM_COLUMNS,
    Floats,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)

# Tables that a minute passes to the next; the others are constant, scratch or results.
_CARRIED = frozenset(
    (
        "clock", "times", "sums", "parallelism", "queue", "variance", "jitter", "arrived",
        "departed", "age", "age_variance", "checkpoint", "barrier", "pending",
    )
)  # fmt: skip


class Schedule(NamedTuple):
    """From minute `minutes[k]` of the simulator's clock on the job has plan `plans[k]`."""

    minutes: Ints  # (switches,) in ascending order
    plans: Ints  # (switches, N)


def start_episode(settings: StreamScalingSettings, setup: Setup, seed: int) -> Episode:
    """The episode of `seed` at its first decision, without noise of the metrics.

    The simulation does not read the metrics, so every schedule has the same result with noise.
    """
    episode = build_episode(settings, setup, seed)
    episode = episode._replace(constants=episode.constants._replace(noise=0.0, missing=0.0))
    warm_up(setup.tables, episode.constants, episode.state)
    return episode


def reward_weights(settings: StreamScalingSettings) -> Floats:
    """(SUM_COLUMNS,) factors of the sums in the sum of rewards, which is linear in them."""
    weights: Floats = reward_sum(settings, np.eye(SUM_COLUMNS))
    return weights


def record_schedule(
    baseline: Baseline, settings: StreamScalingSettings, setup: Setup, seed: int
) -> tuple[Schedule, float]:
    """The schedule of a rule on the episode of `seed`, and its reward."""
    tasks = len(setup.tables.cap)
    trace = np.zeros((settings.minutes, tasks + 1), np.int64)
    state = simulate_rule(baseline, settings, setup, seed, trace)
    minutes = np.flatnonzero(trace[:, tasks])
    schedule = Schedule(WARM_UP_MIN + minutes, np.ascontiguousarray(trace[minutes, :tasks]))
    return schedule, episode_result(settings, state, baseline.name, seed).reward


def schedule_result(
    settings: StreamScalingSettings,
    setup: Setup,
    seed: int,
    schedule: Schedule,
    policy: str,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a schedule on the episode of `seed`."""
    episode = start_episode(settings, setup, seed)
    state, first = episode.state, episode.state.parallelism.copy()
    end = WARM_UP_MIN + settings.minutes
    run_schedule(setup.tables, episode.constants, state, *schedule, np.zeros_like(first), end)
    parallelism = None
    if record:
        lengths = np.diff([WARM_UP_MIN, *schedule.minutes, end])
        parallelism = np.repeat(np.vstack([first[None], schedule.plans]), lengths, axis=0)
    return episode_result(settings, state, policy, seed, parallelism)


@compiled
def fit_plans(job: JobTables, constants: SimConstants, plans: Ints) -> None:
    """Adjust each plan in place to what the job allows."""
    for number in range(len(plans)):
        fit_plan(job, constants, plans[number])


@compiled
def run_schedule(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    minutes: Ints,
    plans: Ints,
    plan: Ints,
    until: int,
) -> None:
    """Simulate up to minute `until`; `plan` is scratch, one entry a task."""
    switch = next_switch(minutes, state.clock[MINUTE])
    while state.clock[MINUTE] < until:
        switch = run_minute(job, constants, state, minutes, plans, switch, plan)


@njit_internal
def next_switch(minutes: Ints, minute: int) -> int:
    """The first switch in `minute` or later."""
    switch = 0
    while switch < len(minutes) and minutes[switch] < minute:
        switch += 1
    return switch


@njit_internal
def run_minute(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    minutes: Ints,
    plans: Ints,
    switch: int,
    plan: Ints,
) -> int:
    """Simulate one minute and return the next switch; `switch` is the next one before it."""
    if switch < len(minutes) and minutes[switch] == state.clock[MINUTE]:
        for task in range(len(plan)):
            plan[task] = plans[switch, task]
        rescale(job, constants, state, plan)
        switch += 1
    step_minute(job, constants, state)
    return switch


@njit_internal
def reward_so_far(state: SimState, weights: Floats) -> float:
    """Sum of the rewards of all minutes since the first decision."""
    total = 0.0
    for column in range(len(weights)):
        total += weights[column] * state.sums[column]
    return total


def new_slots(state: SimState, count: int) -> SimState:
    """`count` copies of a state: tables in _CARRIED have a first axis for them, others none."""
    return SimState(
        **{
            name: np.stack([table] * count) if name in _CARRIED else table
            for name, table in state._asdict().items()
        }
    )


@njit_internal
def slot_of(s: SimState, i: int) -> SimState:
    """The state in slot i: views of its own tables, and the common ones."""
    return SimState(
        s.clock[i], s.times[i], s.sums[i], s.load, s.offered, s.parallelism[i], s.queue[i],
        s.variance[i], s.wanted, s.jitter[i], s.arrived[i], s.departed[i], s.age[i],
        s.age_variance[i], s.inflow, s.room, s.reserved, s.departure_jitter, s.checkpoint[i],
        s.barrier[i], s.pending[i], s.metrics, s.outcome,
    )  # fmt: skip


@njit_internal
def copy_slot(slots: SimState, source: int, target: int) -> None:
    """Copy the tables that a minute passes to the next."""
    _copy(slots.clock[source], slots.clock[target])
    _copy(slots.times[source], slots.times[target])
    _copy(slots.sums[source], slots.sums[target])
    _copy(slots.parallelism[source], slots.parallelism[target])
    _copy(slots.jitter[source], slots.jitter[target])
    _copy(slots.departed[source], slots.departed[target])
    _copy(slots.checkpoint[source], slots.checkpoint[target])
    _copy(slots.barrier[source], slots.barrier[target])
    _copy(slots.pending[source], slots.pending[target])
    for row in range(slots.queue.shape[1]):
        _copy(slots.queue[source, row], slots.queue[target, row])
        _copy(slots.variance[source, row], slots.variance[target, row])
    for task in range(slots.arrived.shape[1]):
        _copy(slots.arrived[source, task], slots.arrived[target, task])
        _copy(slots.age[source, task], slots.age[target, task])
        _copy(slots.age_variance[source, task], slots.age_variance[target, task])


@njit_internal
def _copy(source: Floats, target: Floats) -> None:
    for place in range(len(source)):
        target[place] = source[place]
