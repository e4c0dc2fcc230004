"""The rule `srpt-caps` as a prior: terms without a gradient that are added to the network's scores.

A network whose own scores are 0 decides as the rule does where the rule may not idle (`spill`).

- A stage loses `strength` times the distance of its key from the least one. Jobs below their cap
  and those at or beyond it are compared among themselves; the latter lose `beyond` as well.
- A limit loses `limit_strength` times the square of its distance from the job's cap, in logarithms:
  with the square, a small slope of the network's own scores moves the best limit a little. A job at
  or beyond its cap may hold every executor, as in the rule.

The weights `tilt_prior`, which evolution can search, are changes of the rule's parameters. One unit
of each is `STEPS`, which shifts decisions about as much as one unit of a linear term. They start at
0 as those do, so that one step size fits all. Caps and keys are computed by the rule's own
functions (`envs/dag_scheduling/baselines/remaining_work.py`); the torch form repeats them for whole
batches, with 64 bits, since caps are rounded up.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.dag_scheduling import baselines as rules
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.baselines.remaining_work import (
    LEAST_S,
    TOLERANCE,
    cap_of,
    held_elsewhere,
    job_key,
    stage_key,
    waiting_jobs,
)
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima.features import StageBatch
from loadmaster.models.decima.settings import PriorSettings
from loadmaster.models.layers import Array32

Prior = NDArray[np.float64]  # STRENGTH, LIMIT_STRENGTH, BEYOND, then `baselines.PARAMETERS`
STRENGTH, LIMIT_STRENGTH, BEYOND, FIRST_PARAMETER = range(4)
SEARCHED = ("scale", "alpha", "share", "stay", "path")  # in `tilt_prior`; scale as its logarithm
STEPS = (0.2, 0.05, 0.1, 0.3, 0.1)  # of each, by one unit of its weight


def rule_parameters(settings: PriorSettings, weights: Tensor) -> Tensor:
    """(SEARCHED,) with 64 bits: those of the settings, changed by the weights; log of the scale."""
    values = {**settings.model_dump(include=set(SEARCHED)), "scale": math.log(settings.scale)}
    changed = zip(SEARCHED, STEPS, weights.double().unbind(), strict=True)
    return torch.stack([values[name] + step * weight for name, step, weight in changed])


def encode(settings: PriorSettings | None, weights: Tensor | None) -> Prior:
    """The prior for compiled code; empty: none."""
    if settings is None or weights is None:
        return np.zeros(0)
    values = rule_parameters(settings, weights.cpu()).numpy()
    parameters = dict(zip(SEARCHED, values, strict=True))
    parameters["scale"] = np.exp(parameters["scale"])
    given = [settings.strength, settings.limit_strength, settings.beyond]
    return np.array([*given, *(parameters.get(name, 0.0) for name in rules.PARAMETERS)])


@njit_internal
def parameters_of(prior: Prior) -> tuple[float, ...]:
    own = prior[FIRST_PARAMETER:]
    return own[0], own[1], own[2], own[3], own[4], own[5], own[6], own[7], own[8], own[9]


@njit_internal
def add_stage_prior(view: Observation, prior: Prior, scores: Array32) -> None:
    """Add the prior to the `scores` of the schedulable stages, which are in the order of rows."""
    values, waiting = parameters_of(prior), waiting_jobs(view)
    least, least_beyond = np.inf, np.inf
    for adding in range(2):  # the least keys come first
        legal, job, own_key, beyond = 0, -1, 0.0, False
        for row in range(int(view.cluster[obs_cols.STAGES])):
            if view.schedulable[row] == 0:
                continue
            if view.stage_job[row] != job:  # rows are sorted by job
                job = int(view.stage_job[row])
                own_key = job_key(view, job, values)
                cap = cap_of(view, job, row, waiting, rules.SRPT_CAPS, values)
                beyond = cap <= held_elsewhere(view, job)
            key = stage_key(view, row, own_key, values)
            if adding == 1:
                loss = prior[STRENGTH] * (key - (least_beyond if beyond else least))
                scores[legal] -= np.float32(loss + (prior[BEYOND] if beyond else 0.0))
            elif beyond:
                least_beyond = min(least_beyond, key)
            else:
                least = min(least, key)
            legal += 1


@njit_internal
def log_target(view: Observation, row: int, prior: Prior) -> float:
    """Logarithm of the limit that the rule gives the job of the stage in `row`."""
    job, values = int(view.stage_job[row]), parameters_of(prior)
    cap = cap_of(view, job, row, waiting_jobs(view), rules.SRPT_CAPS, values)
    if cap <= held_elsewhere(view, job):
        return float(np.log(float(view.cluster[obs_cols.TOTAL_EXECUTORS])))
    return float(np.log(float(cap)))


@njit_internal
def limit_loss(prior: Prior, target: float, level: int) -> np.float32:
    """What a limit loses by its distance from `log_target`."""
    return np.float32(prior[LIMIT_STRENGTH] * (np.log(float(level)) - target) ** 2)


class _JobsByRule(NamedTuple):
    """Keys and caps of J jobs."""

    key: Tensor  # (J,)
    cap: Tensor  # (J,)
    beyond: Tensor  # (J,) bool: at or beyond the cap


def _jobs_by_rule(batch: StageBatch, parameters: Tensor) -> _JobsByRule:
    log_scale, alpha, share, stay, _ = parameters.unbind()
    jobs, owner = batch.jobs.double(), batch.job_observation
    waits = (jobs[:, obs_cols.UNPLACED] > 0).double()
    waiting = waits.new_zeros(len(batch.cluster)).index_add(0, owner, waits).clamp(min=1)
    cluster = batch.cluster.double()
    total = cluster[:, obs_cols.TOTAL_EXECUTORS]
    even = ((total / waiting) ** share).index_select(0, owner)
    left = jobs[:, obs_cols.WORK_LEFT_S].clamp(min=LEAST_S)
    own = jobs[:, obs_cols.IS_SOURCE]
    free = cluster[:, obs_cols.FREE_EXECUTORS].index_select(0, owner)
    wanted = torch.minimum(log_scale.exp() * left**alpha * even, total.index_select(0, owner))
    cap = torch.ceil(wanted - TOLERANCE)
    held = jobs[:, obs_cols.EXECUTORS] - free * own
    return _JobsByRule(left.log() - stay * own, cap, cap <= held)


@torch.no_grad()
def stage_prior(
    batch: StageBatch, settings: PriorSettings, weights: Tensor, rows: Tensor, owner: Tensor
) -> Tensor:
    """(rows,) of these stages, which are all schedulable ones of their observations, `owner`."""
    parameters, job = rule_parameters(settings, weights), batch.row_job.index_select(0, rows)
    by_rule = _jobs_by_rule(batch, parameters)
    path = batch.stages[:, obs_cols.CRITICAL_S].index_select(0, rows).double().clamp(min=LEAST_S)
    key = by_rule.key.index_select(0, job) - parameters[-1] * path.log()
    beyond = by_rule.beyond.index_select(0, job).long()
    group = 2 * owner + beyond
    least = key.new_full((2 * len(batch.cluster),), math.inf).scatter_reduce(0, group, key, "amin")
    loss = settings.strength * (key - least.index_select(0, group)) + settings.beyond * beyond
    return -loss.float()


@torch.no_grad()
def limit_prior(
    batch: StageBatch,
    settings: PriorSettings,
    weights: Tensor,
    job: Tensor,
    owner: Tensor,
    level: Tensor,
) -> Tensor:
    """(L,) of limits; `owner` is the observation of each, `job` (B,) its job."""
    by_rule = _jobs_by_rule(batch, rule_parameters(settings, weights))
    total = batch.cluster[:, obs_cols.TOTAL_EXECUTORS].double()
    beyond, cap = by_rule.beyond.index_select(0, job), by_rule.cap.index_select(0, job)
    target = torch.where(beyond, total, cap).log().index_select(0, owner)
    return -(settings.limit_strength * (level.double().log() - target) ** 2).float()
