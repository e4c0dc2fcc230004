"""Network inputs: an observation in domain units scaled to numbers of about one.

Decima's paper gives a stage five inputs: executors at its job, whether those are the free ones, the
number of free executors, work left and tasks left. The authors' slides add the task duration, the
executors at the stage and whether it can start now. A job has the first three and its work.
Quantities that differ a thousandfold also enter as logarithms: a job's work, the longest path
ahead, the executors of a job and the number of jobs. Two inputs matter where executors differ: how
many of the free ones could run the stage, and which share of the cluster never could.

The compiled network computes the same inputs in `compiled.read_inputs`.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loadmaster.envs.dag_scheduling import observation as obs_cols

STAGE_INPUTS = 14
JOB_INPUTS = 7
LIMIT_INPUTS = 2
SHARED = 6  # inputs of a job that each of its stages has as well
STAGE_TERMS = STAGE_INPUTS + SHARED
LIMIT_TERMS = LIMIT_INPUTS * (1 + JOB_INPUTS)

PER_EXECUTOR = 1 / 20
PER_TASK = 1 / 200
PER_WORK_S = 1 / 100
PER_JOB_WORK_S = 1 / 1000
PER_LOG_S = 1 / 4
PER_LOG_COUNT = 1 / 2
PER_DURATION_S = 1 / 2
SOURCE, NOT_SOURCE = 2.0, -2.0
IS_SOURCE, LONGEST_PATH = 1, 9  # indices of inputs


class StageBatch(NamedTuple):
    """The stages of B observations without padding: R rows, J jobs, K edges in all.

    Rows are sorted by height, leaves first.
    """

    inputs: Tensor  # (R, STAGE_INPUTS)
    height: Tensor  # (R,)
    schedulable: Tensor  # (R,) bool
    row_job: Tensor  # (R,) index of its job
    row_observation: Tensor  # (R,) index of its observation
    row_place: Tensor  # (R,) its row in that observation
    job_inputs: Tensor  # (J, JOB_INPUTS)
    job_observation: Tensor  # (J,)
    first_job: Tensor  # (B,) first job of each observation
    parent: Tensor  # (K,) rows
    child: Tensor  # (K,) rows
    # In units of the observation.
    stages: Tensor  # (R, STAGE_FEATURES)
    jobs: Tensor  # (J, JOB_FEATURES)
    cluster: Tensor  # (B, CLUSTER_FEATURES)


def pack(observation: dict[str, Tensor]) -> StageBatch:
    """Remove the padding of a batch of observations."""
    cluster = observation["cluster"]
    stage_counts = cluster[:, obs_cols.STAGES].long()  # (B,)
    # An observation after the end of an episode has no jobs: it gets one blank row.
    job_counts = cluster[:, obs_cols.JOBS].long().clamp(min=1)
    row_observation, row_place = _rows_in_use(stage_counts)
    job_observation, job_place = _rows_in_use(job_counts)
    edge_observation, edge_place = _rows_in_use(cluster[:, obs_cols.EDGES].long())
    height = observation["stages"][row_observation, row_place, obs_cols.HEIGHT].long()
    order = stable_order(height)
    row_observation, row_place = row_observation[order], row_place[order]
    new_row = torch.empty_like(order)
    new_row[order] = torch.arange(len(order), device=order.device)
    first_row = stage_counts.cumsum(0) - stage_counts
    first_job = job_counts.cumsum(0) - job_counts
    ends = _gather(observation["edges"], edge_observation, edge_place)
    ends = new_row[ends + first_row[edge_observation, None]]
    row_job = _gather(observation["stage_job"], row_observation, row_place)
    row_job = row_job + first_job[row_observation]
    jobs = _gather(observation["jobs"], job_observation, job_place)
    job_inputs = job_inputs_of(jobs, cluster.index_select(0, job_observation))
    stages = _gather(observation["stages"], row_observation, row_place)
    total = cluster[row_observation, obs_cols.TOTAL_EXECUTORS]
    return StageBatch(
        inputs=stage_inputs_of(stages, job_inputs.index_select(0, row_job), total),
        height=height[order],
        schedulable=_gather(observation["schedulable"], row_observation, row_place) > 0,
        row_job=row_job,
        row_observation=row_observation,
        row_place=row_place,
        job_inputs=job_inputs,
        job_observation=job_observation,
        first_job=first_job,
        parent=ends[:, 0],
        child=ends[:, 1],
        stages=stages,
        jobs=jobs,
        cluster=cluster,
    )


def stable_order(keys: Tensor) -> Tensor:
    """Stable argsort of small whole numbers."""
    if keys.device.type != "cpu":
        return torch.argsort(keys, stable=True)
    numbers = keys.numpy()
    if numbers.max(initial=0) <= np.iinfo(np.int16).max:
        numbers = numbers.astype(np.int16)  # numpy sorts 16 bits by radix, 7 times faster
    return torch.from_numpy(np.argsort(numbers, kind="stable"))


def _rows_in_use(counts: Tensor) -> tuple[Tensor, Tensor]:
    """(observation, row) of the first `counts` rows of every observation."""
    each = torch.arange(len(counts), device=counts.device)
    owner = torch.repeat_interleave(each, counts)
    starts = counts.cumsum(0) - counts
    return owner, torch.arange(len(owner), device=counts.device) - starts[owner]


def _gather(table: Tensor, observation: Tensor, row: Tensor) -> Tensor:
    """table[observation, row], copying whole rows."""
    return table.flatten(0, 1).index_select(0, observation * table.shape[1] + row)


def job_inputs_of(job: Tensor, cluster: Tensor) -> Tensor:
    held, work = job[:, obs_cols.EXECUTORS], job[:, obs_cols.WORK_LEFT_S]
    inputs = [
        held * PER_EXECUTOR,
        job[:, obs_cols.IS_SOURCE] * (SOURCE - NOT_SOURCE) + NOT_SOURCE,
        cluster[:, obs_cols.FREE_EXECUTORS] * PER_EXECUTOR,
        torch.log1p(work) * PER_LOG_S,
        torch.log1p(held) * PER_LOG_COUNT,
        torch.log1p(cluster[:, obs_cols.JOBS]) * PER_LOG_COUNT,
        work * PER_JOB_WORK_S,
    ]
    return torch.stack(inputs, dim=1)


def limit_inputs(level: Tensor, total: Tensor) -> Tensor:
    """(L, LIMIT_INPUTS) of limits in clusters of `total` executors."""
    return torch.stack([level / total, torch.log1p(level.float()) * PER_LOG_COUNT], dim=1)


def stage_terms(inputs: Tensor) -> Tensor:
    """(R, STAGE_TERMS): the inputs, and the shared ones times the sign of the source."""
    source = inputs[:, IS_SOURCE, None]
    return torch.cat([inputs, source * inputs[:, :SHARED]], dim=1)


def limit_terms(of_level: Tensor, job_inputs: Tensor) -> Tensor:
    """(L, LIMIT_TERMS): each input of a limit alone, and times each input of the job."""
    job = torch.cat([job_inputs.new_ones(len(job_inputs), 1), job_inputs], dim=1)
    return (of_level[:, :, None] * job[:, None, :]).flatten(1)


def stage_inputs_of(stage: Tensor, job: Tensor, total: Tensor) -> Tensor:
    unstarted = stage[:, obs_cols.UNSTARTED]
    duration = stage[:, obs_cols.MEAN_S]
    own = [
        unstarted * duration * PER_WORK_S,
        unstarted * PER_TASK,
        duration * PER_DURATION_S,
        torch.log1p(stage[:, obs_cols.CRITICAL_S]) * PER_LOG_S,
        stage[:, obs_cols.RUNNING] * PER_EXECUTOR,
        stage[:, obs_cols.RUNNABLE],
        stage[:, obs_cols.FITTING] * PER_EXECUTOR,
        1 - stage[:, obs_cols.FITTING_TOTAL] / total,
    ]
    return torch.cat([job[:, :SHARED], torch.stack(own, dim=1)], dim=1)
