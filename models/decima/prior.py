"""The rule `srpt-caps` as a prior: terms without a gradient that are added to the network's scores.

A network whose own scores are 0 decides as the rule does.

- A stage loses `strength` times the distance of its key from the least one. Jobs below their cap
  and those at or beyond it are compared among themselves; the latter lose `beyond` as well.
- A limit loses `limit_strength` times the square of its distance from the job's cap, in logarithms:
  with the square, a small slope of the network's own scores moves the best limit a little. A job at
  or beyond its cap may hold executors up to its reach.
- The reach of a job is its cap times e^`reach`; without that setting it is the whole cluster, as in
  the rule with `spill`. Stages of a job that holds its reach cannot be chosen where executors may
  idle, and if none is left the free executors idle, as in the rule without `spill`.

Evolution can search three tables of weights, which start at 0. `tilt_prior` changes the rule's
parameters. `tilt_job` (OUTPUTS, TERMS) adds linear terms of a job and of the cluster to the
logarithm of the cap, to the key and to the logarithm of the reach, so that one policy has other
caps in a small cluster than in a large one, or at light and heavy load. `tilt_key` (KEY_TERMS,)
adds terms of a stage to its key. All terms are logarithms or shares, so weights learnt on jobs of
seconds hold for jobs of hours. One unit of a weight is `STEPS` or `UNITS`, which shifts decisions
about as much as one unit of the network's linear terms, so that one step size fits all. Here is the
compiled form, for one observation; `prior_batch.py` has the torch form.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.baselines.remaining_work import (
    LEAST_S,
    TOLERANCE,
    held_elsewhere,
    waiting_jobs,
)
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima.settings import PriorSettings
from loadmaster.models.layers import Array32

SEARCHED = ("scale", "alpha", "share", "stay", "path")  # in `tilt_prior`; scale as its logarithm
STEPS = (0.2, 0.05, 0.1, 0.3, 0.1)  # of each, by one unit of its weight

# Rows of `tilt_job`, and what one unit of a weight adds for a term of 1.
LOG_CAP, KEY, LOG_REACH, OUTPUTS = 0, 1, 2, 3
UNITS = (0.2, 0.2, 0.4)

# Columns of `tilt_job`. Logarithms are less a usual value, divided by their usual spread and kept
# within MOST of 0: beyond what training shows, a term says no more.
MOST = 3.0
ONE = 0
LEFT, USUAL_LEFT, LEFT_SPREAD = 1, 5.0, 2.0  # s of work left
EVEN, USUAL_EVEN, EVEN_SPREAD = 2, 1.0, 1.5  # executors per waiting job
LONGEST, USUAL_PATH, PATH_SPREAD = 3, 3.0, 1.5  # s of the longest critical path
UNPLACED, USUAL_TASKS, TASKS_SPREAD = 4, 3.0, 1.5  # tasks without an executor, and 1
AGE, USUAL_AGE, AGE_SPREAD = 5, 3.0, 2.0  # s since the arrival, and 1
MEAN_LEFT = 6  # s of work left per waiting job, as LEFT
SIZE, USUAL_SIZE, SIZE_SPREAD = 7, 4.0, 1.2  # executors of the cluster
HELD, USUAL_HELD, HELD_SPREAD = 8, 1.0, 1.0  # executors that the job holds elsewhere, and 1
SOURCE = 9  # 1: the free executors belong to the job
LEFT_OF_SOURCE, LEFT_EVEN, LEFT_SQUARE, EVEN_SQUARE = 10, 11, 12, 13  # products
UNKNOWN, LEFT_UNKNOWN = 14, 15  # 1: all stages have one mean duration, so durations are not known
TERMS = 16

# Places in `tilt_key`. Paths, tasks and durations are scaled as above.
OF_PATH = 0  # s of the critical path from the stage on
OF_TASKS = 1  # tasks without an executor, and 1
OF_DURATION, USUAL_DURATION, DURATION_SPREAD = 2, 0.0, 2.0  # s of a task
OF_RUNNING = 3  # tasks that run, and 1, as HELD
OF_HEIGHT = 4  # edges to the job's end, and 1, as HELD
IS_RUNNABLE = 5  # 1: all parents are finished
UNFIT_TOTAL, UNFIT_FREE = 6, 7  # share of all and of the free executors that cannot run it
WORK_SHARE = 8  # of the job's work left
KEY_TERMS = 9

# The encoded prior: these, then `tilt_job` row by row, then `tilt_key`.
STRENGTH, LIMIT_STRENGTH, BEYOND, REACH, LOG_SCALE, ALPHA, SHARE, STAY, PATH = range(9)
FIRST_WEIGHT = 9
FIRST_STAGE_WEIGHT = FIRST_WEIGHT + OUTPUTS * TERMS
Prior = NDArray[np.float64]


class Tilts(NamedTuple):
    """Weights that evolution searches; units are `STEPS` and `UNITS`."""

    prior: Tensor  # (SEARCHED,) changes of the rule's parameters
    job: Tensor  # (OUTPUTS, TERMS)
    key: Tensor  # (KEY_TERMS,)


# Columns of the jobs' ratings; caps and reaches are whole numbers.
RATED_KEY, RATED_CAP, RATED_REACH, RATED_HELD, FIRST_TERM = range(5)
RATINGS = FIRST_TERM + TERMS
Ratings = NDArray[np.float64]  # (jobs, RATINGS)
Floats = NDArray[np.float64]


def rule_parameters(settings: PriorSettings, weights: Tensor) -> Tensor:
    """(SEARCHED,) with 64 bits: those of the settings, changed by the weights; log of the scale."""
    values = {**settings.model_dump(include=set(SEARCHED)), "scale": math.log(settings.scale)}
    changed = zip(SEARCHED, STEPS, weights.double().unbind(), strict=True)
    return torch.stack([values[name] + step * weight for name, step, weight in changed])


def job_weights(weights: Tensor) -> Tensor:
    """(OUTPUTS, TERMS) with 64 bits: what a term of 1 adds."""
    return weights.double() * weights.new_tensor(UNITS, dtype=torch.float64).unsqueeze(1)


def stage_weights(weights: Tensor) -> Tensor:
    """(KEY_TERMS,) with 64 bits: what a term of 1 adds to the key."""
    return weights.double() * UNITS[KEY]


def encode(settings: PriorSettings | None, tilts: Tilts | None) -> Prior:
    """The prior for compiled code; empty: none."""
    if settings is None or tilts is None:
        return np.zeros(0)
    reach = math.inf if settings.reach is None else settings.reach
    given = [settings.strength, settings.limit_strength, settings.beyond, reach]
    parameters = rule_parameters(settings, tilts.prior.cpu()).tolist()
    of_jobs = job_weights(tilts.job.cpu()).flatten().tolist()
    return np.array([*given, *parameters, *of_jobs, *stage_weights(tilts.key.cpu()).tolist()])


@njit_internal
def rate_jobs(view: Observation, prior: Prior, ratings: Ratings) -> None:
    """Fill in key, cap, reach of every job, the executors it holds without the free ones, terms.

    All with 64 bits; numba's float() would keep the 32 of the observation.
    """
    jobs, waiting = int(view.cluster[obs_cols.JOBS]), waiting_jobs(view)
    work_s = 0.0
    for job in range(jobs):
        ratings[job, RATED_CAP] = 0.0
        work_s += view.jobs[job, obs_cols.WORK_LEFT_S]
    stages, shortest, longest = int(view.cluster[obs_cols.STAGES]), np.inf, 0.0
    for row in range(stages):
        mean_s = np.float64(view.stages[row, obs_cols.MEAN_S])
        shortest, longest = min(shortest, mean_s), max(longest, mean_s)
        own = ratings[view.stage_job[row]]  # the place of the cap has the longest path at first
        own[RATED_CAP] = max(own[RATED_CAP], np.float64(view.stages[row, obs_cols.CRITICAL_S]))
    total = np.float64(view.cluster[obs_cols.TOTAL_EXECUTORS])
    log_even, log_total = np.log(total / waiting), np.log(total)
    even, size = _term(log_even, USUAL_EVEN, EVEN_SPREAD), _term(log_total, USUAL_SIZE, SIZE_SPREAD)
    mean_left = _term(np.log(max(work_s / waiting, LEAST_S)), USUAL_LEFT, LEFT_SPREAD)
    unknown = 1.0 if stages > 1 and shortest == longest else 0.0
    for job in range(jobs):
        is_source, held = view.jobs[job, obs_cols.IS_SOURCE] == 1, held_elsewhere(view, job)
        log_left = np.log(max(np.float64(view.jobs[job, obs_cols.WORK_LEFT_S]), LEAST_S))
        path, tasks = max(ratings[job, RATED_CAP], LEAST_S), view.jobs[job, obs_cols.UNPLACED]
        age_s = np.float64(view.jobs[job, obs_cols.AGE_S])
        terms = ratings[job, FIRST_TERM:]
        terms[ONE], terms[EVEN], terms[EVEN_SQUARE] = 1.0, even, even * even
        terms[MEAN_LEFT], terms[SIZE] = mean_left, size
        terms[LEFT] = _term(log_left, USUAL_LEFT, LEFT_SPREAD)
        terms[LONGEST] = _term(np.log(path), USUAL_PATH, PATH_SPREAD)
        terms[UNPLACED] = _term(np.log1p(np.float64(tasks)), USUAL_TASKS, TASKS_SPREAD)
        terms[AGE] = _term(np.log1p(age_s), USUAL_AGE, AGE_SPREAD)
        terms[HELD] = _term(np.log1p(np.float64(held)), USUAL_HELD, HELD_SPREAD)
        terms[SOURCE] = 1.0 if is_source else 0.0
        terms[LEFT_OF_SOURCE] = terms[SOURCE] * terms[LEFT]
        terms[LEFT_EVEN] = terms[LEFT] * terms[EVEN]
        terms[LEFT_SQUARE] = terms[LEFT] * terms[LEFT]
        terms[UNKNOWN], terms[LEFT_UNKNOWN] = unknown, unknown * terms[LEFT]
        log_cap = prior[LOG_SCALE] + prior[ALPHA] * log_left + prior[SHARE] * log_even
        key, log_reach = log_left - prior[STAY] * terms[SOURCE], prior[REACH]
        for term in range(TERMS):
            log_cap += prior[FIRST_WEIGHT + LOG_CAP * TERMS + term] * terms[term]
            key += prior[FIRST_WEIGHT + KEY * TERMS + term] * terms[term]
            log_reach += prior[FIRST_WEIGHT + LOG_REACH * TERMS + term] * terms[term]
        ratings[job, RATED_KEY] = key
        ratings[job, RATED_CAP] = _whole(log_cap, log_total)
        ratings[job, RATED_REACH] = _whole(log_cap + max(log_reach, 0.0), log_total)
        ratings[job, RATED_HELD] = held


@njit_internal
def _term(log: float, usual: float, spread: float) -> float:
    return min(max((log - usual) / spread, -MOST), MOST)


@njit_internal
def _whole(log_cap: float, log_total: float) -> float:
    """The executors of a cap, rounded up, at most those of the cluster."""
    return float(np.ceil(np.exp(min(log_cap, log_total)) - TOLERANCE))


@njit_internal
def drop_beyond_reach(view: Observation, ratings: Ratings) -> bool:
    """Exclude the stages of jobs that hold their reach, where idling is allowed; is one left?"""
    if view.schedulable[len(view.schedulable) - 1] == 0:
        return True
    left = False
    for row in range(int(view.cluster[obs_cols.STAGES])):
        job = view.stage_job[row]
        if ratings[job, RATED_REACH] <= ratings[job, RATED_HELD]:
            view.schedulable[row] = 0
        left |= view.schedulable[row] == 1
    return left


@njit_internal
def stage_key(view: Observation, row: int, prior: Prior, ratings: Ratings) -> float:
    """What the stage is ordered by, the least first."""
    stage, job, cluster = view.stages[row], view.stage_job[row], view.cluster
    weights = prior[FIRST_STAGE_WEIGHT:]
    log_path = np.log(max(np.float64(stage[obs_cols.CRITICAL_S]), LEAST_S))
    log_tasks = np.log1p(np.float64(stage[obs_cols.UNASSIGNED]))
    mean_s = np.float64(stage[obs_cols.MEAN_S])
    log_running = np.log1p(np.float64(stage[obs_cols.RUNNING]))
    log_height = np.log1p(np.float64(stage[obs_cols.HEIGHT]))
    free = max(np.float64(cluster[obs_cols.FREE_EXECUTORS]), 1.0)
    total = np.float64(cluster[obs_cols.TOTAL_EXECUTORS])
    left_s = max(np.float64(view.jobs[job, obs_cols.WORK_LEFT_S]), LEAST_S)
    share = min(np.float64(stage[obs_cols.UNSTARTED]) * mean_s / left_s, 1.0)
    key = ratings[job, RATED_KEY] - prior[PATH] * log_path
    key += weights[OF_PATH] * _term(log_path, USUAL_PATH, PATH_SPREAD)
    key += weights[OF_TASKS] * _term(log_tasks, USUAL_TASKS, TASKS_SPREAD)
    log_mean = np.log(max(mean_s, LEAST_S))
    key += weights[OF_DURATION] * _term(log_mean, USUAL_DURATION, DURATION_SPREAD)
    key += weights[OF_RUNNING] * _term(log_running, USUAL_HELD, HELD_SPREAD)
    key += weights[OF_HEIGHT] * _term(log_height, USUAL_HELD, HELD_SPREAD)
    key += weights[IS_RUNNABLE] * np.float64(stage[obs_cols.RUNNABLE])
    key += weights[UNFIT_TOTAL] * (1.0 - np.float64(stage[obs_cols.FITTING_TOTAL]) / total)
    key += weights[UNFIT_FREE] * (1.0 - np.float64(stage[obs_cols.FITTING]) / free)
    return float(key + weights[WORK_SHARE] * share)


@njit_internal
def add_stage_prior(
    view: Observation, prior: Prior, ratings: Ratings, keys: Floats, scores: Array32
) -> None:
    """Add the prior to the `scores` of the schedulable stages, which are in the order of rows.

    `keys` is a buffer of as many numbers.
    """
    least, least_beyond = np.inf, np.inf
    for adding in range(2):  # the least keys come first
        legal = 0
        for row in range(int(view.cluster[obs_cols.STAGES])):
            if view.schedulable[row] == 0:
                continue
            own = ratings[view.stage_job[row]]
            beyond = own[RATED_CAP] <= own[RATED_HELD]
            if adding == 1:
                loss = prior[STRENGTH] * (keys[legal] - (least_beyond if beyond else least))
                scores[legal] -= np.float32(loss + (prior[BEYOND] if beyond else 0.0))
            else:
                keys[legal] = stage_key(view, row, prior, ratings)
                if beyond:
                    least_beyond = min(least_beyond, keys[legal])
                else:
                    least = min(least, keys[legal])
            legal += 1


@njit_internal
def log_target(view: Observation, row: int, ratings: Ratings) -> float:
    """Logarithm of the limit that the rule gives the job of the stage in `row`."""
    own = ratings[view.stage_job[row]]
    beyond = own[RATED_CAP] <= own[RATED_HELD]
    return float(np.log(own[RATED_REACH] if beyond else own[RATED_CAP]))


@njit_internal
def limit_loss(prior: Prior, target: float, level: int) -> np.float32:
    """What a limit loses by its distance from `log_target`."""
    return np.float32(prior[LIMIT_STRENGTH] * (np.log(float(level)) - target) ** 2)
