"""From an observation in the domain's units to numbers of about one, for network and kernel alike.

Decima's own five features of a stage are executors at the job, whether they are the free ones,
the free ones, work left and tasks left; its authors' slides add the task's duration, the
executors at the stage and whether it could start now. A job has the first three, and its work.
What differs a thousandfold comes as a logarithm as well: the job's work, since which is the
shorter of two is the first thing a scheduler asks; the longest path ahead; and the executors a job
has and the jobs there are, since under heavy load a share is one executor or three, not thirty.
Two more matter where executors differ: how many of the free ones could run the stage, and what
share of the cluster never could, so that a scarce executor can be kept for those who need it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loadmaster.envs.dag_scheduling import observation as seen

# In what order messages travel: level by level, leaves first, every edge once.
#
# All stages of one height, in all graphs of a batch, hear and speak at the same time. Edges are
# sorted beforehand, so that a level costs a few operations on what belongs to it and none on the
# rest.


class Sweep(NamedTuple):
    """L levels; rows of a level stand together, and are numbered within it."""

    rows: list[int]  # (L,) how many each level has
    speakers: tuple[Tensor, ...]  # (L,) by child's level: the children, by their parents' level
    sent: list[list[int]]  # (L, L) how many edges lead from one level to another
    listeners: tuple[Tensor, ...]  # (L,) by parent's level: the parents, by their children's level


def plan_sweep(height: Tensor, parent: Tensor, child: Tensor) -> Sweep:
    """From the rows' heights (never falling) and the edges between them."""
    counts = torch.bincount(height, minlength=1)  # (L,)
    levels = len(counts)
    within = torch.arange(len(height), device=height.device) - (counts.cumsum(0) - counts)[height]
    above, below = height[parent], height[child]
    ways = below * levels + above
    sent = torch.bincount(ways, minlength=levels * levels).view(levels, levels)
    by_speaker = stable_order(ways)
    by_listener = stable_order(above * levels + below)
    return Sweep(
        rows=counts.tolist(),
        speakers=torch.split(within[child[by_speaker]], sent.sum(1).tolist()),
        sent=sent.tolist(),
        listeners=torch.split(within[parent[by_listener]], sent.sum(0).tolist()),
    )


def stable_order(keys: Tensor) -> Tensor:
    """What sorts small whole numbers, those that are equal in the order they came."""
    if keys.device.type != "cpu":
        return torch.argsort(keys, stable=True)
    numbers = keys.numpy()
    if numbers.max(initial=0) <= np.iinfo(np.int16).max:
        numbers = numbers.astype(np.int16)  # numpy then counts instead of comparing: 7 times faster
    return torch.from_numpy(np.argsort(numbers, kind="stable"))


STAGE_INPUTS = 14
JOB_INPUTS = 7
LIMIT_INPUTS = 2
SHARED = 6  # of a job's inputs, that each of its stages has as well
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
IS_SOURCE = 1  # which input says so


class StageBatch(NamedTuple):
    """The stages of B observations without their padding: R rows, J jobs, K edges in all.

    Rows come leaves first: no row is higher than one that follows it.
    """

    inputs: Tensor  # (R, STAGE_INPUTS)
    height: Tensor  # (R,)
    schedulable: Tensor  # (R,) bool
    row_job: Tensor  # (R,) which of the J jobs
    row_observation: Tensor  # (R,) which of the B observations
    row_place: Tensor  # (R,) its row within that observation
    job_inputs: Tensor  # (J, JOB_INPUTS)
    job_observation: Tensor  # (J,)
    first_job: Tensor  # (B,) where an observation's jobs begin
    parent: Tensor  # (K,) rows
    child: Tensor  # (K,) rows


def pack(observation: dict[str, Tensor]) -> StageBatch:
    """Drop the padding of a batch: what one observation holds then costs nothing in another."""
    cluster = observation["cluster"]
    stage_counts = cluster[:, seen.STAGES].long()  # (B,)
    # Where an episode is over there are no jobs; one blank row keeps such a moment in its place.
    job_counts = cluster[:, seen.JOBS].long().clamp(min=1)
    row_observation, row_place = _rows_in_use(stage_counts)
    job_observation, job_place = _rows_in_use(job_counts)
    edge_observation, edge_place = _rows_in_use(cluster[:, seen.EDGES].long())
    height = observation["stages"][row_observation, row_place, seen.HEIGHT].long()
    order = stable_order(height)
    row_observation, row_place = row_observation[order], row_place[order]
    new_row = torch.empty_like(order)
    new_row[order] = torch.arange(len(order), device=order.device)
    first_row = stage_counts.cumsum(0) - stage_counts
    first_job = job_counts.cumsum(0) - job_counts
    ends = _taken(observation["edges"], edge_observation, edge_place)
    ends = new_row[ends + first_row[edge_observation, None]]
    row_job = _taken(observation["stage_job"], row_observation, row_place)
    row_job = row_job + first_job[row_observation]
    jobs = _taken(observation["jobs"], job_observation, job_place)
    job_inputs = _job_inputs(jobs, cluster.index_select(0, job_observation))
    stages = _taken(observation["stages"], row_observation, row_place)
    total = cluster[row_observation, seen.TOTAL_EXECUTORS]
    return StageBatch(
        inputs=_stage_inputs(stages, job_inputs.index_select(0, row_job), total),
        height=height[order],
        schedulable=_taken(observation["schedulable"], row_observation, row_place) > 0,
        row_job=row_job,
        row_observation=row_observation,
        row_place=row_place,
        job_inputs=job_inputs,
        job_observation=job_observation,
        first_job=first_job,
        parent=ends[:, 0],
        child=ends[:, 1],
    )


def _rows_in_use(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For tables of which the first `counts` rows are in use: (observation, row) of each."""
    each = torch.arange(len(counts), device=counts.device)
    owner = torch.repeat_interleave(each, counts)
    starts = counts.cumsum(0) - counts
    return owner, torch.arange(len(owner), device=counts.device) - starts[owner]


def _taken(table: Tensor, observation: Tensor, row: Tensor) -> Tensor:
    """table[observation, row], row by row instead of number by number."""
    return table.flatten(0, 1).index_select(0, observation * table.shape[1] + row)


def _job_inputs(job: Tensor, cluster: Tensor) -> Tensor:
    held, work = job[:, seen.EXECUTORS], job[:, seen.WORK_LEFT_S]
    inputs = [
        held * PER_EXECUTOR,
        job[:, seen.IS_SOURCE] * (SOURCE - NOT_SOURCE) + NOT_SOURCE,
        cluster[:, seen.FREE_EXECUTORS] * PER_EXECUTOR,
        torch.log1p(work) * PER_LOG_S,
        torch.log1p(held) * PER_LOG_COUNT,
        torch.log1p(cluster[:, seen.JOBS]) * PER_LOG_COUNT,
        work * PER_JOB_WORK_S,
    ]
    return torch.stack(inputs, dim=1)


def limit_inputs(level: Tensor, total: Tensor) -> Tensor:
    """(L, LIMIT_INPUTS) of limits for a cluster of so many executors."""
    return torch.stack([level / total, torch.log1p(level.float()) * PER_LOG_COUNT], dim=1)


def stage_terms(inputs: Tensor) -> Tensor:
    """(R, STAGE_TERMS): the inputs, and the shared ones once more with the sign of the source."""
    source = inputs[:, IS_SOURCE, None]
    return torch.cat([inputs, source * inputs[:, :SHARED]], dim=1)


def limit_terms(of_level: Tensor, job_inputs: Tensor) -> Tensor:
    """(L, LIMIT_TERMS): each input of a level by itself, and times each of the job's."""
    job = torch.cat([job_inputs.new_ones(len(job_inputs), 1), job_inputs], dim=1)
    return (of_level[:, :, None] * job[:, None, :]).flatten(1)


def _stage_inputs(stage: Tensor, job: Tensor, total: Tensor) -> Tensor:
    unstarted = stage[:, seen.UNSTARTED]
    duration = stage[:, seen.MEAN_S]
    own = [
        unstarted * duration * PER_WORK_S,
        unstarted * PER_TASK,
        duration * PER_DURATION_S,
        torch.log1p(stage[:, seen.CRITICAL_S]) * PER_LOG_S,
        stage[:, seen.RUNNING] * PER_EXECUTOR,
        stage[:, seen.RUNNABLE],
        stage[:, seen.FITTING] * PER_EXECUTOR,
        1 - stage[:, seen.ABLE] / total,
    ]
    return torch.cat([job[:, :SHARED], torch.stack(own, dim=1)], dim=1)
