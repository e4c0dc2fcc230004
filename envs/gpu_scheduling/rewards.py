"""Rewards, shared by both agents.

"cost" accumulates the time of jobs in the system and the dollars spent, in units of a job's mean
under FIFO with first-fit. "published" is the paper's reward, given when jobs are placed.
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import SHOWN, DecisionState
from loadmaster.envs.gpu_scheduling.episode import build_episode, run_baseline
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs, Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.slowdown import gang_speed
from loadmaster.envs.gpu_scheduling.state import SimState

REFERENCE = "fifo-first-fit"
REFERENCE_SEEDS = 4  # run times are heavy-tailed: one episode is too few


class Scales(NamedTuple):
    """Units of the reward: means over jobs under REFERENCE."""

    jct_s: float
    fee: float  # dollars


class Terms(NamedTuple):
    """Parameters of the published reward."""

    jct_weight: float  # exponents
    fee_weight: float
    waiting_penalty: float  # alpha
    best_speed: float  # of the fastest machine
    best_price: float  # dollars for a GPU second of work at speed 1 on the cheapest machine


def reference_scales(settings: GpuSchedulingSettings, workload: Workload) -> Scales:
    """Compute the scales from the settings alone, so all episodes have the same units."""
    jct_s, fee, jobs = 0.0, 0.0, 0
    for seed in range(REFERENCE_SEEDS):
        with warnings.catch_warnings(action="ignore"):  # about oversized jobs
            episode = build_episode(settings, seed, workload)
        state = run_baseline(settings, episode, BASELINES[REFERENCE])
        done = ~np.isnan(state.progress[:, cols.FINISHED_S])
        finish_s, arrival_s = state.progress[done, cols.FINISHED_S], episode.jobs.arrival_s[done]
        jct_s += float((finish_s - arrival_s).sum())
        fee += float(state.progress[done, cols.FEE].sum())
        jobs += int(done.sum())
    # Both may be 0: the cluster may be free of charge, or hold none of the jobs.
    return Scales(jct_s / jobs if jct_s else 1.0, fee / jobs if fee else 1.0)


def published_terms(settings: GpuSchedulingSettings, cluster: Cluster) -> Terms:
    return Terms(
        settings.jct_weight,
        settings.fee_weight,
        settings.waiting_penalty,
        float(cluster.speed.max()),
        float((cluster.price_per_s / cluster.speed).min()),
    )


def total_reward(
    settings: GpuSchedulingSettings, scales: Scales, sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(...) Sum of an episode's rewards so far, from `DecisionState.sums` (..., SUMS)."""
    if settings.reward == "published":
        return sums[..., decisions.PUBLISHED].copy()
    jct = settings.jct_weight / scales.jct_s * sums[..., decisions.JOB_S]
    fee = settings.fee_weight / scales.fee * sums[..., decisions.FEE]
    total: NDArray[np.float64] = -(jct + fee)
    return total


@njit_internal
def published_reward(
    state: SimState, cluster: Cluster, jobs: Jobs, decision: DecisionState, terms: Terms
) -> float:
    """r_t = (1/N') sum_i [zeta_i / (fee_i jct_i) - (1 - zeta_i) alpha C_i n_gpu_i].

    The sum is over the N' jobs shown; zeta is 1 for those just placed. Fee and completion time are
    relative to the best possible for the job, or the reward of tiny jobs would be unbounded.
    C n_gpu are the GPUs of the whole gang.
    """
    if decision.counts[SHOWN] == 0:
        return 0.0
    reward, waiting = 0.0, 0.0
    for row in range(decision.counts[SHOWN]):
        job = decision.shown[row]
        gpus = jobs.instances[job] * jobs.gpu[job] / WHOLE
        used = state.jobs[job, cols.ROWS_USED]
        if used == 0:
            waiting += gpus
            continue
        work_s = state.progress[job, cols.LEFT_S]
        run_s = work_s / gang_speed(state, cluster, jobs, job, used, True, True)
        jct_s = state.times[cols.NOW] - jobs.arrival_s[job] + run_s
        worth = (work_s / terms.best_speed / jct_s) ** terms.jct_weight
        fee = state.progress[job, cols.FEE_RATE] * run_s
        if fee > 0:
            worth *= (terms.best_price * gpus * work_s / fee) ** terms.fee_weight
        reward += worth
    return (reward - terms.waiting_penalty * waiting) / decision.counts[SHOWN]
