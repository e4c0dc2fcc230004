"""The prior of `prior.py` in torch, for batches of observations.

It computes with 64 bits, since caps are rounded up.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.baselines.remaining_work import LEAST_S, TOLERANCE
from loadmaster.models.decima import prior as terms_of
from loadmaster.models.decima.features import StageBatch
from loadmaster.models.decima.prior import (
    KEY,
    LOG_CAP,
    LOG_REACH,
    SEARCHED,
    Tilts,
    job_weights,
    rule_parameters,
    stage_weights,
)
from loadmaster.models.decima.settings import PriorSettings


class _JobsByRule(NamedTuple):
    """Ratings of J jobs."""

    key: Tensor  # (J,)
    cap: Tensor  # (J,)
    reach: Tensor  # (J,)
    beyond: Tensor  # (J,) bool: at or beyond the cap


def _term(values: Tensor, usual: float, spread: float) -> Tensor:
    scaled = (values.clamp(min=LEAST_S).log() - usual) / spread
    return scaled.clamp(-terms_of.MOST, terms_of.MOST)


class _JobInputs(NamedTuple):
    """What the ratings of J jobs depend on."""

    terms: Tensor  # (J, terms of `tilt_job`)
    log_left: Tensor  # (J,) work left
    log_even: Tensor  # (J,) executors for each waiting job
    log_total: Tensor  # (J,) executors of the cluster
    held: Tensor  # (J,) executors, without free ones
    own: Tensor  # (J,) 1: the free executors are the job's


def _job_inputs(batch: StageBatch) -> _JobInputs:
    jobs, owner, cluster = batch.jobs.double(), batch.job_observation, batch.cluster.double()
    work_s = jobs[:, obs_cols.WORK_LEFT_S]
    path = batch.stages[:, obs_cols.CRITICAL_S].double()
    longest = path.new_zeros(len(jobs)).scatter_reduce(0, batch.row_job, path, "amax")
    own = jobs[:, obs_cols.IS_SOURCE]
    free = cluster[:, obs_cols.FREE_EXECUTORS].index_select(0, owner)
    held = jobs[:, obs_cols.EXECUTORS] - free * own
    left = _term(work_s, terms_of.USUAL_LEFT, terms_of.LEFT_SPREAD)
    of_cluster = _cluster_terms(batch, jobs, cluster).index_select(0, owner)
    even, mean_left, size, unknown, log_even, log_total = of_cluster.unbind(1)
    terms = torch.stack(
        [
            torch.ones_like(left),
            left,
            even,
            _term(longest, terms_of.USUAL_PATH, terms_of.PATH_SPREAD),
            _term(1 + jobs[:, obs_cols.UNPLACED], terms_of.USUAL_TASKS, terms_of.TASKS_SPREAD),
            _term(1 + jobs[:, obs_cols.AGE_S], terms_of.USUAL_AGE, terms_of.AGE_SPREAD),
            mean_left,
            size,
            _term(1 + held, terms_of.USUAL_HELD, terms_of.HELD_SPREAD),
            own,
            own * left,
            left * even,
            left**2,
            even**2,
            unknown,
            unknown * left,
        ],
        1,
    )
    return _JobInputs(terms, work_s.clamp(min=LEAST_S).log(), log_even, log_total, held, own)


def _cluster_terms(batch: StageBatch, jobs: Tensor, cluster: Tensor) -> Tensor:
    """(B, 6) of observations: four terms, and the logarithms of even share and executors."""
    counted = [(jobs[:, obs_cols.UNPLACED] > 0).double(), jobs[:, obs_cols.WORK_LEFT_S]]
    sums = jobs.new_zeros(len(cluster), 2)
    sums = sums.index_add(0, batch.job_observation, torch.stack(counted, 1))
    waiting, total = sums[:, 0].clamp(min=1), cluster[:, obs_cols.TOTAL_EXECUTORS]
    mean_s, of_row = batch.stages[:, obs_cols.MEAN_S].double(), batch.row_observation
    shortest = mean_s.new_full((len(cluster),), math.inf).scatter_reduce(0, of_row, mean_s, "amin")
    largest = mean_s.new_zeros(len(cluster)).scatter_reduce(0, of_row, mean_s, "amax")
    several = cluster[:, obs_cols.STAGES] > 1
    return torch.stack(
        [
            _term(total / waiting, terms_of.USUAL_EVEN, terms_of.EVEN_SPREAD),
            _term(sums[:, 1] / waiting, terms_of.USUAL_LEFT, terms_of.LEFT_SPREAD),
            _term(total, terms_of.USUAL_SIZE, terms_of.SIZE_SPREAD),
            (several & (shortest == largest)).double(),  # durations are unknown
            (total / waiting).log(),
            total.log(),
        ],
        1,
    )


def _jobs_by_rule(batch: StageBatch, settings: PriorSettings, tilts: Tilts) -> _JobsByRule:
    log_scale, alpha, share, stay, _ = rule_parameters(settings, tilts.prior).unbind()
    job = _job_inputs(batch)
    added = job.terms @ job_weights(tilts.job).T
    log_cap = log_scale + alpha * job.log_left + share * job.log_even + added[:, LOG_CAP]
    reach = math.inf if settings.reach is None else settings.reach
    log_reach = log_cap + (reach + added[:, LOG_REACH]).clamp(min=0)
    cap, most = (
        torch.ceil(torch.minimum(each, job.log_total).exp() - TOLERANCE)
        for each in (log_cap, log_reach)
    )
    key = job.log_left - stay * job.own + added[:, KEY]
    return _JobsByRule(key, cap, most, cap <= job.held)


def _stage_keys(
    batch: StageBatch,
    settings: PriorSettings,
    tilts: Tilts,
    rows: Tensor,
    job: Tensor,
    owner: Tensor,
) -> Tensor:
    """(rows,) what stages add to the keys of their jobs."""
    stages, cluster = batch.stages.index_select(0, rows).double(), batch.cluster.double()
    path, mean_s = stages[:, obs_cols.CRITICAL_S], stages[:, obs_cols.MEAN_S]
    free = cluster[:, obs_cols.FREE_EXECUTORS].clamp(min=1).index_select(0, owner)
    total = cluster[:, obs_cols.TOTAL_EXECUTORS].index_select(0, owner)
    left_s = batch.jobs[:, obs_cols.WORK_LEFT_S].double().clamp(min=LEAST_S).index_select(0, job)
    held = terms_of.USUAL_HELD, terms_of.HELD_SPREAD
    terms = [
        _term(path, terms_of.USUAL_PATH, terms_of.PATH_SPREAD),
        _term(1 + stages[:, obs_cols.UNASSIGNED], terms_of.USUAL_TASKS, terms_of.TASKS_SPREAD),
        _term(mean_s, terms_of.USUAL_DURATION, terms_of.DURATION_SPREAD),
        _term(1 + stages[:, obs_cols.RUNNING], *held),
        _term(1 + stages[:, obs_cols.HEIGHT], *held),
        stages[:, obs_cols.RUNNABLE],
        1 - stages[:, obs_cols.FITTING_TOTAL] / total,
        1 - stages[:, obs_cols.FITTING] / free,
        (stages[:, obs_cols.UNSTARTED] * mean_s / left_s).clamp(max=1),
    ]
    weight = rule_parameters(settings, tilts.prior)[SEARCHED.index("path")]
    added = torch.stack(terms, 1) @ stage_weights(tilts.key)
    return added - weight * path.clamp(min=LEAST_S).log()


@torch.no_grad()
def stage_prior(
    batch: StageBatch, settings: PriorSettings, tilts: Tilts, rows: Tensor, owner: Tensor
) -> Tensor:
    """(rows,) of these stages, which are all schedulable ones of their observations, `owner`."""
    job = batch.row_job.index_select(0, rows)
    by_rule = _jobs_by_rule(batch, settings, tilts)
    key = by_rule.key.index_select(0, job) + _stage_keys(batch, settings, tilts, rows, job, owner)
    beyond = by_rule.beyond.index_select(0, job).long()
    group = 2 * owner + beyond
    least = key.new_full((2 * len(batch.cluster),), math.inf).scatter_reduce(0, group, key, "amin")
    loss = settings.strength * (key - least.index_select(0, group)) + settings.beyond * beyond
    return -loss.float()


@torch.no_grad()
def limit_prior(
    batch: StageBatch,
    settings: PriorSettings,
    tilts: Tilts,
    job: Tensor,
    owner: Tensor,
    level: Tensor,
) -> Tensor:
    """(L,) of limits; `owner` is the observation of each, `job` (B,) its job."""
    by_rule = _jobs_by_rule(batch, settings, tilts)
    beyond, cap = by_rule.beyond.index_select(0, job), by_rule.cap.index_select(0, job)
    target = torch.where(beyond, by_rule.reach.index_select(0, job), cap).log()
    distance = level.double().log() - target.index_select(0, owner)
    return -(settings.limit_strength * distance**2).float()
