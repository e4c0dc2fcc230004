"""Forward half of the compiled training pass: scores and log-probabilities of a block."""

import numpy as np

from loadmaster.envs.compiled import Ints, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.models.decima import features
from loadmaster.models.decima.compiled import linear_limit_slope, linear_stage_terms
from loadmaster.models.decima.network import SLOPE
from loadmaster.models.decima.prior import add_stage_prior, limit_loss, log_target, rate_jobs
from loadmaster.models.decima.training_block import (
    DECISIONS,
    JOB_COLUMNS,
    LEGAL,
    LEVELS,
    LIMITS,
    STAGE_COLUMNS,
    Block,
    Decisions,
    decision_view,
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
)
from loadmaster.models.layers import Array32
from loadmaster.models.simd import COLUMNS
from loadmaster.models.simd_dense import dense

_SLOPE, _ONE, _ZERO = np.float32(SLOPE), np.float32(1), np.float32(0)
_LOG_COUNT = np.float32(features.PER_LOG_COUNT)


@njit_internal
def propagate(decisions: Decisions, rows: Ints, first: int, weights: Weights, block: Block) -> None:
    """Embed (eq. 1), score stages and limits, and write their log-probabilities."""
    columns, width, values = block.used[STAGE_COLUMNS], len(block.stage), block.values
    for which in weights.unread:
        values[PREPARE, 0, which, :columns] = 0
    out = run_layers(weights, PREPARE, block, 0, columns)
    copy(values[PREPARE, out], block.stage, 0, width, 0, columns)
    if weights.shape[MESSAGE, 0, 0] > 0:
        pass_messages(weights, block)
    if weights.shape[SUMMARISE_STAGE, 0, 0] > 0:
        summarise(weights, block)  # else the embeddings of jobs and clusters stay 0
    score_stages(decisions, rows, first, weights, block)
    score_limits(decisions, rows, first, weights, block)


@njit_inline
def summarise(weights: Weights, block: Block) -> None:
    """Embed jobs as sums of their stages, clusters as sums of their jobs."""
    columns, jobs = block.used[STAGE_COLUMNS], block.used[JOB_COLUMNS]
    width, values = len(block.stage), block.values
    inputs, start = values[SUMMARISE_STAGE, 0], features.STAGE_INPUTS
    copy(values[PREPARE, 0], inputs, 0, start, 0, columns)
    copy(block.stage, inputs, start, width, 0, columns)
    out = run_layers(weights, SUMMARISE_STAGE, block, 0, columns)
    for i in range(width):
        job, summary = block.job[i], values[SUMMARISE_STAGE, out, i]
        job[: whole_blocks(jobs)] = 0
        for column in range(columns):
            if block.column_job[column] >= 0:
                job[block.column_job[column]] += summary[column]
    copy(block.job, values[SUMMARISE_JOB, 0], 0, width, 0, whole_blocks(jobs))
    out = run_layers(weights, SUMMARISE_JOB, block, 0, jobs)
    for i in range(width):
        cluster, summary = block.cluster[i], values[SUMMARISE_JOB, out, i]
        cluster[: block.used[DECISIONS]] = 0
        for job_column in range(jobs):
            cluster[block.job_decision[job_column]] += summary[job_column]


@njit_inline
def pass_messages(weights: Weights, block: Block) -> None:
    """Level by level, leaves first: update from incoming messages, then send to the parents."""
    width, levels = len(block.stage), block.used[LEVELS]
    incoming, sent = block.values[UPDATE, 0], block.values[MESSAGE, 0]
    for i in range(width):
        incoming[i, : block.used[STAGE_COLUMNS]] = 0
    for level in range(levels):
        first, end = block.level_first[level], block.level_first[level + 1]
        if level > 0:
            out = run_layers(weights, UPDATE, block, first, end - first)
            add(block.values[UPDATE, out], 0, block.stage, width, first, end)
        if level + 1 < levels:
            copy(block.stage, sent, 0, width, first, end)
            out = run_layers(weights, MESSAGE, block, first, end - first)
            for edge in range(block.edge_first[level], block.edge_first[level + 1]):
                parent, child = block.edges[edge]
                for i in range(width):
                    incoming[i, parent] += block.values[MESSAGE, out, i, child]


@njit_inline
def score_stages(
    decisions: Decisions, rows: Ints, first: int, weights: Weights, block: Block
) -> None:
    width, count = len(block.stage), block.used[LEGAL]
    inputs = block.values[SCORE_STAGE, 0]
    for legal in range(count):
        column = block.legal_column[legal]
        job = block.column_job[column]
        decision, start = block.job_decision[job], features.STAGE_INPUTS
        for i in range(features.STAGE_INPUTS):
            inputs[i, legal] = block.values[PREPARE, 0, i, column]
        for i in range(width):
            inputs[start + i, legal] = block.stage[i, column]
            inputs[start + width + i, legal] = block.job[i, job]
            inputs[start + 2 * width + i, legal] = block.cluster[i, decision]
    clear_padding(inputs, features.STAGE_INPUTS + 3 * width, count)
    out = run_layers(weights, SCORE_STAGE, block, 0, count)
    logs = block.log_probability[0]
    linear_stage_terms(weights, inputs, count, logs)
    for legal in range(count):
        logs[legal] += block.values[SCORE_STAGE, out, 0, legal]
    for decision in range(block.used[DECISIONS]):
        begin, end = block.legal_first[decision], block.legal_first[decision + 1]
        if len(weights.prior) > 0:
            view = decision_view(decisions, rows[first + decision])
            rate_jobs(view, weights.prior, block.ratings)
            add_stage_prior(view, weights.prior, block.ratings, block.keys, logs[begin:end])
        log_softmax(logs, begin, end)


@njit_inline
def score_limits(
    decisions: Decisions, rows: Ints, first: int, weights: Weights, block: Block
) -> None:
    """Scores of all useful limits of the chosen stages."""
    width, count, logs = len(block.stage), block.used[LIMITS], block.log_probability[1]
    inputs, start = block.values[SCORE_LIMIT, 0], features.JOB_INPUTS
    scored = weights.shape[SCORE_LIMIT, 0, 0] > 0
    for decision in range(block.used[DECISIONS]):
        row = rows[first + decision]
        total = np.float32(decisions.cluster[row, obs_cols.TOTAL_EXECUTORS])
        begin, end = block.limit_first[decision], block.limit_first[decision + 1]
        if not scored:  # one limit: every executor
            logs[begin:end] = _ZERO
            continue
        job = block.limit_job[begin]
        by_share = linear_limit_slope(weights, block.job_inputs, job, 0)
        by_log = linear_limit_slope(weights, block.job_inputs, job, 1)
        for column in range(begin, end):
            level = np.float32(block.lowest[decision] + column - begin)
            share, log = level / total, np.log1p(level) * _LOG_COUNT
            for i in range(features.JOB_INPUTS):
                inputs[i, column] = block.job_inputs[i, job]
            for i in range(width):
                inputs[start + i, column] = block.job[i, job]
                inputs[start + width + i, column] = block.cluster[i, decision]
            inputs[start + 2 * width, column], inputs[start + 2 * width + 1, column] = share, log
            logs[column] = by_share * share + by_log * log
        if len(weights.prior) > 0:
            view, chosen = decision_view(decisions, row), decisions.actions[row, 0]
            rate_jobs(view, weights.prior, block.ratings)
            target = log_target(view, chosen, block.ratings)
            for column in range(begin, end):
                own = block.lowest[decision] + column - begin
                logs[column] -= limit_loss(weights.prior, target, own)
    if scored:
        clear_padding(inputs, start + 2 * width + features.LIMIT_INPUTS, count)
        out = run_layers(weights, SCORE_LIMIT, block, 0, count)
        for column in range(count):
            logs[column] += block.values[SCORE_LIMIT, out, 0, column]
        for decision in range(block.used[DECISIONS]):
            log_softmax(logs, block.limit_first[decision], block.limit_first[decision + 1])


@njit_internal
def run_layers(weights: Weights, which: int, block: Block, first: int, count: int) -> int:
    """Run columns from `first` on through a perceptron; the index in `values` of its output."""
    layers: int = weights.shape[which, 0, 0]
    for place in range(layers):
        given, made = weights.shape[which, 1 + place]
        dense(
            weights.matrix[which, place],
            weights.bias[which, place],
            _SLOPE if place + 1 < layers else _ONE,
            block.values[which, place][:, first:],
            block.values[which, place + 1][:, first:],
            given,
            made,
            count,
        )
    return layers


@njit_internal
def whole_blocks(count: int) -> int:
    blocks: int = (count + COLUMNS - 1) // COLUMNS
    return blocks * COLUMNS


@njit_internal
def clear_padding(table: Array32, rows: int, count: int) -> None:
    for i in range(rows):
        table[i, count : whole_blocks(count)] = 0


@njit_internal
def copy(source: Array32, target: Array32, start: int, rows: int, first: int, end: int) -> None:
    """target[start : start + rows, first:end] = source[:rows, first:end]."""
    for i in range(rows):
        own, other = source[i], target[start + i]
        for column in range(first, end):
            other[column] = own[column]


@njit_internal
def add(source: Array32, start: int, target: Array32, rows: int, first: int, end: int) -> None:
    """target[:rows, first:end] += source[start : start + rows, first:end]."""
    for i in range(rows):
        own, other = source[start + i], target[i]
        for column in range(first, end):
            other[column] += own[column]


@njit_internal
def log_softmax(scores: Array32, first: int, end: int) -> None:
    """Replace scores[first:end] by their log-probabilities."""
    most = scores[first]
    for i in range(first + 1, end):
        most = max(most, scores[i])
    whole = 0.0
    for i in range(first, end):
        whole += np.exp(np.float64(scores[i] - most))
    least = most + np.float32(np.log(whole))
    for i in range(first, end):
        scores[i] -= least


@njit_internal
def entropy_of(logs: Array32, starts: Ints, place: int) -> np.float32:
    """Entropy of the distribution logs[starts[place]:starts[place + 1]]."""
    total = _ZERO
    for i in range(starts[place], starts[place + 1]):
        total -= np.exp(logs[i]) * logs[i]
    return total
