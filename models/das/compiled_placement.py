"""The placement agent of placement.py as compiled code, for one job at a time."""

from typing import NamedTuple

import numpy as np
import torch

from loadmaster.envs.compiled import njit_inline
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models import layers as ops
from loadmaster.models.das import heuristic_init as pairs
from loadmaster.models.das.heuristic_init import PAIR_FEATURES
from loadmaster.models.das.placement import PlacementAgent
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import LINEAR, RELU, Array32, Dense, dense_of, to_numpy
from loadmaster.models.simd import COLUMNS, OUTPUTS
from loadmaster.models.simd_dense import dense

PRIOR, SPREAD, KINDS = 0, 1, 2  # rows of `PlacementWorkspace.outputs`
INPUTS = MACHINE_FEATURES + PAIR_FEATURES
_ZERO, _ONE = np.float32(0), np.float32(1)


class PlacementWeights(NamedTuple):
    """Width D."""

    straight_to_machine: Array32  # (MACHINE_FEATURES,)
    straight: Array32  # (PAIR_FEATURES,)
    of_job: Dense  # (JOB_FEATURES, D) transposed
    first: Array32  # (D, INPUTS) for the machine's features, then the pair's
    pair: Dense  # (D, D)
    heads: Dense  # (KINDS + kind width, D)
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
        of_job=ops.transposed(agent.of_job),
        first=ops.pad_outputs(torch.cat([agent.of_machine.weight, agent.of_pair.weight], dim=1)),
        pair=dense_of(agent.pair),
        heads=Dense(
            ops.pad_outputs(torch.cat([head.weight for head in heads])),
            ops.pad_outputs(torch.cat([head.bias for head in heads])),
        ),
        is_linear=not any(head.weight.any() for head in heads),
    )


def placement_workspace(settings: DasSettings, machines: int) -> PlacementWorkspace:
    columns, width = ops.round_up(machines, COLUMNS), ops.round_up(settings.width, OUTPUTS)
    outputs = KINDS + (settings.kind_width if settings.process else 0)

    def blank(rows: int) -> Array32:
        return np.zeros((rows, columns), np.float32)

    return PlacementWorkspace(
        inputs=blank(INPUTS),
        straight=blank(1)[0],
        job=np.zeros(width, np.float32),
        first=blank(width),
        pairs=blank(width),
        outputs=blank(ops.round_up(outputs, OUTPUTS)),
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
    inputs, machines = work.inputs, len(view.machines)
    pair, heads = weights.pair, weights.heads
    _load_pairs(view, row, inputs)
    if weights.is_linear:
        for head in range(len(heads.bias)):
            work.outputs[head, :machines] = heads.bias[head]
    else:
        width = weights.of_job.matrix.shape[1]
        ops.dense_vector(weights.of_job, view.jobs[row], LINEAR, work.job)
        dense(weights.first, work.job, RELU, inputs, work.first, INPUTS, width, machines)
        dense(pair.matrix, pair.bias, RELU, work.first, work.pairs, width, width, machines)
        outputs = len(heads.matrix)
        dense(heads.matrix, heads.bias, LINEAR, work.pairs, work.outputs, width, outputs, machines)
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
    job, own = view.jobs[row], inputs[MACHINE_FEATURES:]
    gpus = np.exp(job[features.INSTANCES]) * np.expm1(job[features.GPUS])
    minutes = max(job[features.RAN], job[features.USER_RUN]) - np.float32(pairs.USUAL_LOG_MINUTES)
    # Machines of a kind follow each other, so most logarithms are those of the machine before.
    known_speed, known_price, pace, dear = np.float32(-1), np.float32(-1), _ZERO, _ZERO
    for machine in range(len(view.machines)):
        held, in_rack = view.held[row, machine], view.rack_held[row, view.rack[machine]]
        own[pairs.HELD, machine] = held
        own[pairs.WHOLE_GANG, machine] = _ONE if held >= _ONE else _ZERO
        own[pairs.RACK_HELD, machine] = in_rack
        own[pairs.RACK_WHOLE, machine] = _ONE if in_rack >= _ONE else _ZERO
        speed, price = (
            view.machines[machine, features.SPEED],
            view.machines[machine, features.PRICE],
        )
        if speed != known_speed:
            known_speed = speed
            pace = np.log(max(speed, np.float32(pairs.MIN_SPEED)))
        if price != known_price:
            known_price = price
            dear = np.log1p(price * gpus / np.float32(pairs.DOLLARS_PER_HOUR))
        own[pairs.COST, machine] = dear - pace
        own[pairs.PACE, machine] = pace * minutes
