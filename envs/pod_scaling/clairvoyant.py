"""Clairvoyant bound: the best reward of any allocation in each step, without delay or backlog.

In each control step it knows the load, the level of the p99, the phase of the quotas and the peaks
of memory, and chooses replicas, CPU and memory anew, which apply at once. Nothing waits from the
step before, and no pod starts. Memory is the least that the step's highest peak needs.

CPU is searched in cells of a grid: a cell counts with the use of its lower end and the p99 of its
upper end, so that no size between them is better. Policies stay below, as only a backlog could
raise the use of a later step, and its requests are late.
"""

import math

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.episode import (
    EpisodeResult,
    Setup,
    build_episode,
    episode_result,
)
from loadmaster.envs.pod_scaling.latency import level_of_time, time_of_level, write_row
from loadmaster.envs.pod_scaling.rewards import slo_preservation, step_reward
from loadmaster.envs.pod_scaling.settings import (
    STEP_INTERVALS,
    STEP_S,
    PodScalingSettings,
)
from loadmaster.envs.pod_scaling.simulator import memory_needs, most_load
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    HORIZON,
    IO_S,
    MEMORY,
    NOW,
    P99_S,
    PRESERVED,
    REPLICAS,
    REWARD,
    S_ARRIVED,
    S_CORES,
    S_CPU_USE,
    S_MEMORY_USE,
    S_MIB,
    S_PODS,
    S_SERVED,
    S_VIOLATED,
    SLO,
    SLO_S,
    Floats,
    SimConstants,
    SimState,
)

POLICY = "clairvoyant"
CELLS = 160  # between the bounds of CPU, on a logarithmic scale


def run_clairvoyant(settings: PodScalingSettings, setup: Setup, seed: int) -> EpisodeResult:
    """The bound on the episode of `seed`; deterministic and thread-safe."""
    application, state = build_episode(settings, setup, seed)
    low, high = setup.constants.low[CPU], setup.constants.high[CPU]
    write_bounds(setup.constants, state, np.geomspace(low, high, CELLS + 1))
    state.clock[NOW] = state.clock[HORIZON]
    return episode_result(state, application, POLICY, seed)


@compiled
def write_bounds(constants: SimConstants, state: SimState, sizes: Floats) -> None:
    """Write the best outcome of every step; `sizes` are the ends of the cells."""
    for step in range(len(state.app_of)):
        state.outcome[step, REWARD] = -math.inf
        for replicas in range(int(constants.low[REPLICAS]), int(constants.high[REPLICAS]) + 1):
            _best_size(constants, state, step, replicas, sizes)


@njit_internal
def _best_size(
    constants: SimConstants, state: SimState, step: int, replicas: int, sizes: Floats
) -> None:
    """Improve the outcome of a step by the best size of so many pods."""
    app, best = state.apps[state.app_of[step]], state.outcome[step]
    first = step * STEP_INTERVALS
    arrived, peak = 0, 0.0
    for interval in range(first, first + STEP_INTERVALS):
        arrived += state.arrivals[interval]
        peak = max(peak, state.peaks[interval])
    load = state.rates[step]
    row = state.rows[0]
    last_memory = 0.0
    for place in range(len(sizes)):
        cores = sizes[place]
        rate = replicas * cores / app[CPU_S]
        rho = min(load / rate, most_load(app[CPU_S], cores))
        phase = state.phases[step]
        write_row(constants, row, app[IO_S], app[CPU_S], cores, replicas, rho, phase, 1.0)
        p99_s = time_of_level(constants, row, state.levels[step]) if arrived else 0.0
        mean, need = memory_needs(constants, app, load / replicas, rho, cores, 0.0, peak)
        mib = min(max(need, constants.low[MEMORY]), constants.high[MEMORY])
        memory_use = min(mean / mib, 1.0)
        smaller = sizes[max(place - 1, 0)]
        cpu_use = min(arrived * app[CPU_S] / (STEP_S * replicas * smaller), 1.0)
        preserved = slo_preservation(app[SLO_S], p99_s)
        reward = step_reward(constants, preserved, cpu_use, max(memory_use, last_memory))
        if reward > best[REWARD]:
            best[REWARD], best[PRESERVED], best[P99_S] = reward, preserved, p99_s
            best[SLO], best[S_ARRIVED], best[S_SERVED] = app[SLO_S], arrived, arrived
            best[S_CPU_USE], best[S_MEMORY_USE] = cpu_use, max(memory_use, last_memory)
            best[S_PODS], best[S_CORES] = replicas, replicas * smaller
            best[S_MIB] = replicas * mib
            best[S_VIOLATED] = arrived * math.exp(-level_of_time(constants, row, app[SLO_S]))
        last_memory = memory_use
