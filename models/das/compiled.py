"""Both agents as one compiled function, for one moment at a time.

A rollout worker or a policy asks about one small moment, again and again. There the cost of a
forward pass in torch is that of starting some hundred operations; compiled, the arithmetic itself
is all there is, and only rows in use are computed. Weights are read from a `DasNetwork`, which
stays the one that learns. It also stays the one for clusters where machines share cells: see
`serves`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.compiled_ordering import (
    OrderingRoom,
    OrderingWeights,
    order_jobs,
    ordering_room,
    ordering_weights,
)
from loadmaster.models.das.compiled_placement import (
    KINDS,
    PRIOR,
    SPREAD,
    PlacementRoom,
    PlacementWeights,
    look_at_machines,
    look_at_pairs,
    placement_room,
    placement_weights,
)
from loadmaster.models.das.compiled_process import (
    ProcessRoom,
    ProcessWeights,
    believe,
    process_room,
    process_weights,
    recall,
)
from loadmaster.models.das.gaussian_process import RandomWalkProcess
from loadmaster.models.das.heuristic_init import LEAST_LOG_STD, LOG_TAU, MOST_LOG_STD
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.keyed_random_numba import draw_normal
from loadmaster.models.layers import Table

ORDER, PLACE = 0, 1  # streams of random numbers, and places in `logs`
_LEAST, _MOST = np.float32(LEAST_LOG_STD), np.float32(MOST_LOG_STD)


class Weights(NamedTuple):
    ordering: OrderingWeights
    placement: PlacementWeights
    process: ProcessWeights
    has_process: bool


class Workspace(NamedTuple):
    """Scratch tables, and what was decided: Q rows of jobs, M machines."""

    ordering: OrderingRoom
    placement: PlacementRoom
    process: ProcessRoom
    standard: Table  # (Q or M,) standard normal numbers
    priority: Table  # (Q,)
    affinity: Table  # (Q, M)
    logs: NDArray[np.float64]  # (2,) of the density of either agent's draw
    last: NDArray[np.int64]  # (1,) the row whose machines were looked at last; -1: none


def is_supported(settings: DasSettings, machines: int) -> bool:
    """Whether the compiled code knows such a network on so many machines."""
    return not settings.process or machines <= settings.exact_up_to


def weights_of(network: DasNetwork) -> Weights:
    """Copy the network's weights into the form that `decide` reads."""
    process = network.placement.process
    return Weights(
        ordering_weights(network.ordering),
        placement_weights(network.placement),
        process_weights(process or RandomWalkProcess(network.settings)),
        has_process=process is not None,
    )


def workspace_for(settings: DasSettings, queue: int, machines: int, past: int) -> Workspace:
    """For observations of up to `queue` jobs and `past` decisions."""
    return Workspace(
        ordering_room(settings, queue),
        placement_room(settings, machines),
        process_room(machines if settings.process else 0, past),
        standard=np.zeros(max(queue, machines), np.float32),
        priority=np.zeros(queue, np.float32),
        affinity=np.zeros((queue, machines), np.float32),
        logs=np.zeros(2),
        last=np.full(1, -1),
    )


@compiled
def decide(
    view: Observation, weights: Weights, room: Workspace, draws: bool, luck: int | np.int64
) -> None:
    """Priorities and affinities, and with `draws` their log-probabilities, into the room.

    With `draws` they are drawn by `luck` as DasModule draws them; without, they are the means.
    """
    count = 0
    while count < len(view.job_mask) and view.job_mask[count]:
        count += 1
    room.logs[ORDER], room.logs[PLACE] = 0.0, 0.0
    room.last[0] = -1
    if count > 0:
        order_jobs(view, count, weights.ordering, room.ordering)
        _set_priorities(view, count, room, draws, luck)
        _set_affinities(view, count, weights, room, draws, luck)


@njit_inline
def _set_priorities(
    view: Observation, count: int, room: Workspace, draws: bool, luck: int | np.int64
) -> None:
    """Those that can change nothing are 0 and have no part in the log-probability."""
    mean, log_std, standard = room.ordering.mean, room.ordering.log_std, room.standard
    if draws:
        draw_normal(luck, ORDER, 0, count, standard)
    for row in range(count):
        room.priority[row] = 0
        if not view.heeded[row]:
            continue
        room.priority[row] = mean[row]
        if draws:
            room.priority[row] += np.exp(log_std[row]) * standard[row]
            room.logs[ORDER] += log_density(standard[row], log_std[row])


@njit_inline
def _set_affinities(
    view: Observation,
    count: int,
    weights: Weights,
    room: Workspace,
    draws: bool,
    luck: int | np.int64,
) -> None:
    """Those of jobs that fit nowhere are 0 and have no part in the log-probability."""
    machines, recalled = view.held.shape[1], False
    for row in range(count):
        affinity, fits = room.affinity[row], False
        for machine in range(machines):
            affinity[machine] = 0
            fits = fits or view.held[row, machine] > 0
        if not fits:
            continue
        if not recalled:
            look_at_machines(view, weights.placement, room.placement)
            if weights.has_process:
                recall(view, weights.process, room.process)
            recalled = True
        look_at_pairs(view, row, weights.placement, room.placement)
        room.last[0] = row
        if draws:
            draw_normal(luck, PLACE, row * machines, machines, room.standard)
        if weights.has_process:
            room.logs[PLACE] += _process_affinity(view, weights, room, draws, affinity)
        else:
            room.logs[PLACE] += _lone_affinity(room, draws, affinity)


@njit_inline
def _process_affinity(
    view: Observation, weights: Weights, room: Workspace, draws: bool, affinity: Table
) -> float:
    """affinity.ProcessAffinities; the log-probability."""
    said, machines = room.placement.said, len(affinity)
    kinds = said[KINDS:]
    half_log = believe(kinds, view.rack, room.standard, draws, weights.process, room.process)
    log_amplitude = log_amplitude_of(said[SPREAD], machines)
    amplitude = np.exp(log_amplitude)
    found, log, gain = room.process.found, 0.0, weights.process.gain
    for machine in range(machines):
        won, drawn = found[2 * machine], found[2 * machine + 1]
        mean = np.float64(said[PRIOR, machine]) + gain * won
        affinity[machine] = mean + amplitude * drawn if draws else mean
        log += log_density(room.standard[machine], log_amplitude)
    return log - half_log if draws else 0.0


@njit_inline
def log_amplitude_of(spread: Table, machines: int) -> float:
    """Of the process, by what is said of each machine."""
    total = np.float32(0)
    for machine in range(machines):
        total += spread[machine]
    return np.float64(min(max(total / np.float32(machines), _LEAST), _MOST))


@njit_inline
def _lone_affinity(room: Workspace, draws: bool, affinity: Table) -> float:
    """affinity.IndependentAffinities; the log-probability."""
    said, log = room.placement.said, 0.0
    for machine in range(len(affinity)):
        affinity[machine] = said[PRIOR, machine]
        if draws:
            log_std = min(max(said[SPREAD, machine], _LEAST), _MOST)
            affinity[machine] += np.exp(log_std) * room.standard[machine]
            log += log_density(room.standard[machine], log_std)
    return log


@njit_internal
def log_density(standard: float, log_std: float) -> float:
    """Of a number that was drawn by way of a standard normal one.

    What was drawn is rounded to float32, as its mean is: it could tell no better.
    """
    return -(np.float64(standard) ** 2) / 2 - log_std - LOG_TAU / 2
