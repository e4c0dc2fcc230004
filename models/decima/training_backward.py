"""Backward half of the compiled training pass: from scores of a block to gradients of weights."""

import numpy as np

from loadmaster.envs.compiled import Ints, njit_inline, njit_internal, njit_reduction
from loadmaster.models.decima import features
from loadmaster.models.decima.network import SLOPE
from loadmaster.models.decima.training_block import (
    DECISIONS,
    JOB_COLUMNS,
    LEGAL,
    LEVELS,
    LIMITS,
    STAGE_COLUMNS,
    Block,
)
from loadmaster.models.decima.training_forward import add, copy, entropy_of, whole_blocks
from loadmaster.models.decima.weights import (
    MESSAGE,
    PREPARE,
    SCORE_LIMIT,
    SCORE_STAGE,
    SUMMARISE_JOB,
    SUMMARISE_STAGE,
    UPDATE,
    Weights,
)
from loadmaster.models.layers import Array32
from loadmaster.models.simd_dense import add_outer, dense

_SLOPE, _ONE, _ZERO = np.float32(SLOPE), np.float32(1), np.float32(0)


@njit_internal
def d_scores(
    block: Block,
    given: Array32,
    first: int,
    which: int,
    starts: Ints,
    scorer: int,
    weights: Weights,
) -> None:
    """Gradient of every score, from those of the log-probability and the entropy.

    d log p(chosen) / d score_k = [k chosen] - p_k, d H / d score_k = -p_k (log p_k + H).
    """
    logs, out = (
        block.log_probability[which],
        block.gradients[scorer, weights.shape[scorer, 0, 0], 0],
    )
    count = starts[block.used[DECISIONS]]
    for decision in range(block.used[DECISIONS]):
        of_log, of_entropy = given[0, first + decision], given[1, first + decision]
        entropy = entropy_of(logs, starts, decision)
        for option in range(starts[decision], starts[decision + 1]):
            p = np.exp(logs[option])
            out[option] = -p * (of_log + of_entropy * (logs[option] + entropy))
        out[block.chosen[decision, which]] += of_log
    out[count : whole_blocks(count)] = 0


@njit_internal
def back_propagate(weights: Weights, turned: Array32, block: Block, gradient: Weights) -> None:
    """From the gradients of the scores to those of all weights."""
    columns, jobs = block.used[STAGE_COLUMNS], block.used[JOB_COLUMNS]
    width, gradients = len(block.stage), block.gradients
    for i in range(width):
        block.d_stage[i, :columns] = 0
        block.d_job[i, : whole_blocks(jobs)] = 0
        block.d_cluster[i, : block.used[DECISIONS]] = 0
    if weights.shape[SCORE_LIMIT, 0, 0] > 0:
        back_limits(weights, turned, block, gradient)
    back_stages(weights, turned, block, gradient)
    if weights.shape[SUMMARISE_STAGE, 0, 0] > 0:
        back_summaries(weights, turned, block, gradient)
    if weights.shape[MESSAGE, 0, 0] > 0:
        back_messages(weights, turned, block, gradient)
    out = weights.shape[PREPARE, 0, 0]
    copy(block.d_stage, gradients[PREPARE, out], 0, width, 0, columns)
    back_layers(weights, turned, PREPARE, block, 0, columns)
    add_weights(weights, PREPARE, block, columns, gradient)


@njit_inline
def back_summaries(weights: Weights, turned: Array32, block: Block, gradient: Weights) -> None:
    """From the embeddings of clusters to those of jobs, and from these to those of stages."""
    columns, jobs = block.used[STAGE_COLUMNS], block.used[JOB_COLUMNS]
    width, gradients, start = len(block.stage), block.gradients, features.STAGE_INPUTS
    out = weights.shape[SUMMARISE_JOB, 0, 0]
    for i in range(width):
        d_summary = gradients[SUMMARISE_JOB, out, i]
        for job in range(jobs):
            d_summary[job] = block.d_cluster[i, block.job_decision[job]]
        d_summary[jobs : whole_blocks(jobs)] = 0
    back_layers(weights, turned, SUMMARISE_JOB, block, 0, jobs)
    add_weights(weights, SUMMARISE_JOB, block, jobs, gradient)
    add(gradients[SUMMARISE_JOB, 0], 0, block.d_job, width, 0, jobs)
    out = weights.shape[SUMMARISE_STAGE, 0, 0]
    for i in range(width):
        d_summary, d_job = gradients[SUMMARISE_STAGE, out, i], block.d_job[i]
        for column in range(columns):
            job = block.column_job[column]
            d_summary[column] = d_job[job] if job >= 0 else _ZERO
    back_layers(weights, turned, SUMMARISE_STAGE, block, 0, columns)
    add_weights(weights, SUMMARISE_STAGE, block, columns, gradient)
    add(gradients[SUMMARISE_STAGE, 0], start, block.d_stage, width, 0, columns)


@njit_inline
def back_stages(weights: Weights, turned: Array32, block: Block, gradient: Weights) -> None:
    width, count = len(block.stage), block.used[LEGAL]
    start, out = features.STAGE_INPUTS, weights.shape[SCORE_STAGE, 0, 0]
    inputs, d_score = block.values[SCORE_STAGE, 0], block.gradients[SCORE_STAGE, out, 0]
    source, signed = inputs[features.IS_SOURCE], block.log_probability[0]  # is overwritten
    for legal in range(count):
        signed[legal] = d_score[legal] * source[legal]
    for i in range(features.STAGE_INPUTS):
        gradient.linear_stage[i] += dot(d_score, inputs[i], count)
    for i in range(features.SHARED):
        gradient.linear_stage[start + i] += dot(signed, inputs[i], count)
    back_layers(weights, turned, SCORE_STAGE, block, 0, count)
    add_weights(weights, SCORE_STAGE, block, count, gradient)
    d_inputs = block.gradients[SCORE_STAGE, 0]
    for legal in range(count):
        column = block.legal_column[legal]
        job = block.column_job[column]
        decision = block.job_decision[job]
        for i in range(width):
            block.d_stage[i, column] += d_inputs[start + i, legal]
            block.d_job[i, job] += d_inputs[start + width + i, legal]
            block.d_cluster[i, decision] += d_inputs[start + 2 * width + i, legal]


@njit_inline
def back_limits(weights: Weights, turned: Array32, block: Block, gradient: Weights) -> None:
    width, count = len(block.stage), block.used[LIMITS]
    start, out = features.JOB_INPUTS, weights.shape[SCORE_LIMIT, 0, 0]
    inputs, d_score = block.values[SCORE_LIMIT, 0], block.gradients[SCORE_LIMIT, out, 0]
    scaled = block.log_probability[1]  # is overwritten
    for which in range(features.LIMIT_INPUTS):
        of_limit = inputs[start + 2 * width + which]
        for column in range(count):
            scaled[column] = d_score[column] * of_limit[column]
        gradient.linear_limit[which, 0] += total(scaled, count)
        for i in range(features.JOB_INPUTS):
            gradient.linear_limit[which, 1 + i] += dot(scaled, inputs[i], count)
    back_layers(weights, turned, SCORE_LIMIT, block, 0, count)
    add_weights(weights, SCORE_LIMIT, block, count, gradient)
    d_inputs = block.gradients[SCORE_LIMIT, 0]
    for column in range(count):
        job = block.limit_job[column]
        decision = block.job_decision[job]
        for i in range(width):
            block.d_job[i, job] += d_inputs[start + i, column]
            block.d_cluster[i, decision] += d_inputs[start + width + i, column]


@njit_inline
def back_messages(weights: Weights, turned: Array32, block: Block, gradient: Weights) -> None:
    """Level by level, roots first: from the parents' incoming sums back to the children."""
    width, levels, columns = len(block.stage), block.used[LEVELS], block.used[STAGE_COLUMNS]
    sent, updated = weights.shape[MESSAGE, 0, 0], weights.shape[UPDATE, 0, 0]
    d_incoming = block.gradients[UPDATE, 0]
    last = block.level_first[levels - 1]
    for place in range(1, sent + 1):
        # The last level sends no messages, and the first receives none.
        for i in range(weights.shape[MESSAGE, place, 1]):
            block.gradients[MESSAGE, place, i, last:columns] = 0
        for i in range(weights.shape[UPDATE, place, 1]):
            block.gradients[UPDATE, place, i, : block.level_first[1]] = 0
    for level in range(levels - 1, -1, -1):
        first, end = block.level_first[level], block.level_first[level + 1]
        if level + 1 < levels:
            d_sent = block.gradients[MESSAGE, sent]
            for i in range(width):
                d_sent[i, first:end] = 0
            for edge in range(block.edge_first[level], block.edge_first[level + 1]):
                parent, child = block.edges[edge]
                for i in range(width):
                    d_sent[i, child] += d_incoming[i, parent]
            back_layers(weights, turned, MESSAGE, block, first, end - first)
            add(block.gradients[MESSAGE, 0], 0, block.d_stage, width, first, end)
        if level > 0:
            copy(block.d_stage, block.gradients[UPDATE, updated], 0, width, first, end)
            back_layers(weights, turned, UPDATE, block, first, end - first)
    add_weights(weights, MESSAGE, block, columns, gradient)
    add_weights(weights, UPDATE, block, columns, gradient)


@njit_internal
def back_layers(
    weights: Weights, turned: Array32, which: int, block: Block, first: int, count: int
) -> None:
    """From the gradients of a perceptron's outputs to those of its inputs and layers between."""
    for place in range(weights.shape[which, 0, 0] - 1, -1, -1):
        given, made = weights.shape[which, 1 + place]
        d_out, d_in = block.gradients[which, place + 1], block.gradients[which, place]
        if which == PREPARE and place == 0:
            return  # nothing comes before the inputs
        matrix = turned[which, place]
        dense(matrix, block.zeros, _ONE, d_out[:, first:], d_in[:, first:], made, given, count)
        if place > 0:
            for i in range(given):
                d_own, value = d_in[i], block.values[which, place, i]
                for column in range(first, first + whole_blocks(count)):
                    d_own[column] *= _ONE if value[column] > 0 else _SLOPE


@njit_internal
def add_weights(weights: Weights, which: int, block: Block, count: int, gradient: Weights) -> None:
    """Add the gradients of a perceptron's matrices and biases over the first `count` columns."""
    for place in range(weights.shape[which, 0, 0]):
        given, made = weights.shape[which, 1 + place]
        d_out, values = block.gradients[which, place + 1], block.values[which, place]
        add_outer(d_out, values, gradient.matrix[which, place], made, given, whole_blocks(count))
        for i in range(made):
            gradient.bias[which, place, i] += total(d_out[i], count)


@njit_reduction
def total(values: Array32, count: int) -> np.float32:
    found = _ZERO
    for place in range(count):
        found += values[place]
    return found


@njit_reduction
def dot(left: Array32, right: Array32, count: int) -> np.float32:
    found = _ZERO
    for place in range(count):
        found += left[place] * right[place]
    return found
