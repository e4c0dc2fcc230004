"""Both agents as one compiled function, for one observation at a time.

Rollouts and services decide on one small observation after another, where a forward pass in torch
spends its time on starting some hundred operations. Weights are copied from a `DasNetwork`, which
remains the one that is trained. Clusters whose machines are grouped into cells are not supported;
see `is_supported`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das import compiled_ordering, compiled_placement, compiled_process
from loadmaster.models.das.compiled_placement import KINDS, PRIOR, SPREAD
from loadmaster.models.das.compiled_process import Flag, posterior
from loadmaster.models.das.gaussian_process import RandomWalkProcess
from loadmaster.models.das.heuristic_init import LOG_TAU, MAX_LOG_STD, MIN_LOG_STD
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.eigensolver import Array64
from loadmaster.models.keyed_random import draw_normal
from loadmaster.models.layers import Array32

ORDER, PLACE = 0, 1  # random streams of the agents, and their places in `log_prob`
MEANS, SAMPLES = np.False_, np.True_  # as `sample`; Python's literals would compile a variant each
_MIN, _MAX = np.float32(MIN_LOG_STD), np.float32(MAX_LOG_STD)


class Weights(NamedTuple):
    ordering: compiled_ordering.OrderingWeights
    placement: compiled_placement.PlacementWeights
    process: compiled_process.ProcessWeights
    has_process: bool


class Workspace(NamedTuple):
    """Scratch memory and the agents' actions, for Q rows of jobs and M machines."""

    ordering: compiled_ordering.OrderingWorkspace
    placement: compiled_placement.PlacementWorkspace
    process: compiled_process.ProcessWorkspace
    standard: Array32  # (Q or M,) standard normal numbers
    priority: Array32  # (Q,)
    affinity: Array32  # (Q, M)
    log_prob: Array64  # (2,) log density of each agent's draw
    scored_row: NDArray[np.int64]  # (1,) the row that `placement` and `process` hold; -1: none


def is_supported(settings: DasSettings, machines: int) -> bool:
    """Whether the compiled code can run such a network on so many machines."""
    return not settings.process or machines <= settings.exact_up_to


def weights_of(network: DasNetwork) -> Weights:
    """Copy the network's weights into the form that `decide` reads."""
    process = network.placement.process
    return Weights(
        compiled_ordering.ordering_weights(network.ordering),
        compiled_placement.placement_weights(network.placement),
        compiled_process.process_weights(process or RandomWalkProcess(network.settings)),
        has_process=process is not None,
    )


def workspace_for(settings: DasSettings, queue: int, machines: int, past: int) -> Workspace:
    """For observations of up to `queue` jobs and `past` decisions."""
    return Workspace(
        compiled_ordering.ordering_workspace(settings, queue),
        compiled_placement.placement_workspace(settings, machines),
        compiled_process.process_workspace(machines if settings.process else 0, past),
        standard=np.zeros(max(queue, machines), np.float32),
        priority=np.zeros(queue, np.float32),
        affinity=np.zeros((queue, machines), np.float32),
        log_prob=np.zeros(2),
        scored_row=np.full(1, -1),
    )


@compiled
def decide(
    view: Observation, weights: Weights, work: Workspace, sample: Flag, key: int | np.int64
) -> None:
    """Write priorities, affinities and log-probabilities into the workspace.

    With `sample` they are drawn by `key` as DasModule draws them; without, they are the means and
    the log-probabilities are 0.
    """
    count = 0
    while count < len(view.job_mask) and view.job_mask[count]:
        count += 1
    work.log_prob[ORDER], work.log_prob[PLACE] = 0.0, 0.0
    work.scored_row[0] = -1
    if count > 0:
        compiled_ordering.order_jobs(view, count, weights.ordering, work.ordering)
        _set_priorities(view, count, work, sample, key)
        _set_affinities(view, count, weights, work, sample, key)


@njit_inline
def _set_priorities(
    view: Observation, count: int, work: Workspace, sample: Flag, key: int | np.int64
) -> None:
    """Priorities without effect are 0 and have no part in the log-probability."""
    mean, log_std, standard = work.ordering.mean, work.ordering.log_std, work.standard
    if sample:
        draw_normal(key, ORDER, 0, count, standard)
    for row in range(count):
        work.priority[row] = 0
        if not view.heeded[row]:
            continue
        work.priority[row] = mean[row]
        if sample:
            work.priority[row] += np.exp(log_std[row]) * standard[row]
            work.log_prob[ORDER] += _log_density(standard[row], log_std[row])


@njit_inline
def _set_affinities(
    view: Observation,
    count: int,
    weights: Weights,
    work: Workspace,
    sample: Flag,
    key: int | np.int64,
) -> None:
    """Affinities of jobs that fit nowhere are 0 and have no part in the log-probability."""
    machines, is_loaded = view.held.shape[1], False
    for row in range(count):
        affinity, fits = work.affinity[row], False
        for machine in range(machines):
            affinity[machine] = 0
            fits = fits or view.held[row, machine] > 0
        if not fits:
            continue
        if not is_loaded:
            compiled_placement.load_machines(view, weights.placement, work.placement)
            if weights.has_process:
                compiled_process.load_history(view, weights.process, work.process)
            is_loaded = True
        compiled_placement.score_pairs(view, row, weights.placement, work.placement)
        work.scored_row[0] = row
        if sample:
            draw_normal(key, PLACE, row * machines, machines, work.standard)
        if weights.has_process:
            work.log_prob[PLACE] += _process_affinity(view, weights, work, sample, affinity)
        else:
            work.log_prob[PLACE] += _independent_affinity(work, sample, affinity)


@njit_inline
def _process_affinity(
    view: Observation, weights: Weights, work: Workspace, sample: Flag, affinity: Array32
) -> float:
    """gaussian_process.ProcessAffinities; returns the log-probability."""
    outputs, machines = work.placement.outputs, len(affinity)
    half_log = posterior(
        outputs[KINDS:], view.rack, work.standard, sample, weights.process, work.process
    )
    log_amplitude = _log_amplitude(outputs[SPREAD], machines)
    amplitude = np.exp(log_amplitude)
    result, log_prob, gain = work.process.result, 0.0, weights.process.gain
    for machine in range(machines):
        mean = np.float64(outputs[PRIOR, machine]) + gain * result[2 * machine]
        affinity[machine] = mean + amplitude * result[2 * machine + 1] if sample else mean
        log_prob += _log_density(work.standard[machine], log_amplitude)
    return log_prob - half_log if sample else 0.0


@njit_inline
def _log_amplitude(spread: Array32, machines: int) -> float:
    total = np.float32(0)
    for machine in range(machines):
        total += spread[machine]
    return np.float64(min(max(total / np.float32(machines), _MIN), _MAX))


@njit_inline
def _independent_affinity(work: Workspace, sample: Flag, affinity: Array32) -> float:
    """gaussian_process.IndependentAffinities; returns the log-probability."""
    outputs, log_prob = work.placement.outputs, 0.0
    for machine in range(len(affinity)):
        affinity[machine] = outputs[PRIOR, machine]
        if sample:
            log_std = min(max(outputs[SPREAD, machine], _MIN), _MAX)
            affinity[machine] += np.exp(log_std) * work.standard[machine]
            log_prob += _log_density(work.standard[machine], log_std)
    return log_prob


@njit_internal
def _log_density(standard: float, log_std: float) -> float:
    """Log density of mean + std * standard; the density's own float32 rounding is left out."""
    return -(np.float64(standard) ** 2) / 2 - log_std - LOG_TAU / 2


@compiled
def affinity_std(
    view: Observation,
    row: int,
    machines: NDArray[np.int64],
    weights: Weights,
    work: Workspace,
    scratch: Array64,
    out: Array32,
) -> None:
    """Standard deviations of a job's affinities to K machines, after `decide` on this view.

    The job of that row fits somewhere; `scratch` is (M, K).
    """
    outputs = work.placement.outputs
    if work.scored_row[0] != row:
        compiled_placement.score_pairs(view, row, weights.placement, work.placement)
        if weights.has_process:
            kinds = outputs[KINDS:]
            posterior(kinds, view.rack, work.standard, MEANS, weights.process, work.process)
        work.scored_row[0] = row
    if weights.has_process:
        compiled_process.posterior_std(machines, work.process, scratch, out)
        amplitude = np.exp(_log_amplitude(outputs[SPREAD], len(view.machines)))
        for place in range(len(machines)):
            out[place] *= amplitude
    else:
        for place in range(len(machines)):
            out[place] = np.exp(min(max(outputs[SPREAD, machines[place]], _MIN), _MAX))
