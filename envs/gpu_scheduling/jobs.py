"""Jobs of an episode as arrays for compiled code, and their sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WHOLE = 100  # resources are integers, in percent of one GPU or one core
ANY_TYPE = -1  # the job runs on GPUs of any type


class Jobs(NamedTuple):
    """N jobs in the order of (arrival, id)."""

    arrival_s: NDArray[np.float64]  # (N,) non-decreasing
    duration_s: NDArray[np.float64]  # (N,) of the whole job at speed 1
    instances: NDArray[np.int64]  # (N,) size of the gang: all instances run, or none
    gpu: NDArray[np.int64]  # (N,) percent per instance; 50 is half a GPU
    cpu: NDArray[np.int64]  # (N,) percent per instance; 100 is one core
    gpu_type: NDArray[np.int64]  # (N,) as in `Cluster.gpu_type`, or ANY_TYPE
    comm: NDArray[np.float64]  # (N,) in [0, 1]: share of its time the gang communicates
    user: NDArray[np.int64]  # (N,)
    job_id: NDArray[np.int64]  # (N,) id in the workload


def select_jobs(jobs: Jobs, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Jobs:
    return Jobs._make(column[rows] for column in jobs)


def gpu_seconds(jobs: Jobs) -> NDArray[np.float64]:
    """(N,) Whole GPUs times seconds that each job needs at speed 1."""
    return jobs.duration_s * jobs.instances * (jobs.gpu / WHOLE)


@dataclass(frozen=True)
class Workload:
    """A source of jobs.

    `draw` takes a number of jobs, whether they are consecutive or a sample, and a generator; the
    jobs have the workload's own arrivals.
    """

    name: str
    description: str  # one line, for reports
    draw: Callable[[int, bool, np.random.Generator], Jobs]
    mean_gpu_s: float  # mean GPU seconds of a job at speed 1
    size: int | None = None  # number of jobs; None: unlimited
    keeps_time: bool = True  # False: arrivals are scaled to the load
