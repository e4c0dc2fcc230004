"""SURE's forward pass in compiled code, for the episodes of one job.

Equal to `SureNetwork.act` but for rounding. A snapshot's features are computed once, when it
arrives (`keep_snapshots`); a decision costs the part of the scores that depends on age, the draws,
and the graph layers over the drawn nodes. Measured on one core of a Neoverse N1 with 57 tasks and
60 snapshots: 2.1 ms for 2,280 drawn nodes, 3.4 ms for the whole graph (`bench rollouts sure`).
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, njit_internal
from loadmaster.models.elementary import hyperbolic_tangent
from loadmaster.models.keyed_random import draw_normal_number, draw_stream_key, draw_uniform
from loadmaster.models.layers import LINEAR, RELU, Array32, dense_rows
from loadmaster.models.sure.compiled_encoder import embed
from loadmaster.models.sure.compiled_sampler import (
    draw,
    draw_log_prob,
    write_context,
    write_task_keys,
)
from loadmaster.models.sure.compiled_tables import (
    CompiledJob,
    Decisions,
    KeptFeatures,
    Workspace,
)
from loadmaster.models.sure.compiled_weights import Weights
from loadmaster.models.sure.heads import LOG_TAU
from loadmaster.models.sure.sampler import ACTION_STREAM, GATE_STREAM, JOB_ACTION_STREAM


@compiled
def decide(
    weights: Weights,
    job: CompiledJob,
    kept: KeptFeatures,
    restart: Array32,
    prior: Array32,
    gate_prior: Array32,
    keys: Ints,
    greedy: bool,
    work: Workspace,
    out: Decisions,
) -> None:
    """Decide for E episodes by their `keys` (E,); greedy: as `SureNetwork.act`.

    restart (E, RESTART_COLUMNS), prior (E, N) changes and gate_prior (E,) log-odds of a rule.
    """
    sampled = not greedy or not weights.scored
    for episode in range(len(keys)):
        write_context(weights, restart[episode], work)
        write_task_keys(keys[episode], work)
        draw(weights, job, kept, episode, sampled, work)
        embed(weights, job, kept.first[episode], work)
        mean, of_tasks = out.mean[episode], prior[episode]
        logit = gate_prior[episode] + _heads(weights, of_tasks, work, mean)
        out.gate_logit[episode] = logit
        out.gate[episode] = logit > 0
        for task in range(len(mean)):
            out.change[episode, task] = mean[task]
        out.log_prob[episode] = 0
        if not greedy:
            out.gate[episode] = _sample(
                weights, job, keys[episode], logit, work, mean, out.change[episode],
                out.log_prob[episode],
            )  # fmt: skip
        _copy_draw(work, out.snapshot[episode], out.neighbour[episode])


@njit_internal
def _heads(weights: Weights, prior: Array32, work: Workspace, mean: Array32) -> np.float32:
    """Write the means of the changes; return what the network adds to the log-odds of acting."""
    tasks, size, job = len(prior), weights.readout_norm.shape[1], work.job[0]
    mean_of_tasks, largest = job[:size], job[size : 2 * size]
    for i in range(size):
        mean_of_tasks[i] = largest[i] = work.embedding[0, i]
    for task in range(1, tasks):
        own = work.embedding[task]
        for i in range(size):
            mean_of_tasks[i] += own[i]
            largest[i] = max(largest[i], own[i])
    for i in range(size):
        mean_of_tasks[i] /= np.float32(tasks)
    first, second, third = weights.change
    if weights.by_job:
        dense_rows(first, work.job, RELU, work.head_1, 1)
    else:
        dense_rows(first, work.embedding, RELU, work.head_1, tasks)
    rows = 1 if weights.by_job else tasks
    dense_rows(second, work.head_1, RELU, work.head_2, rows)
    dense_rows(third, work.head_2, LINEAR, work.head_3, rows)
    of_job = np.float32(0)
    for task in range(tasks):
        of_job += prior[task]
        added = work.head_3[min(task, rows - 1), 0]
        mean[task] = prior[task] + _bounded(added, weights.change_bound)
    if weights.by_job:
        mean[:] = of_job / np.float32(tasks) + _bounded(work.head_3[0, 0], weights.change_bound)
    gate_1, gate_2 = weights.gate
    dense_rows(gate_1, work.job, RELU, work.head_1, 1)
    dense_rows(gate_2, work.head_1, LINEAR, work.head_3, 1)
    return _bounded(work.head_3[0, 0], weights.gate_bound)


@njit_internal
def _bounded(added: np.float32, bound: np.float32) -> np.float32:
    return bound * hyperbolic_tangent(added / bound)


@njit_internal
def _sample(
    weights: Weights, job: CompiledJob, key: int, logit: np.float32, work: Workspace,
    mean: Array32, change: Array32, log_prob: Array32,
) -> bool:  # fmt: skip
    """Sample the changes, write all log-probabilities, and return the sampled gate."""
    tasks = len(mean)
    odds = np.float64(logit)
    gate: bool = draw_uniform(draw_stream_key(key, GATE_STREAM), 0) < 1 / (1 + np.exp(-odds))
    signed = odds if gate else -odds
    log_prob[0] = min(signed, 0.0) - np.log1p(np.exp(-abs(signed)))
    deviation = np.exp(weights.log_std)
    common = draw_normal_number(draw_stream_key(key, JOB_ACTION_STREAM), 0)
    for task in range(tasks):
        noise, share = common, 1.0 / tasks
        if not weights.by_job:
            noise = draw_normal_number(draw_stream_key(work.task_key[task], ACTION_STREAM), 0)
            share = 1.0
        change[task] = mean[task] + deviation * noise
        standard = np.float64((change[task] - mean[task]) / deviation)
        density = -standard * standard / 2 - weights.log_std - LOG_TAU / 2
        log_prob[1 + task] = share * density if gate else 0.0
        log_prob[1 + tasks + task] = draw_log_prob(job, task, work)
    return gate


@njit_internal
def _copy_draw(work: Workspace, snapshot: NDArray[np.int16], neighbour: NDArray[np.int16]) -> None:
    tasks, places, drawn = work.neighbour.shape
    for task in range(tasks):
        for place in range(places):
            snapshot[task, place] = work.snapshot[task, place]
            for rank in range(drawn):
                neighbour[task, place * drawn + rank] = work.neighbour[task, place, rank]
