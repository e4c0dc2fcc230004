"""The subgraph sampler in compiled code: scores of nodes, draws by them, and their probability.

As models/sure/sampler.py, with the same numbers for the same keys. Random bits are drawn one by
one; what is computed of them, over whole rows, so that the loops vectorise.
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, njit_internal, njit_reduction, splitmix64
from loadmaster.models.elementary import exponential, hyperbolic_tangent, logarithm
from loadmaster.models.keyed_random import (
    draw_gumbels,
    draw_normal_pairs,
    draw_stream_key,
    draw_uniform,
)
from loadmaster.models.layers import Array32, take_largest, top_k
from loadmaster.models.sure import sampler
from loadmaster.models.sure.compiled_tables import (
    CompiledJob,
    KeptFeatures,
    Workspace,
)
from loadmaster.models.sure.compiled_weights import SCORES, Weights
from loadmaster.models.sure.graph import NONE

_SELF, _NEIGHBOUR = sampler.SELF, sampler.NEIGHBOUR
_SCORE, _SNAPSHOT = sampler.SCORE_STREAM, sampler.SNAPSHOT_STREAM
_NEIGHBOURS, _TASKS = sampler.NEIGHBOUR_STREAM, sampler.TASK_STREAM
_LEAST = np.float32(sampler.MIN_LOG_VARIANCE)
_MOST = np.float32(sampler.MAX_LOG_VARIANCE)
_ILLEGAL = np.float32(sampler.ILLEGAL)
_ONE, _HALF = np.float32(1), np.float32(0.5)
_ROLES = SCORES // 2


@njit_internal
def write_context(weights: Weights, restart: Array32, work: Workspace) -> None:
    """What the age of a snapshot and the last restart add to its features and scores."""
    window, columns = weights.by_age.shape
    common = work.context[0]  # overwritten last
    for i in range(columns):
        common[i] = 0
    for part in range(len(restart)):
        factor, own = restart[part], weights.by_restart[part]
        for i in range(columns):
            common[i] += factor * own[i]
    for age in range(window - 1, -1, -1):
        row, known = work.context[age], weights.by_age[age]
        for i in range(columns):
            row[i] = known[i] + common[i]
    for score in range(SCORES):
        context, known = work.score_context[score], weights.score_by_age[score]
        added = np.float32(0)
        for part in range(len(restart)):
            added += restart[part] * weights.score_by_restart[score, part]
        for age in range(window):
            context[age] = known[age] + added


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
    if weights.scored:
        for task in range(len(job.candidates)):
            _write_scores(weights, kept.score_part[episode], task, newest, sampled, work)
    else:
        work.theta[:] = 0
        work.phi[:] = 0
    for task in range(len(job.candidates)):
        _draw_snapshots(task, sampled, work)
        if work.neighbour.shape[2] > 0:
            if not sampled:
                _write_neighbours(weights, job, kept.score_part[episode], task, work)
            _draw_neighbours(job, task, sampled, work)


@njit_internal
def _write_scores(
    weights: Weights, parts: Array32, task: int, newest: int, sampled: bool, work: Workspace
) -> None:
    """Omega of a task's nodes: mu + sigma * eps in both roles, or mu of its own, over temperature.

    Both roles share random bits, and most ages are drawn by some task. Without them, the means of
    neighbours are computed where they are needed: of a long window, few ages are drawn.
    """
    window, scale = len(work.slot), _ONE / weights.temperature
    for score in range(SCORES if sampled else 1):
        whole, own, context = work.score[score], parts[score, task], work.score_context[score]
        # Each loop runs through the ring without a turn, so that it vectorises.
        for age in range(newest + 1):
            whole[age] = own[newest - age] + context[age]
        for age in range(newest + 1, window):
            whole[age] = own[newest + window - age] + context[age]
    if sampled:
        key = draw_stream_key(work.task_key[task], _SCORE)
        draw_normal_pairs(key, work.noise[_SELF], work.noise[_NEIGHBOUR])
        _write_omega(_SELF, scale, work, work.theta[task])
        _write_omega(_NEIGHBOUR, scale, work, work.phi[task])
    else:
        theta, mean = work.theta[task], work.score[_SELF]
        for age in range(window):
            theta[age] = hyperbolic_tangent(mean[age]) * scale


@njit_internal
def _write_omega(role: int, scale: np.float32, work: Workspace, omega: Array32) -> None:
    mean, log_variance, noise = work.score[role], work.score[_ROLES + role], work.noise[role]
    for age in range(len(omega)):
        deviation = exponential(min(max(log_variance[age], _LEAST), _MOST) * _HALF)
        omega[age] = (hyperbolic_tangent(mean[age]) + deviation * noise[age]) * scale


@njit_internal
def _write_neighbours(
    weights: Weights, job: CompiledJob, parts: Array32, task: int, work: Workspace
) -> None:
    """mu of the neighbours of a task in its drawn snapshots, over the temperature."""
    own, context = parts[_NEIGHBOUR], work.score_context[_NEIGHBOUR]
    scale = _ONE / weights.temperature
    for age in work.snapshot[task]:
        if age < 0:
            break
        slot, added = work.slot[age], context[age]
        for column in range(job.near[task]):
            other = job.candidates[task, column]
            work.phi[other, age] = hyperbolic_tangent(own[other, slot] + added) * scale


@njit_internal
def _draw_snapshots(task: int, sampled: bool, work: Workspace) -> None:
    theta, drawn, window = work.theta[task], work.snapshot[task], len(work.slot)
    keys = work.numbers
    if sampled:
        key = draw_stream_key(work.task_key[task], _SNAPSHOT)
        for age in range(window):
            keys[age] = draw_uniform(key, age)
        draw_gumbels(keys, window)
    else:
        keys[:window] = 0
    for age in range(window):
        keys[age] = keys[age] + theta[age] if work.slot[age] >= 0 else -np.inf
    count = take_largest(keys, window, work.tops, drawn)
    for place in range(len(drawn)):
        work.snapshot_score[task, place] = theta[drawn[place]] if place < count else 0
        if place >= count:
            drawn[place] = NONE


@njit_internal
def _draw_neighbours(job: CompiledJob, task: int, sampled: bool, work: Workspace) -> None:
    candidates, near, limit = job.candidates[task], job.near[task], work.neighbour.shape[2]
    places = 0
    while places < work.snapshot.shape[1] and work.snapshot[task, places] >= 0:
        places += 1
    if sampled:
        own = draw_stream_key(work.task_key[task], _NEIGHBOURS)
        for column in range(near):
            pair = splitmix64(own, work.task_key[candidates[column]])
            key = draw_stream_key(pair, 0)
            for place in range(places):
                number = draw_uniform(key, work.snapshot[task, place])
                work.numbers[place * near + column] = number
        draw_gumbels(work.numbers, places * near)
    best, best_key = work.best[:limit], work.best_key[:limit]
    for place in range(work.snapshot.shape[1]):
        age, count = work.snapshot[task, place], 0
        if age >= 0:
            for column in range(near):
                order = np.float64(work.phi[candidates[column], age])
                if sampled:
                    order += work.numbers[place * near + column]
                count = top_k(column, order, best, best_key, count)
        drawn = work.neighbour[task, place]
        for rank in range(limit):
            drawn[rank], work.neighbour_score[task, place, rank] = NONE, 0
            if rank < count:
                drawn[rank] = best[rank]
                work.neighbour_score[task, place, rank] = work.phi[candidates[best[rank]], age]


@njit_internal
def draw_log_prob(job: CompiledJob, task: int, work: Workspace) -> float:
    """log p(g | Omega) of a task's draw; 0 if nothing is drawn."""
    if work.snapshot.shape[1] == 0:
        return 0.0
    candidates, near, options = job.candidates[task], job.near[task], work.options[0]
    window = len(work.slot)
    for age in range(window):
        options[age] = work.theta[task, age] if work.slot[age] >= 0 else _ILLEGAL
    numbers = work.numbers
    total, sums = _plackett_luce(work.options, window, work.snapshot[task], numbers, 0)
    for place in range(work.snapshot.shape[1]):
        age = work.snapshot[task, place]
        if age < 0 or near == 0 or work.neighbour.shape[2] == 0:
            break
        for column in range(near):
            options[column] = work.phi[candidates[column], age]
        chosen = work.neighbour[task, place]
        found, sums = _plackett_luce(work.options, near, chosen, numbers, sums)
        total += found
    return total - _sum_of_logarithms(numbers, sums)


@njit_reduction
def _plackett_luce(
    options: Array32, count: int, chosen: Ints, numbers: NDArray[np.float64], sums: int
) -> tuple[float, int]:
    """`sampler.plackett_luce_log_prob` of options[0, :count]; `chosen` ends with NONE.

    The log-probability is a sum of scores less the logarithms of sums of what is left before each
    draw. Returns the former, and how many of the latter `numbers` has; it had `sums`.
    """
    scores, weight = options[0], options[1]
    most = scores[0]
    for place in range(count):
        most = max(most, scores[place])
    for place in range(count):
        weight[place] = exponential(scores[place] - most)
    drawn, found, left = sums, 0.0, 0.0
    for option in chosen:
        if option < 0:
            break
        found += scores[option] - most
        numbers[drawn] = weight[option]
        weight[option] = 0
        drawn += 1
    for place in range(count):
        left += weight[place]
    for place in range(drawn - 1, sums - 1, -1):
        left += numbers[place]
        numbers[place] = left
    return found, drawn


@njit_reduction
def _sum_of_logarithms(numbers: NDArray[np.float64], count: int) -> float:
    total = 0.0
    for place in range(count):
        total += logarithm(numbers[place])
    return total
