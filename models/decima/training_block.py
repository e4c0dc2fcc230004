"""Blocks of recorded decisions, laid out for the compiled training pass.

A block holds the stages of several decisions as columns of one table, sorted by height, so that a
layer runs over the stages of a level of all decisions at once. Each level starts at a whole number
of vector registers. The columns between levels are padding: inputs 0, gradients 0.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from loadmaster.envs.compiled import Ints, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima import features
from loadmaster.models.decima.compiled_inputs import read_jobs, read_stages
from loadmaster.models.decima.prior import RATINGS, Floats, Ratings
from loadmaster.models.decima.weights import LAYERS_MAX, PREPARE, Weights
from loadmaster.models.layers import Array32, round_up
from loadmaster.models.simd import COLUMNS

TARGET_COLUMNS = 1024  # of a block: its tables fit into the second-level cache
BLOCK_DECISIONS = 64  # at most
STAGES, JOBS, EDGES = range(3)  # columns of `Decisions.starts`
# Counters in `Block.used`.
DECISIONS, STAGE_COLUMNS, JOB_COLUMNS, LEGAL, LIMITS, LEVELS = range(6)


class Decisions(NamedTuple):
    """K recorded decisions; their stages, jobs and edges end to end."""

    stages: NDArray[np.float32]  # (stage rows, STAGE_FEATURES)
    stage_job: NDArray[np.int32]  # (stage rows,) row of the job within the decision
    schedulable: NDArray[np.int8]  # (stage rows,)
    jobs: NDArray[np.float32]  # (job rows, JOB_FEATURES)
    edges: NDArray[np.int32]  # (edge rows, 2) rows of parent and child within the decision
    cluster: NDArray[np.float32]  # (K, CLUSTER_FEATURES)
    starts: Ints  # (K + 1, 3) first row of each decision in the three tables
    actions: Ints  # (K, 2) stage row within the decision, limit


def decisions_of(columns: Mapping[str, Any]) -> Decisions:
    """Recorded columns, whose observations are ragged, as one table each."""
    observations = columns[Columns.OBS]
    counts = np.stack([observations[name].counts for name in ("stages", "jobs", "edges")], axis=1)
    starts = np.zeros((len(counts) + 1, counts.shape[1]), np.int64)
    np.cumsum(counts, axis=0, out=starts[1:])
    tables = ("stages", "stage_job", "schedulable", "jobs", "edges")
    return Decisions(
        **{name: observations[name].items for name in tables},
        cluster=observations["cluster"],
        starts=starts,
        actions=columns[Columns.ACTIONS],
    )


class Block(NamedTuple):
    """Buffers of a block of B decisions: C columns, H levels, D numbers an embedding."""

    used: Ints  # (6,) counters
    level_first: Ints  # (H + 1,) first column of each level, and the end of the last
    edge_first: Ints  # (H + 1,) first edge whose child is in each level, and the end of the last
    edges: Ints  # (E, 2) columns of parent and child
    column: Ints  # (stages,) of each stage, decision by decision
    column_job: Ints  # (C,) its job; -1: padding
    job_decision: Ints  # (C,) of each job
    job_first: Ints  # (B + 1,) first job of each decision, and the end of the last
    legal_column: Ints  # (C,) schedulable stages
    legal_first: Ints  # (B + 1,)
    limit_job: Ints  # (C,) job of each limit
    limit_first: Ints  # (B + 1,)
    chosen: Ints  # (B, 2) the legal stage and the limit that were chosen
    lowest: Ints  # (B,) the lowest useful limit
    zeros: Array32  # (W,)
    log_probability: Array32  # (2, C) of every legal stage, of every limit
    job_inputs: Array32  # (JOB_INPUTS, C)
    stage: Array32  # (D, C)
    job: Array32  # (D, C)
    cluster: Array32  # (D, B)
    d_stage: Array32  # (D, C) gradients of the same
    d_job: Array32  # (D, C)
    d_cluster: Array32  # (D, B)
    ratings: Ratings  # (jobs, RATINGS) of a decision's jobs by the prior
    keys: Floats  # (stages,) of its schedulable stages by the prior
    # The seven perceptrons: what each layer is given, and the output of the last.
    values: Array32  # (7, LAYERS_MAX + 1, W, C)
    gradients: Array32  # (7, LAYERS_MAX + 1, W, C) of the same, before the activation


def block_for(decisions: Decisions, weights: Weights, width: int) -> Block:
    """Allocate a block in which the largest decision fits."""
    counts = np.diff(decisions.starts, axis=0).max(axis=0, initial=1)
    levels = int(decisions.stages[:, obs_cols.HEIGHT].max(initial=0)) + 1
    executors = int(decisions.cluster[:, obs_cols.TOTAL_EXECUTORS].max(initial=1))
    most = max(TARGET_COLUMNS, int(counts[STAGES]), int(counts[JOBS]), executors)
    columns = round_up(most, COLUMNS) + COLUMNS * levels
    edges = max(4 * columns, int(counts[EDGES]))
    tables = (len(weights.shape), LAYERS_MAX + 1, weights.matrix.shape[2], columns)
    return Block(
        used=np.zeros(6, np.int64),
        level_first=np.zeros(levels + 1, np.int64),
        edge_first=np.zeros(levels + 1, np.int64),
        edges=np.zeros((edges, 2), np.int64),
        column=np.zeros(columns, np.int64),
        column_job=np.zeros(columns, np.int64),
        job_decision=np.zeros(columns, np.int64),
        job_first=np.zeros(BLOCK_DECISIONS + 1, np.int64),
        legal_column=np.zeros(columns, np.int64),
        legal_first=np.zeros(BLOCK_DECISIONS + 1, np.int64),
        limit_job=np.zeros(columns, np.int64),
        limit_first=np.zeros(BLOCK_DECISIONS + 1, np.int64),
        chosen=np.zeros((BLOCK_DECISIONS, 2), np.int64),
        lowest=np.zeros(BLOCK_DECISIONS, np.int64),
        zeros=np.zeros(tables[2], np.float32),
        log_probability=np.zeros((2, columns), np.float32),
        job_inputs=np.zeros((features.JOB_INPUTS, columns), np.float32),
        stage=np.zeros((width, columns), np.float32),
        job=np.zeros((width, columns), np.float32),
        cluster=np.zeros((width, BLOCK_DECISIONS), np.float32),
        d_stage=np.zeros((width, columns), np.float32),
        d_job=np.zeros((width, columns), np.float32),
        d_cluster=np.zeros((width, BLOCK_DECISIONS), np.float32),
        ratings=np.zeros((int(counts[JOBS]), RATINGS)),
        keys=np.zeros(int(counts[STAGES])),
        values=np.zeros(tables, np.float32),
        gradients=np.zeros(tables, np.float32),
    )


@njit_inline
def decision_view(decisions: Decisions, row: int) -> Observation:
    """The observation of one decision, without copying."""
    first, end = decisions.starts[row], decisions.starts[row + 1]
    return Observation(
        decisions.stages[first[STAGES] : end[STAGES]],
        decisions.stage_job[first[STAGES] : end[STAGES]],
        decisions.schedulable[first[STAGES] : end[STAGES]],
        decisions.jobs[first[JOBS] : end[JOBS]],
        decisions.edges[first[EDGES] : end[EDGES]],
        decisions.cluster[row],
    )


@njit_internal
def lay_out(decisions: Decisions, rows: Ints, first: int, block: Block) -> int:
    """Fill the block with decisions from rows[first] on; return the end of those that fit."""
    end = assign_columns(decisions, rows, first, block)
    inputs = block.values[PREPARE, 0]
    for i in range(features.STAGE_INPUTS):
        for column in range(block.used[STAGE_COLUMNS]):
            inputs[i, column] = 0
    stage, legal, limits = 0, 0, 0
    for place in range(end - first):
        row = rows[first + place]
        view, job = decision_view(decisions, row), block.job_first[place]
        read_jobs(view, block.job_inputs, job)
        read_stages(view, block.column[stage:], block.job_inputs, job, inputs)
        block.legal_first[place], block.limit_first[place] = legal, limits
        chosen, limit = decisions.actions[row, 0], decisions.actions[row, 1]
        for own in range(len(view.stage_job)):
            if view.schedulable[own] == 1:
                if own == chosen:
                    block.chosen[place, 0] = legal
                block.legal_column[legal] = block.column[stage + own]
                legal += 1
        lowest, highest = useful_limits(view, chosen)
        block.lowest[place] = lowest
        block.chosen[place, 1] = limits + min(limit, highest) - lowest
        for _ in range(highest - lowest + 1):
            block.limit_job[limits] = job + view.stage_job[chosen]
            limits += 1
        stage += len(view.stage_job)
    block.legal_first[end - first], block.limit_first[end - first] = legal, limits
    block.used[LEGAL], block.used[LIMITS] = legal, limits
    return end


@njit_inline
def assign_columns(decisions: Decisions, rows: Ints, first: int, block: Block) -> int:
    """Choose the decisions of the block; give their stages columns by height, edges an order."""
    capacity, levels, stages, jobs, limits, edges = len(block.column_job), 0, 0, 0, 0, 0
    counts = block.level_first
    counts[:] = 0
    end = first
    while end < len(rows) and end - first < BLOCK_DECISIONS:
        view = decision_view(decisions, rows[end])
        lowest, highest = useful_limits(view, decisions.actions[rows[end], 0])
        # Room for padding is reserved for all levels, so the number in use need not be known.
        most = max(stages + len(view.stage_job), jobs + len(view.jobs), limits + highest - lowest)
        space = capacity - COLUMNS * len(counts)
        if end > first and (most > space or edges + len(view.edges) > len(block.edges)):
            break
        for own in range(len(view.stage_job)):
            height = int(view.stages[own, obs_cols.HEIGHT])
            counts[height + 1] += 1
            levels = max(levels, height + 1)
        block.job_first[end - first] = jobs
        for _ in range(len(view.jobs)):
            block.job_decision[jobs] = end - first
            jobs += 1
        stages, limits, edges = (
            stages + len(view.stage_job),
            limits + highest - lowest + 1,
            edges + len(view.edges),
        )
        end += 1
    block.job_first[end - first] = jobs
    for level in range(levels):
        counts[level + 1] = counts[level] + COLUMNS * ((counts[level + 1] + COLUMNS - 1) // COLUMNS)
    block.used[DECISIONS], block.used[JOB_COLUMNS] = end - first, jobs
    block.used[STAGE_COLUMNS], block.used[LEVELS] = counts[levels], levels
    block.column_job[: counts[levels]] = -1
    order_edges(decisions, rows, first, end, block)
    return end


@njit_inline
def order_edges(decisions: Decisions, rows: Ints, first: int, end: int, block: Block) -> None:
    """Place stages into the columns of their level, and edges by the level of their child."""
    levels, counts, edge_first = block.used[LEVELS], block.level_first, block.edge_first
    edge_first[:] = 0
    # `counts` serves as the next free column of each level, and is restored at the end.
    stage = 0
    for place in range(end - first):
        view = decision_view(decisions, rows[first + place])
        for own in range(len(view.stage_job)):
            height = int(view.stages[own, obs_cols.HEIGHT])
            column = counts[height]
            counts[height] += 1
            block.column[stage + own] = column
            block.column_job[column] = block.job_first[place] + view.stage_job[own]
        for edge in range(len(view.edges)):
            edge_first[int(view.stages[view.edges[edge, 1], obs_cols.HEIGHT]) + 1] += 1
        stage += len(view.stage_job)
    for level in range(levels):
        edge_first[level + 1] += edge_first[level]
    stage = 0
    for place in range(end - first):
        view = decision_view(decisions, rows[first + place])
        for edge in range(len(view.edges)):
            parent, child = view.edges[edge, 0], view.edges[edge, 1]
            height = int(view.stages[child, obs_cols.HEIGHT])
            position = edge_first[height]
            edge_first[height] += 1
            block.edges[position, 0] = block.column[stage + parent]
            block.edges[position, 1] = block.column[stage + child]
        stage += len(view.stage_job)
    for level in range(levels - 1, 0, -1):
        edge_first[level] = edge_first[level - 1]
        counts[level] = COLUMNS * ((counts[level - 1] + COLUMNS - 1) // COLUMNS)
    edge_first[0], counts[0] = 0, 0
