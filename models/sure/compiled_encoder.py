"""Features of snapshots when they arrive, and embeddings of tasks, in compiled code."""

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.observation import SNAPSHOT_COLUMNS, TASK_COLUMNS, TIME_COLUMNS
from loadmaster.models.layers import LINEAR, RELU, Array32, dense_rows, layer_norm_row
from loadmaster.models.sure.compiled_graph import copy_row, encode_subgraphs, encode_whole
from loadmaster.models.sure.compiled_tables import (
    CompiledJob,
    KeptFeatures,
    Workspace,
)
from loadmaster.models.sure.compiled_weights import SCORES, Weights
from loadmaster.models.sure.graph import PRESENT

_OF_TASK = len(SNAPSHOT_COLUMNS)
_OF_TIME = _OF_TASK + len(TASK_COLUMNS)
_INPUTS = _OF_TIME + len(TIME_COLUMNS)


@compiled
def keep_snapshots(
    weights: Weights,
    job: CompiledJob,
    kept: KeptFeatures,
    snapshots: Array32,
    times: Array32,
    work: Workspace,
) -> None:
    """Add new snapshots (E, M, N, columns) and their times (E, M, columns), the oldest first."""
    window = kept.present.shape[1]
    for episode in range(len(snapshots)):
        for row in range(max(snapshots.shape[1] - window, 0), snapshots.shape[1]):
            slot = (kept.newest[episode] + 1) % window
            kept.newest[episode] = slot
            kept.present[episode, slot] = times[episode, row, PRESENT] > 0
            if kept.present[episode, slot]:
                _compute_features(
                    weights, job, snapshots[episode, row], times[episode, row],
                    kept.first[episode, slot], work,
                )  # fmt: skip
                for task in range(len(job.tasks)):
                    for i in range(SCORES):
                        kept.score_part[episode, i, task, slot] = work.score_part[task, i]


@njit_internal
def _compute_features(
    weights: Weights,
    job: CompiledJob,
    snapshot: Array32,
    time: Array32,
    first: Array32,
    work: Workspace,
) -> None:
    """W1 x of every task, x = LayerNorm(Linear(features)), and what x adds to the scores."""
    tasks = len(job.tasks)
    for task in range(tasks):
        row = work.inputs[task]
        for i in range(_OF_TASK):
            row[i] = snapshot[task, i]
        for i in range(_OF_TASK, _OF_TIME):
            row[i] = job.tasks[task, i - _OF_TASK]
        for i in range(_OF_TIME, _INPUTS):
            row[i] = time[i - _OF_TIME]
    dense_rows(weights.features, work.inputs, LINEAR, work.summed, tasks)
    for task in range(tasks):
        layer_norm_row(work.summed[task], weights.norm[0], weights.norm[1], work.normed[task])
    dense_rows(weights.scores, work.normed, LINEAR, work.score_part, tasks)
    dense_rows(weights.first, work.normed, LINEAR, work.summed, tasks)
    for task in range(tasks):
        copy_row(work.summed[task], first[task])


@njit_internal
def embed(weights: Weights, job: CompiledJob, known: Array32, work: Workspace) -> None:
    """Embeddings of all tasks by subgraphs, or by the whole graph.

    `known` (L, N, columns): W1 x in rings.
    """
    if weights.whole:
        encode_whole(weights, job, known, work)
    else:
        encode_subgraphs(weights, job, known, work)
    _read_out(weights, len(job.tasks), work)


@njit_internal
def _read_out(weights: Weights, tasks: int, work: Workspace) -> None:
    """LayerNorm of the sums, then a feed-forward network with shortcut."""
    scaled = work.joined[:, weights.feed_forward.shape[1] :]
    for task in range(tasks):
        layer_norm_row(
            work.pooled[task], weights.readout_norm[0], weights.readout_norm[1], scaled[task]
        )
    dense_rows(weights.feed_forward, scaled, RELU, work.joined, tasks)
    dense_rows(weights.joined, work.joined, LINEAR, work.embedding, tasks)
