"""What a decision is worth to both agents alike.

"cost" counts what users feel as it accrues: the time that jobs spend in the system, and dollars,
each in units of what first come, first served would have cost a job. "published" is the paper's
reward, paid for jobs the moment they are placed.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import kept_speed
from loadmaster.envs.gpu_scheduling.rollout import run_baseline
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.slowdown import network_factor
from loadmaster.envs.gpu_scheduling.state import SimState

REFERENCE = "fifo-first-fit"
REFERENCE_SEEDS = 4  # run times are so unequal that one episode would say little


class Scales(NamedTuple):
    """Of the reward: what a job comes to under REFERENCE on average."""

    jct_s: float
    fee: float  # dollars


class Terms(NamedTuple):
    """What the published reward is made of."""

    jct_weight: float  # exponents
    fee_weight: float
    waiting_penalty: float  # alpha
    best_speed: float  # of all machines
    best_price: float  # dollars for a GPU-second of work at speed 1, where that is cheapest


def reference_scales(settings: GpuSchedulingSettings, workload: Workload) -> Scales:
    """They follow from the settings alone, so all episodes are told in the same units."""
    jct_s, fee, jobs = 0.0, 0.0, 0
    for seed in range(REFERENCE_SEEDS):
        with warnings.catch_warnings(action="ignore"):  # of oversized jobs: the episodes will tell
            cluster, drawn, luck = build_episode(settings, seed, workload)
        state = run_baseline(settings, cluster, drawn, BASELINES[REFERENCE], luck)
        done = ~np.isnan(state.progress[:, at.FINISHED_S])
        jct_s += float((state.progress[done, at.FINISHED_S] - drawn.arrival_s[done]).sum())
        fee += float(state.progress[done, at.FEE].sum())
        jobs += int(done.sum())
    # A cluster may be free of charge, or hold none of the jobs: any unit will do then.
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
    """(...) all rewards of an episode up to now, of the desk's sums (..., SUMS)."""
    if settings.reward == "published":
        return sums[..., on.PUBLISHED].copy()
    jct = settings.jct_weight / scales.jct_s * sums[..., on.JOB_S]
    fee = settings.fee_weight / scales.fee * sums[..., on.FEE]
    total: NDArray[np.float64] = -(jct + fee)
    return total


@njit_internal
def published_reward(
    state: SimState, cluster: Cluster, jobs: Jobs, desk: DecisionState, terms: Terms
) -> float:
    """r_t = (1/N') sum_i [zeta_i / (fee_i jct_i) - (1 - zeta_i) alpha C_i n_gpu_i], just placed.

    Over the N' jobs that were shown; zeta is 1 for those placed. Fee and completion time are
    divided by the best the cluster could do for the job, or tiny jobs would be worth any amount.
    C n_gpu are the GPUs of the whole gang.
    """
    if desk.counts[on.SHOWN] == 0:
        return 0.0
    reward, waiting = 0.0, 0.0
    for row in range(desk.counts[on.SHOWN]):
        job = desk.shown[row]
        gpus = jobs.instances[job] * jobs.gpu[job] / WHOLE
        if state.jobs[job, at.ROWS_USED] == 0:
            waiting += gpus
            continue
        work_s = state.progress[job, at.LEFT_S]
        run_s = work_s / first_speed(state, cluster, jobs, job)
        jct_s = state.times[at.NOW] - jobs.arrival_s[job] + run_s
        worth = (work_s / terms.best_speed / jct_s) ** terms.jct_weight
        fee = state.progress[job, at.FEE_RATE] * run_s
        if fee > 0:
            worth *= (terms.best_price * gpus * work_s / fee) ** terms.fee_weight
        reward += worth
    return (reward - terms.waiting_penalty * waiting) / desk.counts[on.SHOWN]


@njit_internal
def first_speed(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> float:
    """The speed at which a job that was just placed will set out."""
    first, used = state.jobs[job, at.FIRST_ROW], state.jobs[job, at.ROWS_USED]
    rack = cluster.rack[state.rows[first, at.MACHINE]]
    slowest, one_rack = np.inf, True
    for row in range(first, first + used):
        machine = state.rows[row, at.MACHINE]
        speed = state.row_speed[row]
        if jobs.gpu[job] % WHOLE != 0:
            speed *= kept_speed(state, cluster, machine)
        slowest = min(slowest, speed)
        one_rack = one_rack and cluster.rack[machine] == rack
    if state.setup[at.INTERFERENCE] == 1:
        slowest *= network_factor(jobs.comm[job], used, 1 if one_rack else 2)
    return slowest
