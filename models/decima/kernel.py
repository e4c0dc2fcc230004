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

from loadmaster.envs.compiled import compiled, inner, part
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima import features
from loadmaster.models.decima.network import ILLEGAL, SLOPE, DecimaNetwork

PREPARE, MESSAGE, UPDATE, SUMMARISE_STAGE, SUMMARISE_JOB, SCORE_STAGE, SCORE_LIMIT = range(7)
LAYERS_MAX = 4

# How features.py scales, as numbers a compiled function can hold.
_EXECUTOR, _TASK = np.float32(features.PER_EXECUTOR), np.float32(features.PER_TASK)
_LOG_WORK = np.float32(features.PER_LOG_WORK)
_WORK, _JOB_WORK = np.float32(features.PER_WORK_S), np.float32(features.PER_JOB_WORK_S)
_DURATION = np.float32(features.PER_DURATION_S)
_SOURCE, _NOT_SOURCE = np.float32(features.SOURCE), np.float32(features.NOT_SOURCE)
_SLOPE, _ILLEGAL, _ONE = np.float32(SLOPE), np.float32(ILLEGAL), np.float32(1)


class Weights(NamedTuple):
    """All layers of all seven perceptrons, padded to the widest, W."""

    matrix: NDArray[np.float32]  # (7, LAYERS_MAX, W, W) from input (row) to output (column)
    bias: NDArray[np.float32]  # (7, LAYERS_MAX, W)
    # Row 0: how many layers, none of a part the network has not; then inputs and outputs of each.
    shape: NDArray[np.int64]  # (7, 1 + LAYERS_MAX, 2)


class Scratch(NamedTuple):
    """Room for one decision: N stages, M jobs, E limits, D numbers an embedding."""

    inputs: NDArray[np.float32]  # (N, STAGE_INPUTS)
    stage: NDArray[np.float32]  # (N, D)
    heard: NDArray[np.float32]  # (N, D)
    job_inputs: NDArray[np.float32]  # (M, JOB_INPUTS)
    job: NDArray[np.float32]  # (M, D)
    cluster: NDArray[np.float32]  # (D,)
    layer: NDArray[np.float32]  # (2, widest) what goes into a layer, and what comes out
    stage_scores: NDArray[np.float32]  # (N,)
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
            matrix[which, place, :given, :made] = layer.weight.detach().cpu().numpy().T
            bias[which, place, :made] = layer.bias.detach().cpu().numpy()
            shape[which, 1 + place] = given, made
    return Weights(matrix, bias, shape)


def _widest(network: DecimaNetwork) -> int:
    return max(
        max(layer.in_features, layer.out_features)
        for layer in network.modules()
        if isinstance(layer, nn.Linear)
    )


def scratch_for(network: DecimaNetwork, stages: int, jobs: int, executors: int) -> Scratch:
    width = network.encoder.width
    return Scratch(
        inputs=np.zeros((stages, features.STAGE_INPUTS), np.float32),
        stage=np.zeros((stages, width), np.float32),
        heard=np.zeros((stages, width), np.float32),
        job_inputs=np.zeros((jobs, features.JOB_INPUTS), np.float32),
        job=np.zeros((jobs, width), np.float32),
        cluster=np.zeros(width, np.float32),
        layer=np.zeros((2, _widest(network)), np.float32),
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


@part
def read_inputs(view: Observation, room: Scratch) -> None:
    """features.py, one row at a time."""
    free = view.cluster[seen.FREE_EXECUTORS] * _EXECUTOR
    for job in range(int(view.cluster[seen.JOBS])):
        own = view.jobs[job, seen.IS_SOURCE] == 1
        room.job_inputs[job, 0] = view.jobs[job, seen.EXECUTORS] * _EXECUTOR
        room.job_inputs[job, 1] = _SOURCE if own else _NOT_SOURCE
        room.job_inputs[job, 2] = free
        work = view.jobs[job, seen.WORK_LEFT_S]
        room.job_inputs[job, 3] = np.log1p(work) * _LOG_WORK
        room.job_inputs[job, 4] = work * _JOB_WORK
    for row in range(int(view.cluster[seen.STAGES])):
        stage, inputs = view.stages[row], room.inputs[row]
        for shared in range(features.SHARED):
            inputs[shared] = room.job_inputs[view.stage_job[row], shared]
        inputs[4] = stage[seen.UNSTARTED] * stage[seen.MEAN_S] * _WORK
        inputs[5] = stage[seen.UNSTARTED] * _TASK
        inputs[6] = stage[seen.MEAN_S] * _DURATION
        inputs[7] = stage[seen.RUNNING] * _EXECUTOR
        inputs[8] = stage[seen.RUNNABLE]
        inputs[9] = stage[seen.FITTING] * _EXECUTOR
        inputs[10] = _ONE - stage[seen.ABLE] / view.cluster[seen.TOTAL_EXECUTORS]


@part
def embed(view: Observation, weights: Weights, room: Scratch) -> None:
    """Stages, which then hear of one another (eq. 1); jobs and the cluster as sums."""
    stages, jobs = int(view.cluster[seen.STAGES]), int(view.cluster[seen.JOBS])
    width, layer = room.stage.shape[1], room.layer
    room.job[:jobs] = 0
    room.cluster[:] = 0
    for row in range(stages):
        fill(layer, 0, room.inputs[row])
        out = perceptron(weights, PREPARE, layer)
        for i in range(width):
            room.stage[row, i] = layer[out, i]
    if weights.shape[MESSAGE, 0, 0] > 0:
        pass_messages(view, weights, room)
    for row in range(stages):
        fill(layer, 0, room.inputs[row])
        fill(layer, features.STAGE_INPUTS, room.stage[row])
        out = perceptron(weights, SUMMARISE_STAGE, layer)
        for i in range(width):
            room.job[view.stage_job[row], i] += layer[out, i]
    for job in range(jobs):
        fill(layer, 0, room.job[job])
        out = perceptron(weights, SUMMARISE_JOB, layer)
        for i in range(width):
            room.cluster[i] += layer[out, i]


@part
def pass_messages(view: Observation, weights: Weights, room: Scratch) -> None:
    """A level at a time, leaves first: it hears what was said below, then speaks itself."""
    stages, edges = int(view.cluster[seen.STAGES]), int(view.cluster[seen.EDGES])
    width, layer = room.stage.shape[1], room.layer
    room.heard[:stages] = 0
    highest = 0
    for row in range(stages):
        highest = max(highest, int(view.stages[row, seen.HEIGHT]))
    for height in range(highest + 1):
        if height > 0:
            for row in range(stages):
                if view.stages[row, seen.HEIGHT] == height:
                    fill(layer, 0, room.heard[row])
                    out = perceptron(weights, UPDATE, layer)
                    for i in range(width):
                        room.stage[row, i] += layer[out, i]
        child = -1
        out = 0
        for edge in range(edges):
            if view.stages[view.edges[edge, 1], seen.HEIGHT] == height:
                if view.edges[edge, 1] != child:
                    child = view.edges[edge, 1]
                    fill(layer, 0, room.stage[child])
                    out = perceptron(weights, MESSAGE, layer)
                for i in range(width):
                    room.heard[view.edges[edge, 0], i] += layer[out, i]


@part
def score_stages(view: Observation, weights: Weights, room: Scratch) -> None:
    width, layer = room.stage.shape[1], room.layer
    for row in range(int(view.cluster[seen.STAGES])):
        room.stage_scores[row] = _ILLEGAL
        if view.schedulable[row] == 1:
            fill(layer, 0, room.inputs[row])
            fill(layer, features.STAGE_INPUTS, room.stage[row])
            fill(layer, features.STAGE_INPUTS + width, room.job[view.stage_job[row]])
            fill(layer, features.STAGE_INPUTS + 2 * width, room.cluster)
            room.stage_scores[row] = layer[perceptron(weights, SCORE_STAGE, layer), 0]


@part
def score_limits(
    weights: Weights, room: Scratch, job: int, lowest: int, highest: int, total: int
) -> None:
    width, layer = room.stage.shape[1], room.layer
    for limit in range(lowest, highest + 1):
        fill(layer, 0, room.job_inputs[job])
        fill(layer, features.JOB_INPUTS, room.job[job])
        fill(layer, features.JOB_INPUTS + width, room.cluster)
        layer[0, features.JOB_INPUTS + 2 * width] = np.float32(limit) / np.float32(total)
        room.limit_scores[limit - 1] = layer[perceptron(weights, SCORE_LIMIT, layer), 0]


@inner
def fill(layer: NDArray[np.float32], start: int, values: NDArray[np.float32]) -> None:
    for i in range(len(values)):
        layer[0, start + i] = values[i]


@inner
def perceptron(weights: Weights, which: int, layer: NDArray[np.float32]) -> int:
    """Run layer[0] through the perceptron; in which row of `layer` the result is."""
    matrix, bias = weights.matrix[which], weights.bias[which]
    source, layers = 0, weights.shape[which, 0, 0]
    for place in range(layers):
        given, made = weights.shape[which, 1 + place, 0], weights.shape[which, 1 + place, 1]
        target = 1 - source
        for j in range(made):
            layer[target, j] = bias[place, j]
        # Input by input, so that the inner loop runs over independent sums and vectorises.
        for i in range(given):
            value = layer[source, i]
            for j in range(made):
                layer[target, j] += value * matrix[place, i, j]
        if place + 1 < layers:
            for j in range(made):
                layer[target, j] = max(layer[target, j], _SLOPE * layer[target, j])
        source = target
    return source


@inner
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
