"""The network as one compiled function, for one decision at a time.

For one small graph a forward pass in torch costs the launch of about a hundred operations;
compiled, only the arithmetic is left. Weights are copied from a `DecimaNetwork`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima import features
from loadmaster.models.decima.compiled_inputs import read_jobs, read_stages
from loadmaster.models.decima.network import ILLEGAL, SLOPE, DecimaNetwork
from loadmaster.models.decima.prior import (
    RATINGS,
    Floats,
    Ratings,
    add_stage_prior,
    drop_beyond_reach,
    limit_loss,
    log_target,
    rate_jobs,
)
from loadmaster.models.decima.weights import (
    MESSAGE,
    PREPARE,
    SCORE_LIMIT,
    SCORE_STAGE,
    SUMMARISE_JOB,
    SUMMARISE_STAGE,
    UPDATE,
    Weights,
    widest,
)
from loadmaster.models.layers import Array32, round_up
from loadmaster.models.simd import COLUMNS
from loadmaster.models.simd_dense import dense

_SLOPE, _ILLEGAL, _ONE = np.float32(SLOPE), np.float32(ILLEGAL), np.float32(1)
_LOG_COUNT = np.float32(features.PER_LOG_COUNT)


class Scratch(NamedTuple):
    """Buffers of one decision: N stages, M jobs, E limits, D numbers an embedding.

    Tables have a column for each stage, leaves first, so that a layer runs over all stages of a
    level at once in vector registers: three times faster than stage by stage.
    """

    row: NDArray[np.int64]  # (N,) observation row of each column
    column: NDArray[np.int64]  # (N,) column of each observation row
    level_end: NDArray[np.int64]  # (N + 1,) end column of each height
    inputs: Array32  # (STAGE_INPUTS, N)
    stage: Array32  # (D, N)
    incoming: Array32  # (D, N) sums of messages
    job_inputs: Array32  # (JOB_INPUTS, M)
    job: Array32  # (D, M)
    cluster: Array32  # (D,)
    layer: Array32  # (2, W, columns) input and output of a layer, in turn
    stage_scores: Array32  # (N,) by row
    limit_scores: Array32  # (E,)
    ratings: Ratings  # (M, RATINGS) of the jobs by the prior
    keys: Floats  # (N,) of the schedulable stages by the prior


def scratch_for(network: DecimaNetwork, stages: int, jobs: int, executors: int) -> Scratch:
    width = network.encoder.width
    columns = round_up(max(stages, jobs, executors), COLUMNS)
    return Scratch(
        row=np.zeros(stages, np.int64),
        column=np.zeros(stages, np.int64),
        level_end=np.zeros(stages + 1, np.int64),
        inputs=np.zeros((features.STAGE_INPUTS, stages), np.float32),
        stage=np.zeros((width, stages), np.float32),
        incoming=np.zeros((width, stages), np.float32),
        job_inputs=np.zeros((features.JOB_INPUTS, jobs), np.float32),
        job=np.zeros((width, jobs), np.float32),
        cluster=np.zeros(width, np.float32),
        layer=np.zeros((2, widest(network), columns), np.float32),
        stage_scores=np.zeros(stages, np.float32),
        limit_scores=np.zeros(executors, np.float32),
        ratings=np.zeros((jobs, RATINGS)),
        keys=np.zeros(stages),
    )


@compiled
def decide(
    view: Observation, weights: Weights, scratch: Scratch, stage_draw: float, limit_draw: float
) -> tuple[int, int, float]:
    """Choose (stage row, limit) and return them with their log-probability.

    Draws in [0, 1) sample from the policy; draws below 0 take the best-scored stage and limit. The
    row behind the last stage means idling: the prior excluded all stages.
    """
    if len(weights.prior) > 0:
        rate_jobs(view, weights.prior, scratch.ratings)
        if not drop_beyond_reach(view, scratch.ratings):
            return len(view.schedulable) - 1, 1, 0.0
    order_stages(view, scratch)
    read_inputs(view, weights, scratch)
    if weights.heads.any():
        embed(view, weights, scratch)
    score_stages(view, weights, scratch)
    stages, total = int(view.cluster[obs_cols.STAGES]), int(view.cluster[obs_cols.TOTAL_EXECUTORS])
    row, stage_log = choose(scratch.stage_scores, 0, stages, stage_draw)
    job = view.stage_job[row]
    if weights.shape[SCORE_LIMIT, 0, 0] == 0:
        return row, total, stage_log
    lowest, highest = useful_limits(view, row)
    score_limits(weights, scratch, job, lowest, highest, total)
    if len(weights.prior) > 0:
        target = log_target(view, row, scratch.ratings)
        for level in range(lowest, highest + 1):
            scratch.limit_scores[level - 1] -= limit_loss(weights.prior, target, level)
    place, limit_log = choose(scratch.limit_scores, lowest - 1, highest, limit_draw)
    return row, place + 1, stage_log + limit_log


@njit_inline
def order_stages(view: Observation, scratch: Scratch) -> None:
    """Assign a column to each row by counting sort, leaves first."""
    stages, ends = int(view.cluster[obs_cols.STAGES]), scratch.level_end
    ends[: stages + 1] = 0
    for row in range(stages):
        ends[int(view.stages[row, obs_cols.HEIGHT]) + 1] += 1
    for level in range(stages):
        ends[level + 1] += ends[level]
    for row in range(stages):
        height = int(view.stages[row, obs_cols.HEIGHT])
        column = ends[height]
        scratch.row[column], scratch.column[row] = row, column
        ends[height] = column + 1


@njit_inline
def read_inputs(view: Observation, weights: Weights, scratch: Scratch) -> None:
    """Compute the inputs of features.py."""
    read_jobs(view, scratch.job_inputs, 0)
    read_stages(view, scratch.column, scratch.job_inputs, 0, scratch.inputs)
    for which in weights.unread:
        scratch.inputs[which, : int(view.cluster[obs_cols.STAGES])] = 0


@njit_inline
def embed(view: Observation, weights: Weights, scratch: Scratch) -> None:
    """Embed stages (eq. 1), then jobs and the cluster as sums."""
    stages, jobs = int(view.cluster[obs_cols.STAGES]), int(view.cluster[obs_cols.JOBS])
    width, layer = len(scratch.stage), scratch.layer
    fill(layer, 0, scratch.inputs, 0, stages)
    out = perceptron(weights, PREPARE, layer, stages)
    for i in range(width):
        for column in range(stages):
            scratch.stage[i, column] = layer[out, i, column]
    if weights.shape[MESSAGE, 0, 0] > 0:
        pass_messages(view, weights, scratch)
    if weights.shape[SUMMARISE_STAGE, 0, 0] == 0:
        return  # the embeddings of jobs and the cluster stay 0
    fill(layer, 0, scratch.inputs, 0, stages)
    fill(layer, features.STAGE_INPUTS, scratch.stage, 0, stages)
    out = perceptron(weights, SUMMARISE_STAGE, layer, stages)
    for i in range(width):
        scratch.job[i, :jobs] = 0
        for column in range(stages):
            scratch.job[i, view.stage_job[scratch.row[column]]] += layer[out, i, column]
    fill(layer, 0, scratch.job, 0, jobs)
    out = perceptron(weights, SUMMARISE_JOB, layer, jobs)
    for i in range(width):
        scratch.cluster[i] = 0
        for job in range(jobs):
            scratch.cluster[i] += layer[out, i, job]


@njit_inline
def pass_messages(view: Observation, weights: Weights, scratch: Scratch) -> None:
    """Level by level, leaves first: update from incoming messages, then send to the parents."""
    stages, edges = int(view.cluster[obs_cols.STAGES]), int(view.cluster[obs_cols.EDGES])
    width, layer = len(scratch.stage), scratch.layer
    for i in range(width):
        scratch.incoming[i, :stages] = 0
    height, first = 0, 0
    while first < stages:
        end = scratch.level_end[height]
        count = end - first
        if height > 0:
            fill(layer, 0, scratch.incoming, first, count)
            out = perceptron(weights, UPDATE, layer, count)
            for i in range(width):
                for column in range(count):
                    scratch.stage[i, first + column] += layer[out, i, column]
        if end < stages:
            fill(layer, 0, scratch.stage, first, count)
            out = perceptron(weights, MESSAGE, layer, count)
            for edge in range(edges):
                child = scratch.column[view.edges[edge, 1]]
                if first <= child < end:
                    parent = scratch.column[view.edges[edge, 0]]
                    for i in range(width):
                        scratch.incoming[i, parent] += layer[out, i, child - first]
        height, first = height + 1, end


@njit_inline
def score_stages(view: Observation, weights: Weights, scratch: Scratch) -> None:
    width, layer = len(scratch.stage), scratch.layer
    legal = 0
    for row in range(int(view.cluster[obs_cols.STAGES])):
        scratch.stage_scores[row] = _ILLEGAL
        if view.schedulable[row] == 1:
            column, job = scratch.column[row], view.stage_job[row]
            for i in range(features.STAGE_INPUTS):
                layer[0, i, legal] = scratch.inputs[i, column]
            for i in range(width):
                layer[0, features.STAGE_INPUTS + i, legal] = scratch.stage[i, column]
                layer[0, features.STAGE_INPUTS + width + i, legal] = scratch.job[i, job]
                layer[0, features.STAGE_INPUTS + 2 * width + i, legal] = scratch.cluster[i]
            legal += 1
    linear = scratch.incoming[0]  # its messages are used up
    linear_stage_terms(weights, layer[0], legal, linear)
    if len(weights.prior) > 0:
        add_stage_prior(view, weights.prior, scratch.ratings, scratch.keys, linear)
    if weights.heads[0] == 1:
        out = perceptron(weights, SCORE_STAGE, layer, legal)
        for column in range(legal):
            linear[column] += layer[out, 0, column]
    legal = 0
    for row in range(int(view.cluster[obs_cols.STAGES])):
        if view.schedulable[row] == 1:
            scratch.stage_scores[row] = linear[legal]
            legal += 1


@njit_internal
def linear_stage_terms(weights: Weights, inputs: Array32, count: int, out: Array32) -> None:
    """Weighted sum of features.stage_terms for the first `count` columns of `inputs`."""
    source = inputs[features.IS_SOURCE]
    for column in range(count):
        out[column] = 0
    for i in range(features.STAGE_INPUTS):
        own, own_input = weights.linear_stage[i], inputs[i]
        for column in range(count):
            out[column] += own * own_input[column]
    for i in range(features.SHARED):
        signed, own_input = weights.linear_stage[features.STAGE_INPUTS + i], inputs[i]
        for column in range(count):
            out[column] += signed * (source[column] * own_input[column])


@njit_internal
def linear_limit_slope(weights: Weights, job_inputs: Array32, job: int, which: int) -> np.float32:
    """Weighted sum of features.limit_terms, divided by the limit's own input `which`."""
    slope = np.float32(weights.linear_limit[which, 0])
    for i in range(features.JOB_INPUTS):
        slope += weights.linear_limit[which, 1 + i] * job_inputs[i, job]
    return slope


@njit_inline
def score_limits(
    weights: Weights, scratch: Scratch, job: int, lowest: int, highest: int, total: int
) -> None:
    width, layer, count = len(scratch.stage), scratch.layer, highest - lowest + 1
    columns = count if weights.heads[1] == 1 else 0
    for column in range(columns):
        for i in range(features.JOB_INPUTS):
            layer[0, i, column] = scratch.job_inputs[i, job]
        for i in range(width):
            layer[0, features.JOB_INPUTS + i, column] = scratch.job[i, job]
            layer[0, features.JOB_INPUTS + width + i, column] = scratch.cluster[i]
        level = np.float32(lowest + column)
        layer[0, features.JOB_INPUTS + 2 * width, column] = level / np.float32(total)
        layer[0, features.JOB_INPUTS + 2 * width + 1, column] = np.log1p(level) * _LOG_COUNT
    out = perceptron(weights, SCORE_LIMIT, layer, columns)
    by_share = linear_limit_slope(weights, scratch.job_inputs, job, 0)
    by_log = linear_limit_slope(weights, scratch.job_inputs, job, 1)
    for column in range(count):
        level = np.float32(lowest + column)
        linear = by_share * (level / np.float32(total)) + by_log * (np.log1p(level) * _LOG_COUNT)
        head = layer[out, 0, column] if columns > 0 else np.float32(0)
        scratch.limit_scores[lowest + column - 1] = head + linear


@njit_internal
def fill(layer: Array32, start: int, table: Array32, first: int, count: int) -> None:
    """Copy columns of a table into the input of a layer, from its row `start` on."""
    for i in range(len(table)):
        for column in range(count):
            layer[0, start + i, column] = table[i, first + column]


@njit_internal
def perceptron(weights: Weights, which: int, layer: Array32, count: int) -> int:
    """Run the first `count` columns of layer[0] through; the index in `layer` of the output."""
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
def choose(scores: Array32, start: int, end: int, draw: float) -> tuple[int, float]:
    """Choose an index by softmax over scores[start:end]; the index and its log-probability."""
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
