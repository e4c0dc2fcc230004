"""The same network as one compiled function, for one decision at a time.

A rollout worker or a decision service asks about one small graph, again and again. There the cost
of a forward pass in torch is that of starting some hundred operations; compiled, the arithmetic
itself is all there is. Weights are read from a `DecimaNetwork`, which stays the one that learns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models import simd_dense as lanes
from loadmaster.models.decima import features
from loadmaster.models.decima.network import ILLEGAL, SLOPE, DecimaNetwork
from loadmaster.models.simd_dense import dense

PREPARE, MESSAGE, UPDATE, SUMMARISE_STAGE, SUMMARISE_JOB, SCORE_STAGE, SCORE_LIMIT = range(7)
LAYERS_MAX = 4

# How features.py scales, as numbers a compiled function can hold.
_EXECUTOR, _TASK = np.float32(features.PER_EXECUTOR), np.float32(features.PER_TASK)
_LOG_S, _LOG_COUNT = np.float32(features.PER_LOG_S), np.float32(features.PER_LOG_COUNT)
_WORK, _JOB_WORK = np.float32(features.PER_WORK_S), np.float32(features.PER_JOB_WORK_S)
_DURATION = np.float32(features.PER_DURATION_S)
_SOURCE, _NOT_SOURCE = np.float32(features.SOURCE), np.float32(features.NOT_SOURCE)
_SLOPE, _ILLEGAL, _ONE = np.float32(SLOPE), np.float32(ILLEGAL), np.float32(1)


class Weights(NamedTuple):
    """All layers of all seven perceptrons, padded with 0 to the widest, W."""

    matrix: NDArray[np.float32]  # (7, LAYERS_MAX, W, W) to output (row) from input (column)
    bias: NDArray[np.float32]  # (7, LAYERS_MAX, W)
    # Row 0: how many layers, none of a part the network has not; then inputs and outputs of each.
    shape: NDArray[np.int64]  # (7, 1 + LAYERS_MAX, 2)
    tilt_stage: NDArray[np.float32]  # (STAGE_TERMS,)
    tilt_limit: NDArray[np.float32]  # (LIMIT_INPUTS, 1 + JOB_INPUTS)


class Scratch(NamedTuple):
    """Room for one decision: N stages, M jobs, E limits, D numbers an embedding.

    Tables have a column for each stage, leaves first: a layer then is a few long loops over all
    stages, or those of a level, and these vectorise: three times faster than stage by stage.
    """

    row: NDArray[np.int64]  # (N,) the observation's row of each column
    column: NDArray[np.int64]  # (N,) and the other way round
    level_end: NDArray[np.int64]  # (N + 1,) the column behind the last of each height
    inputs: NDArray[np.float32]  # (STAGE_INPUTS, N)
    stage: NDArray[np.float32]  # (D, N)
    heard: NDArray[np.float32]  # (D, N)
    job_inputs: NDArray[np.float32]  # (JOB_INPUTS, M)
    job: NDArray[np.float32]  # (D, M)
    cluster: NDArray[np.float32]  # (D,)
    layer: NDArray[np.float32]  # (2, W, columns) what goes into a layer, and what comes out
    stage_scores: NDArray[np.float32]  # (N,) by row
    limit_scores: NDArray[np.float32]  # (E,)


def weights_of(network: DecimaNetwork) -> Weights:
    """Copy the network's weights into the form that `decide` reads."""
    perceptrons: tuple[nn.Sequential | None, ...] = (
        network.encoder.prepare,
        network.encoder.message,
        network.encoder.update,
        network.summarise_stage,
        network.summarise_job,
        network.score_stage,
        network.score_limit,
    )
    widest = _widest(network)
    matrix = np.zeros((len(perceptrons), LAYERS_MAX, widest, widest), np.float32)
    bias = np.zeros((len(perceptrons), LAYERS_MAX, widest), np.float32)
    shape = np.zeros((len(perceptrons), 1 + LAYERS_MAX, 2), np.int64)
    for which, perceptron in enumerate(perceptrons):
        layers = [layer for layer in perceptron or () if isinstance(layer, nn.Linear)]
        shape[which, 0] = len(layers)
        for place, layer in enumerate(layers):
            given, made = layer.in_features, layer.out_features
            matrix[which, place, :made, :given] = layer.weight.detach().cpu().numpy()
            bias[which, place, :made] = layer.bias.detach().cpu().numpy()
            shape[which, 1 + place] = given, made
    return Weights(
        matrix,
        bias,
        shape,
        tilt_stage=_row(network.tilt_stage, features.STAGE_TERMS),
        tilt_limit=_row(network.tilt_limit, features.LIMIT_TERMS).reshape(
            features.LIMIT_INPUTS, -1
        ),
    )


def _row(layer: nn.Linear | None, size: int) -> NDArray[np.float32]:
    if layer is None:
        return np.zeros(size, np.float32)
    return np.array(layer.weight.detach().cpu().numpy()[0], np.float32)


def _widest(network: DecimaNetwork) -> int:
    widest = max(
        max(layer.in_features, layer.out_features)
        for layer in network.modules()
        if isinstance(layer, nn.Linear)
    )
    return lanes.OUTPUTS * -(-widest // lanes.OUTPUTS)


def scratch_for(network: DecimaNetwork, stages: int, jobs: int, executors: int) -> Scratch:
    width = network.encoder.width
    columns = lanes.COLUMNS * -(-max(stages, jobs, executors) // lanes.COLUMNS)
    return Scratch(
        row=np.zeros(stages, np.int64),
        column=np.zeros(stages, np.int64),
        level_end=np.zeros(stages + 1, np.int64),
        inputs=np.zeros((features.STAGE_INPUTS, stages), np.float32),
        stage=np.zeros((width, stages), np.float32),
        heard=np.zeros((width, stages), np.float32),
        job_inputs=np.zeros((features.JOB_INPUTS, jobs), np.float32),
        job=np.zeros((width, jobs), np.float32),
        cluster=np.zeros(width, np.float32),
        layer=np.zeros((2, _widest(network), columns), np.float32),
        stage_scores=np.zeros(stages, np.float32),
        limit_scores=np.zeros(executors, np.float32),
    )


@compiled
def decide(
    view: Observation, weights: Weights, room: Scratch, stage_draw: float, limit_draw: float
) -> tuple[int, int, float]:
    """(stage row, limit, log-probability).

    Draws in [0, 1) sample from the policy; draws below 0 take the best-scored stage and limit.
    """
    order_stages(view, room)
    read_inputs(view, room)
    embed(view, weights, room)
    score_stages(view, weights, room)
    stages, total = int(view.cluster[seen.STAGES]), int(view.cluster[seen.TOTAL_EXECUTORS])
    row, stage_log = choose(room.stage_scores, 0, stages, stage_draw)
    job = view.stage_job[row]
    if weights.shape[SCORE_LIMIT, 0, 0] == 0:
        return row, total, stage_log
    lowest, highest = useful_limits(view, row)
    score_limits(weights, room, job, lowest, highest, total)
    place, limit_log = choose(room.limit_scores, lowest - 1, highest, limit_draw)
    return row, place + 1, stage_log + limit_log


@njit_inline
def order_stages(view: Observation, room: Scratch) -> None:
    """Leaves first: which column each row has. Counted, not compared."""
    stages, ends = int(view.cluster[seen.STAGES]), room.level_end
    ends[: stages + 1] = 0
    for row in range(stages):
        ends[int(view.stages[row, seen.HEIGHT]) + 1] += 1
    for level in range(stages):
        ends[level + 1] += ends[level]
    for row in range(stages):
        height = int(view.stages[row, seen.HEIGHT])
        column = ends[height]
        room.row[column], room.column[row] = row, column
        ends[height] = column + 1


@njit_inline
def read_inputs(view: Observation, room: Scratch) -> None:
    """features.py, one stage at a time."""
    free = view.cluster[seen.FREE_EXECUTORS] * _EXECUTOR
    crowd = np.log1p(view.cluster[seen.JOBS]) * _LOG_COUNT
    for job in range(int(view.cluster[seen.JOBS])):
        own = view.jobs[job, seen.IS_SOURCE] == 1
        room.job_inputs[0, job] = view.jobs[job, seen.EXECUTORS] * _EXECUTOR
        room.job_inputs[1, job] = _SOURCE if own else _NOT_SOURCE
        room.job_inputs[2, job] = free
        work = view.jobs[job, seen.WORK_LEFT_S]
        room.job_inputs[3, job] = np.log1p(work) * _LOG_S
        room.job_inputs[4, job] = np.log1p(view.jobs[job, seen.EXECUTORS]) * _LOG_COUNT
        room.job_inputs[5, job] = crowd
        room.job_inputs[6, job] = work * _JOB_WORK
    inputs = room.inputs
    for column in range(int(view.cluster[seen.STAGES])):
        row = room.row[column]
        stage = view.stages[row]
        for shared in range(features.SHARED):
            inputs[shared, column] = room.job_inputs[shared, view.stage_job[row]]
        inputs[6, column] = stage[seen.UNSTARTED] * stage[seen.MEAN_S] * _WORK
        inputs[7, column] = stage[seen.UNSTARTED] * _TASK
        inputs[8, column] = stage[seen.MEAN_S] * _DURATION
        inputs[9, column] = np.log1p(stage[seen.CRITICAL_S]) * _LOG_S
        inputs[10, column] = stage[seen.RUNNING] * _EXECUTOR
        inputs[11, column] = stage[seen.RUNNABLE]
        inputs[12, column] = stage[seen.FITTING] * _EXECUTOR
        inputs[13, column] = _ONE - stage[seen.ABLE] / view.cluster[seen.TOTAL_EXECUTORS]


@njit_inline
def embed(view: Observation, weights: Weights, room: Scratch) -> None:
    """Stages, which then hear of one another (eq. 1); jobs and the cluster as sums."""
    stages, jobs = int(view.cluster[seen.STAGES]), int(view.cluster[seen.JOBS])
    width, layer = len(room.stage), room.layer
    fill(layer, 0, room.inputs, 0, stages)
    out = perceptron(weights, PREPARE, layer, stages)
    for i in range(width):
        for column in range(stages):
            room.stage[i, column] = layer[out, i, column]
    if weights.shape[MESSAGE, 0, 0] > 0:
        pass_messages(view, weights, room)
    fill(layer, 0, room.inputs, 0, stages)
    fill(layer, features.STAGE_INPUTS, room.stage, 0, stages)
    out = perceptron(weights, SUMMARISE_STAGE, layer, stages)
    for i in range(width):
        room.job[i, :jobs] = 0
        for column in range(stages):
            room.job[i, view.stage_job[room.row[column]]] += layer[out, i, column]
    fill(layer, 0, room.job, 0, jobs)
    out = perceptron(weights, SUMMARISE_JOB, layer, jobs)
    for i in range(width):
        room.cluster[i] = 0
        for job in range(jobs):
            room.cluster[i] += layer[out, i, job]


@njit_inline
def pass_messages(view: Observation, weights: Weights, room: Scratch) -> None:
    """A level at a time, leaves first: it hears what was said below, then speaks itself."""
    stages, edges = int(view.cluster[seen.STAGES]), int(view.cluster[seen.EDGES])
    width, layer = len(room.stage), room.layer
    for i in range(width):
        room.heard[i, :stages] = 0
    height, first = 0, 0
    while first < stages:
        end = room.level_end[height]
        count = end - first
        if height > 0:
            fill(layer, 0, room.heard, first, count)
            out = perceptron(weights, UPDATE, layer, count)
            for i in range(width):
                for column in range(count):
                    room.stage[i, first + column] += layer[out, i, column]
        if end < stages:
            fill(layer, 0, room.stage, first, count)
            out = perceptron(weights, MESSAGE, layer, count)
            for edge in range(edges):
                child = room.column[view.edges[edge, 1]]
                if first <= child < end:
                    parent = room.column[view.edges[edge, 0]]
                    for i in range(width):
                        room.heard[i, parent] += layer[out, i, child - first]
        height, first = height + 1, end


@njit_inline
def score_stages(view: Observation, weights: Weights, room: Scratch) -> None:
    width, layer = len(room.stage), room.layer
    legal = 0
    for row in range(int(view.cluster[seen.STAGES])):
        room.stage_scores[row] = _ILLEGAL
        if view.schedulable[row] == 1:
            column, job = room.column[row], view.stage_job[row]
            for i in range(features.STAGE_INPUTS):
                layer[0, i, legal] = room.inputs[i, column]
            for i in range(width):
                layer[0, features.STAGE_INPUTS + i, legal] = room.stage[i, column]
                layer[0, features.STAGE_INPUTS + width + i, legal] = room.job[i, job]
                layer[0, features.STAGE_INPUTS + 2 * width + i, legal] = room.cluster[i]
            legal += 1
    tilt = room.heard[0]  # nobody listens any more
    tilt_stages(weights, layer[0], legal, tilt)
    out = perceptron(weights, SCORE_STAGE, layer, legal)
    legal = 0
    for row in range(int(view.cluster[seen.STAGES])):
        if view.schedulable[row] == 1:
            room.stage_scores[row] = layer[out, 0, legal] + tilt[legal]
            legal += 1


@njit_internal
def tilt_stages(
    weights: Weights, inputs: NDArray[np.float32], count: int, tilt: NDArray[np.float32]
) -> None:
    """features.stage_terms, weighed, for the first `count` columns of `inputs`."""
    source = inputs[features.IS_SOURCE]
    for column in range(count):
        tilt[column] = 0
    for i in range(features.STAGE_INPUTS):
        own, own_input = weights.tilt_stage[i], inputs[i]
        for column in range(count):
            tilt[column] += own * own_input[column]
    for i in range(features.SHARED):
        signed, own_input = weights.tilt_stage[features.STAGE_INPUTS + i], inputs[i]
        for column in range(count):
            tilt[column] += signed * (source[column] * own_input[column])


@njit_internal
def slope_of(weights: Weights, room: Scratch, job: int, which: int) -> np.float32:
    """features.limit_terms, weighed, but for the level's own input."""
    slope = np.float32(weights.tilt_limit[which, 0])
    for i in range(features.JOB_INPUTS):
        slope += weights.tilt_limit[which, 1 + i] * room.job_inputs[i, job]
    return slope


@njit_inline
def score_limits(
    weights: Weights, room: Scratch, job: int, lowest: int, highest: int, total: int
) -> None:
    width, layer, count = len(room.stage), room.layer, highest - lowest + 1
    for column in range(count):
        for i in range(features.JOB_INPUTS):
            layer[0, i, column] = room.job_inputs[i, job]
        for i in range(width):
            layer[0, features.JOB_INPUTS + i, column] = room.job[i, job]
            layer[0, features.JOB_INPUTS + width + i, column] = room.cluster[i]
        level = np.float32(lowest + column)
        layer[0, features.JOB_INPUTS + 2 * width, column] = level / np.float32(total)
        layer[0, features.JOB_INPUTS + 2 * width + 1, column] = np.log1p(level) * _LOG_COUNT
    out = perceptron(weights, SCORE_LIMIT, layer, count)
    by_share, by_log = slope_of(weights, room, job, 0), slope_of(weights, room, job, 1)
    for column in range(count):
        level = np.float32(lowest + column)
        tilt = by_share * (level / np.float32(total)) + by_log * (np.log1p(level) * _LOG_COUNT)
        room.limit_scores[lowest + column - 1] = layer[out, 0, column] + tilt


@njit_internal
def fill(
    layer: NDArray[np.float32], start: int, table: NDArray[np.float32], first: int, count: int
) -> None:
    """Some columns of a table as what goes into a layer, from its row `start` on."""
    for i in range(len(table)):
        for column in range(count):
            layer[0, start + i, column] = table[i, first + column]


@njit_internal
def perceptron(weights: Weights, which: int, layer: NDArray[np.float32], count: int) -> int:
    """Run the first `count` columns of layer[0] through; in which half of `layer` they come out.

    Columns and outputs up to the next whole block are computed as well, and mean nothing.
    """
    source, layers = 0, weights.shape[which, 0, 0]
    for place in range(layers):
        given, made = weights.shape[which, 1 + place, 0], weights.shape[which, 1 + place, 1]
        matrix, bias = weights.matrix[which, place], weights.bias[which, place]
        slope = _SLOPE if place + 1 < layers else _ONE
        x, out = layer[source], layer[1 - source]
        dense(matrix, bias, slope, x, out, given, made, count)
        source = 1 - source
    return source


@njit_internal
def choose(scores: NDArray[np.float32], start: int, end: int, draw: float) -> tuple[int, float]:
    """An index by softmax over scores[start:end], and its log-probability."""
    best = start
    for i in range(start, end):
        if scores[i] > scores[best]:
            best = i
    whole = 0.0
    for i in range(start, end):
        whole += np.exp(np.float64(scores[i] - scores[best]))
    chosen = best
    if draw >= 0:
        left = draw * whole
        for i in range(start, end):
            weight = np.exp(np.float64(scores[i] - scores[best]))
            if weight > 0:
                chosen = i
                left -= weight
                if left < 0:
                    break
    return chosen, np.float64(scores[chosen] - scores[best]) - np.log(whole)
