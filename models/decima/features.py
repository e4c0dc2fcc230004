"""From an observation in the domain's units to numbers of about one, for network and kernel alike.

Decima's own five features of a stage are executors at the job, whether they are the free ones,
the free ones, work left and tasks left; its authors' slides add the task's duration, the
executors at the stage and whether it could start now. A job has the first three, and its work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.envs.dag_scheduling import observation as seen

STAGE_INPUTS = 8
JOB_INPUTS = 4

PER_EXECUTOR = 1 / 20
PER_TASK = 1 / 200
PER_WORK_S = 1 / 100
PER_JOB_WORK_S = 1 / 1000
PER_DURATION_S = 1 / 2
SOURCE, NOT_SOURCE = 2.0, -2.0


class StageBatch(NamedTuple):
    """The stages of B observations without their padding: R rows, J jobs, K edges in all."""

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
    stages, jobs, cluster = observation["stages"], observation["jobs"], observation["cluster"]
    stage_counts = cluster[:, seen.STAGES].long()  # (B,)
    job_counts = cluster[:, seen.JOBS].long()
    edge_counts = cluster[:, seen.EDGES].long()
    in_use = _in_use(stage_counts, stages.shape[1])  # (B, N)
    job_in_use = _in_use(job_counts, jobs.shape[1])  # (B, M)
    edge_in_use = _in_use(edge_counts, observation["edges"].shape[1])  # (B, K)
    first_row, first_job = _starts(stage_counts), _starts(job_counts)
    row_observation, row_place = in_use.nonzero(as_tuple=True)
    job_observation, _ = job_in_use.nonzero(as_tuple=True)
    edge_observation, _ = edge_in_use.nonzero(as_tuple=True)
    ends = observation["edges"][edge_in_use].long() + first_row[edge_observation, None]
    row_job = observation["stage_job"][in_use].long() + first_job[row_observation]
    free = cluster[:, seen.FREE_EXECUTORS]
    job_rows = jobs[job_in_use]
    job_inputs = _job_inputs(job_rows, free[job_observation])
    rows = stages[in_use]
    return StageBatch(
        inputs=_stage_inputs(rows, job_inputs[row_job]),
        height=rows[:, seen.HEIGHT].long(),
        schedulable=observation["schedulable"][:, :-1][in_use] > 0,
        row_job=row_job,
        row_observation=row_observation,
        row_place=row_place,
        job_inputs=job_inputs,
        job_observation=job_observation,
        first_job=first_job,
        parent=ends[:, 0],
        child=ends[:, 1],
    )


def _in_use(counts: Tensor, size: int) -> Tensor:
    return torch.arange(size, device=counts.device) < counts[:, None]


def _starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


def _job_inputs(job: Tensor, free: Tensor) -> Tensor:
    source = job[:, seen.IS_SOURCE] * (SOURCE - NOT_SOURCE) + NOT_SOURCE
    held = job[:, seen.EXECUTORS] * PER_EXECUTOR
    work = job[:, seen.WORK_LEFT_S] * PER_JOB_WORK_S
    return torch.stack([held, source, free * PER_EXECUTOR, work], dim=1)


def _stage_inputs(stage: Tensor, job: Tensor) -> Tensor:
    unstarted = stage[:, seen.UNSTARTED]
    duration = stage[:, seen.MEAN_S]
    own = [
        unstarted * duration * PER_WORK_S,
        unstarted * PER_TASK,
        duration * PER_DURATION_S,
        stage[:, seen.RUNNING] * PER_EXECUTOR,
        stage[:, seen.RUNNABLE],
    ]
    return torch.cat([job[:, :3], torch.stack(own, dim=1)], dim=1)
