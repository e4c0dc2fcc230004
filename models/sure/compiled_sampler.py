"""The subgraph sampler in compiled code: scores of nodes, draws by them, and their probability.

As models/sure/sampler.py, with the same numbers for the same keys. The scores of neighbours are
computed where they are needed, in the drawn snapshots: of a long window these are few.
"""

import numpy as np

from loadmaster.envs.compiled import Ints, njit_internal, njit_reduction, splitmix64
from loadmaster.models.keyed_random import draw_gumbel, draw_normal_number, draw_stream_key
from loadmaster.models.layers import LINEAR, Array32, exponential, hyperbolic_tangent, top_k
from loadmaster.models.simd_dense import dense
from loadmaster.models.sure import sampler
from loadmaster.models.sure.compiled_tables import (
    SCORES,
    CompiledJob,
    KeptFeatures,
    Weights,
    Workspace,
)
from loadmaster.models.sure.graph import NONE

_SELF, _NEIGHBOUR = sampler.SELF, sampler.NEIGHBOUR
_SCORE, _SNAPSHOT = sampler.SCORE_STREAM, sampler.SNAPSHOT_STREAM
_NEIGHBOURS, _TASKS = sampler.NEIGHBOUR_STREAM, sampler.TASK_STREAM
_LEAST = np.float32(sampler.MIN_LOG_VARIANCE)
_MOST = np.float32(sampler.MAX_LOG_VARIANCE)
_ILLEGAL = np.float32(sampler.ILLEGAL)
_TWO = np.float32(2)
_UNKNOWN = np.float32(np.nan)


@njit_internal
def write_context(weights: Weights, restart: Array32, work: Workspace) -> None:
    """What the age of a snapshot and the last restart add to its features and scores."""
    window, width = weights.by_age.shape
    for age in range(window):
        row, known = work.context[age], weights.by_age[age]
        for i in range(width):
            row[i] = known[i]
        for part in range(len(weights.by_restart)):
            factor, own = restart[part], weights.by_restart[part]
            for i in range(width):
                row[i] += factor * own[i]
    rows = work.score_rows
    dense(work.context, work.zeros, LINEAR, weights.scores, rows, width, window, SCORES)
    for part in range(SCORES):
        for age in range(window):
            work.score_context[part, age] = rows[age, part]


@njit_internal
def write_task_keys(key: int, work: Workspace) -> None:
    own = draw_stream_key(key, _TASKS)
    for task in range(len(work.task_key)):
        work.task_key[task] = splitmix64(own, task)


@njit_internal
def draw(
    weights: Weights, job: CompiledJob, kept: KeptFeatures, episode: int, sampled: bool,
    work: Workspace,
) -> None:  # fmt: skip
    """Draw a subgraph for each task; `sampled`: by the keys of the tasks, else the best."""
    # The ages of what is known, which the whole graph needs, too.
    window, slot, newest = len(work.slot), work.slot, kept.newest[episode]
    for age in range(window):
        place = (newest - age) % window
        slot[age] = place if kept.present[episode, place] else NONE
    if weights.whole:
        return
    parts = kept.score_part[episode]
    work.theta[:] = 0
    work.phi[:] = _UNKNOWN if weights.scored else 0
    for task in range(len(job.candidates)):
        if weights.scored:
            _write_thetas(weights, parts, task, newest, sampled, work)
    for task in range(len(job.candidates)):
        _draw_snapshots(task, sampled, work)
        _draw_neighbours(weights, job, parts, task, sampled, work)


@njit_internal
def _write_thetas(
    weights: Weights, parts: Array32, task: int, newest: int, sampled: bool, work: Workspace
) -> None:
    """Omega of a task's own nodes: mu + sigma * eps, or mu, divided by the temperature."""
    theta, own, context = work.theta[task], parts[_SELF, task], work.score_context[_SELF]
    window = len(theta)
    # Each loop runs through the ring without a turn, so that it vectorises.
    for age in range(newest + 1):
        theta[age] = hyperbolic_tangent(own[newest - age] + context[age])
    for age in range(newest + 1, window):
        theta[age] = hyperbolic_tangent(own[newest + window - age] + context[age])
    if sampled:
        key = draw_stream_key(work.task_key[task], _SCORE)
        for age in range(window):
            if work.slot[age] >= 0:
                theta[age] += _noise(parts, task, age, key, _SELF, work)
    for age in range(window):
        theta[age] /= weights.temperature


@njit_internal
def _noise(
    parts: Array32, task: int, age: int, key: np.uint64, role: int, work: Workspace
) -> np.float32:
    """sigma * eps"""
    slot, part = work.slot[age], SCORES // 2 + role
    raw = parts[part, task, slot] + work.score_context[part, age]
    deviation: np.float32 = np.exp(min(max(raw, _LEAST), _MOST) / _TWO)
    return deviation * draw_normal_number(key, 2 * age + role)


@njit_internal
def _draw_snapshots(task: int, sampled: bool, work: Workspace) -> None:
    theta, drawn = work.theta[task], work.snapshot[task]
    best, best_key = work.best[: len(drawn)], work.best_key[: len(drawn)]
    key = draw_stream_key(work.task_key[task], _SNAPSHOT)
    count = 0
    for age in range(len(theta)):
        if work.slot[age] >= 0:
            order = np.float64(theta[age])
            if sampled:
                order += draw_gumbel(key, age)
            count = top_k(age, order, best, best_key, count)
    for place in range(len(drawn)):
        drawn[place] = best[place] if place < count else NONE
        work.snapshot_score[task, place] = theta[best[place]] if place < count else 0


@njit_internal
def _draw_neighbours(
    weights: Weights, job: CompiledJob, parts: Array32, task: int, sampled: bool, work: Workspace
) -> None:
    candidates, limit = job.candidates[task], work.neighbour.shape[2]
    if limit == 0:
        return
    if sampled:
        own = draw_stream_key(work.task_key[task], _NEIGHBOURS)
        for column in range(len(candidates)):
            other = candidates[column]
            if other >= 0:
                pair = splitmix64(own, work.task_key[other])
                work.pair_key[column] = draw_stream_key(pair, 0)
    best, best_key = work.best[:limit], work.best_key[:limit]
    for place in range(work.snapshot.shape[1]):
        age = work.snapshot[task, place]
        count = 0
        for column in range(len(candidates)):
            other = candidates[column]
            if other >= 0 and age >= 0:
                order = np.float64(_neighbour_score(weights, parts, other, age, sampled, work))
                if sampled:
                    order += draw_gumbel(work.pair_key[column], age)
                count = top_k(column, order, best, best_key, count)
        drawn = work.neighbour[task, place]
        for rank in range(limit):
            drawn[rank], work.neighbour_score[task, place, rank] = NONE, 0
            if rank < count:
                drawn[rank] = best[rank]
                work.neighbour_score[task, place, rank] = work.phi[candidates[best[rank]], age]


@njit_internal
def _neighbour_score(
    weights: Weights, parts: Array32, other: int, age: int, sampled: bool, work: Workspace
) -> np.float32:
    """Compute a neighbour's score at first use."""
    if np.isnan(work.phi[other, age]):
        context = work.score_context[_NEIGHBOUR, age]
        found = hyperbolic_tangent(parts[_NEIGHBOUR, other, work.slot[age]] + context)
        if sampled:
            key = draw_stream_key(work.task_key[other], _SCORE)
            found += _noise(parts, other, age, key, _NEIGHBOUR, work)
        work.phi[other, age] = found / weights.temperature
    known: np.float32 = work.phi[other, age]
    return known


@njit_internal
def draw_log_prob(job: CompiledJob, task: int, work: Workspace) -> float:
    """log p(g | Omega) of a task's draw; 0 if nothing is drawn."""
    if work.snapshot.shape[1] == 0:
        return 0.0
    candidates, options = job.candidates[task], work.options[0]
    window = len(work.slot)
    for age in range(window):
        options[age] = work.theta[task, age] if work.slot[age] >= 0 else _ILLEGAL
    total = _plackett_luce(work.options, window, work.snapshot[task])
    for place in range(work.snapshot.shape[1]):
        age = work.snapshot[task, place]
        if age < 0 or work.neighbour.shape[2] == 0:
            break
        for column in range(len(candidates)):
            other = candidates[column]
            options[column] = work.phi[other, age] if other >= 0 else _ILLEGAL
        total += _plackett_luce(work.options, len(candidates), work.neighbour[task, place])
    return total


@njit_reduction
def _plackett_luce(options: Array32, count: int, chosen: Ints) -> float:
    """`sampler.plackett_luce_log_prob` of options[0, :count]; `chosen` ends with NONE."""
    scores, weight = options[0], options[1]
    most = scores[0]
    for place in range(count):
        most = max(most, scores[place])
    for place in range(count):
        weight[place] = exponential(scores[place] - most)
    drawn = 0
    while drawn < len(chosen) and chosen[drawn] >= 0:
        weight[chosen[drawn]] = 0
        drawn += 1
    left = 0.0
    for place in range(count):
        left += weight[place]
    found = 0.0
    for rank in range(drawn - 1, -1, -1):
        own = scores[chosen[rank]] - most
        left += float(exponential(own))
        found += own - np.log(left)
    return found
