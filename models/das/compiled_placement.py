"""The placement agent of placement.py as compiled code, for one job at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from loadmaster.envs.compiled import njit_inline
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.heuristic_init import (
    COST,
    DOLLARS_PER_HOUR,
    HELD,
    MIN_SPEED,
    PACE,
    PAIR_FEATURES,
    RACK_HELD,
    RACK_WHOLE,
    USUAL_LOG_MINUTES,
    WHOLE_GANG,
)
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import (
    LINEAR,
    RELU,
    Array32,
    dense_vector,
    pad_outputs,
    round_up,
    to_numpy,
)
from loadmaster.models.simd_dense import COLUMNS, OUTPUTS, dense

PRIOR, SPREAD, KINDS = 0, 1, 2  # rows of `PlacementWorkspace.outputs`
INPUTS = MACHINE_FEATURES + PAIR_FEATURES
_ZERO, _ONE = np.float32(0), np.float32(1)


class PlacementWeights(NamedTuple):
    """Width D. Matrices are (outputs, inputs), outputs padded to whole blocks."""

    straight_to_machine: Array32  # (MACHINE_FEATURES,)
    straight: Array32  # (PAIR_FEATURES,)
    of_job: Array32  # (JOB_FEATURES, D) transposed
    of_job_bias: Array32  # (D,)
    first: Array32  # (D, INPUTS) for the machine's features, then the pair's
    pair: Array32  # (D, D)
    pair_bias: Array32  # (D,)
    heads: Array32  # (KINDS + kind width, D)
    heads_bias: Array32  # (KINDS + kind width,)
    is_linear: bool  # the heads' weights are 0: only the linear skip path counts


class PlacementWorkspace(NamedTuple):
    """Scratch memory and results, with C columns for machines."""

    inputs: Array32  # (INPUTS, C)
    straight: Array32  # (C,) linear skip path of the machine's own features
    job: Array32  # (D,)
    first: Array32  # (D, C)
    pairs: Array32  # (D, C)
    outputs: Array32  # (KINDS + kind width, C) result


def placement_weights(agent: PlacementAgent) -> PlacementWeights:
    heads = [agent.prior, agent.spread, *([] if agent.kind is None else [agent.kind])]
    return PlacementWeights(
        straight_to_machine=to_numpy(agent.straight_to_machine.weight[0]),
        straight=to_numpy(agent.straight.weight[0]),
        of_job=to_numpy(agent.of_job.weight.T),
        of_job_bias=to_numpy(agent.of_job.bias),
        first=pad_outputs(torch.cat([agent.of_machine.weight, agent.of_pair.weight], dim=1)),
        pair=pad_outputs(agent.pair.weight),
        pair_bias=pad_outputs(agent.pair.bias),
        heads=pad_outputs(torch.cat([head.weight for head in heads])),
        heads_bias=pad_outputs(torch.cat([head.bias for head in heads])),
        is_linear=not any(head.weight.any() for head in heads),
    )


def placement_workspace(settings: DasSettings, machines: int) -> PlacementWorkspace:
    columns, width = round_up(machines, COLUMNS), round_up(settings.width, OUTPUTS)
    outputs = KINDS + (settings.kind_width if settings.process else 0)

    def blank(rows: int) -> Array32:
        return np.zeros((rows, columns), np.float32)

    return PlacementWorkspace(
        inputs=blank(INPUTS),
        straight=blank(1)[0],
        job=np.zeros(width, np.float32),
        first=blank(width),
        pairs=blank(width),
        outputs=blank(round_up(outputs, OUTPUTS)),
    )


@njit_inline
def load_machines(view: Observation, weights: PlacementWeights, work: PlacementWorkspace) -> None:
    """Copy the machines' features, which all jobs of an observation share."""
    machines = len(view.machines)
    work.straight[:machines] = _ZERO
    for feature in range(MACHINE_FEATURES):
        straight = weights.straight_to_machine[feature]
        for machine in range(machines):
            work.inputs[feature, machine] = view.machines[machine, feature]
            work.straight[machine] += straight * view.machines[machine, feature]


@njit_inline
def score_pairs(
    view: Observation, row: int, weights: PlacementWeights, work: PlacementWorkspace
) -> None:
    """Write prior, spread and kinds of a job on each machine into `work.outputs`."""
    inputs, width, machines = work.inputs, weights.of_job.shape[1], len(view.machines)
    _load_pairs(view, row, inputs)
    if weights.is_linear:
        for head in range(len(weights.heads_bias)):
            work.outputs[head, :machines] = weights.heads_bias[head]
    else:
        dense_vector(weights.of_job, weights.of_job_bias, view.jobs[row], LINEAR, work.job)
        dense(weights.first, work.job, RELU, inputs, work.first, INPUTS, width, machines)
        dense(weights.pair, weights.pair_bias, RELU, work.first, work.pairs, width, width, machines)
        heads, bias = weights.heads, weights.heads_bias
        dense(heads, bias, LINEAR, work.pairs, work.outputs, width, len(heads), machines)
    prior = work.outputs[PRIOR]
    for machine in range(machines):
        prior[machine] += work.straight[machine]
    for feature in range(PAIR_FEATURES):
        straight = weights.straight[feature]
        for machine in range(machines):
            prior[machine] += straight * inputs[MACHINE_FEATURES + feature, machine]


@njit_inline
def _load_pairs(view: Observation, row: int, inputs: Array32) -> None:
    """heuristic_init.pair_features of one job."""
    job = view.jobs[row]
    gpus = np.exp(job[features.INSTANCES]) * np.expm1(job[features.GPUS])
    minutes = max(job[features.RAN], job[features.USER_RUN]) - np.float32(USUAL_LOG_MINUTES)
    for machine in range(len(view.machines)):
        held, in_rack = view.held[row, machine], view.rack_held[row, view.rack[machine]]
        inputs[MACHINE_FEATURES + HELD, machine] = held
        inputs[MACHINE_FEATURES + WHOLE_GANG, machine] = _ONE if held >= _ONE else _ZERO
        inputs[MACHINE_FEATURES + RACK_HELD, machine] = in_rack
        inputs[MACHINE_FEATURES + RACK_WHOLE, machine] = _ONE if in_rack >= _ONE else _ZERO
        pace = np.log(max(view.machines[machine, features.SPEED], np.float32(MIN_SPEED)))
        price = view.machines[machine, features.PRICE] * gpus / np.float32(DOLLARS_PER_HOUR)
        inputs[MACHINE_FEATURES + COST, machine] = np.log1p(price) - pace
        inputs[MACHINE_FEATURES + PACE, machine] = pace * minutes
