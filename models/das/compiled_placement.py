"""The placement agent of placement.py as compiled code: one moment, one job at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from loadmaster.envs.compiled import njit_inline
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models import simd_dense as lanes
from loadmaster.models.das.heuristic_init import (
    COST,
    HELD,
    HOUR_IN_DOLLARS,
    LEAST_SPEED,
    PACE,
    PAIR_FEATURES,
    RACK_HELD,
    RACK_WHOLE,
    USUAL,
    WHOLE_GANG,
)
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import RELU, STRAIGHT, Table, answer, blocks, numbers, whole_blocks
from loadmaster.models.simd_dense import dense

PRIOR, SPREAD, KINDS = 0, 1, 2  # rows of what is said of a pair
INPUTS = MACHINE_FEATURES + PAIR_FEATURES
_ZERO, _ONE = np.float32(0), np.float32(1)


class PlacementWeights(NamedTuple):
    """D numbers describe a pair. Outputs come first, up to whole blocks of them."""

    straight_to_machine: Table  # (MACHINE_FEATURES,)
    straight: Table  # (PAIR_FEATURES,)
    of_job: Table  # (JOB_FEATURES, D) a row for each input
    of_job_bias: Table  # (D,)
    around: Table  # (D, INPUTS) of the machine, then of the pair
    pair: Table  # (D, D)
    pair_bias: Table  # (D,)
    say: Table  # (KINDS + kind width, D)
    say_bias: Table  # (KINDS + kind width,)
    silent: bool  # the layers have no say yet: the straight path is all there is


class PlacementRoom(NamedTuple):
    """C columns for machines."""

    inputs: Table  # (INPUTS, C)
    straight: Table  # (C,) what is known of the machine alone
    job: Table  # (D,)
    first: Table  # (D, C)
    pairs: Table  # (D, C)
    said: Table  # (KINDS + kind width, C)


def placement_weights(agent: PlacementAgent) -> PlacementWeights:
    say = [agent.prior, agent.spread, *([] if agent.kind is None else [agent.kind])]
    return PlacementWeights(
        straight_to_machine=numbers(agent.straight_to_machine.weight[0]),
        straight=numbers(agent.straight.weight[0]),
        of_job=numbers(agent.of_job.weight.T),
        of_job_bias=numbers(agent.of_job.bias),
        around=blocks(torch.cat([agent.of_machine.weight, agent.of_pair.weight], dim=1)),
        pair=blocks(agent.pair.weight),
        pair_bias=blocks(agent.pair.bias),
        say=blocks(torch.cat([head.weight for head in say])),
        say_bias=blocks(torch.cat([head.bias for head in say])),
        silent=not any(head.weight.any() for head in say),
    )


def placement_room(settings: DasSettings, machines: int) -> PlacementRoom:
    columns = whole_blocks(machines, lanes.COLUMNS)
    width = whole_blocks(settings.width, lanes.OUTPUTS)
    said = KINDS + (settings.kind_width if settings.process else 0)

    def blank(rows: int) -> Table:
        return np.zeros((rows, columns), np.float32)

    return PlacementRoom(
        inputs=blank(INPUTS),
        straight=blank(1)[0],
        job=np.zeros(width, np.float32),
        first=blank(width),
        pairs=blank(width),
        said=blank(whole_blocks(said, lanes.OUTPUTS)),
    )


@njit_inline
def look_at_machines(view: Observation, weights: PlacementWeights, room: PlacementRoom) -> None:
    """What all jobs of a moment are told of the machines."""
    machines = len(view.machines)
    room.straight[:machines] = _ZERO
    for feature in range(MACHINE_FEATURES):
        straight = weights.straight_to_machine[feature]
        for machine in range(machines):
            room.inputs[feature, machine] = view.machines[machine, feature]
            room.straight[machine] += straight * view.machines[machine, feature]


@njit_inline
def look_at_pairs(
    view: Observation, row: int, weights: PlacementWeights, room: PlacementRoom
) -> None:
    """What there is to say of a job on each machine: prior, spread and kinds, in `said`."""
    inputs, width, machines = room.inputs, weights.of_job.shape[1], len(view.machines)
    _compare(view, row, inputs)
    if weights.silent:
        for head in range(len(weights.say_bias)):
            room.said[head, :machines] = weights.say_bias[head]
    else:
        answer(weights.of_job, weights.of_job_bias, view.jobs[row], STRAIGHT, room.job)
        dense(weights.around, room.job, RELU, inputs, room.first, INPUTS, width, machines)
        dense(weights.pair, weights.pair_bias, RELU, room.first, room.pairs, width, width, machines)
        say, bias = weights.say, weights.say_bias
        dense(say, bias, STRAIGHT, room.pairs, room.said, width, len(say), machines)
    prior = room.said[PRIOR]
    for machine in range(machines):
        prior[machine] += room.straight[machine]
    for feature in range(PAIR_FEATURES):
        straight = weights.straight[feature]
        for machine in range(machines):
            prior[machine] += straight * inputs[MACHINE_FEATURES + feature, machine]


@njit_inline
def _compare(view: Observation, row: int, inputs: Table) -> None:
    """See opening.pair_features."""
    job = view.jobs[row]
    gpus = np.exp(job[told.INSTANCES]) * np.expm1(job[told.GPUS])
    long = max(job[told.RAN], job[told.USER_RUN]) - np.float32(USUAL)
    for machine in range(len(view.machines)):
        held, around = view.held[row, machine], view.rack_held[row, view.rack[machine]]
        inputs[MACHINE_FEATURES + HELD, machine] = held
        inputs[MACHINE_FEATURES + WHOLE_GANG, machine] = _ONE if held >= _ONE else _ZERO
        inputs[MACHINE_FEATURES + RACK_HELD, machine] = around
        inputs[MACHINE_FEATURES + RACK_WHOLE, machine] = _ONE if around >= _ONE else _ZERO
        pace = np.log(max(view.machines[machine, told.SPEED], np.float32(LEAST_SPEED)))
        price = view.machines[machine, told.PRICE] * gpus / np.float32(HOUR_IN_DOLLARS)
        inputs[MACHINE_FEATURES + COST, machine] = np.log1p(price) - pace
        inputs[MACHINE_FEATURES + PACE, machine] = pace * long
