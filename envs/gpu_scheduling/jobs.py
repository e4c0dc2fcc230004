"""Jobs of an episode as arrays for compiled code, and the interface of workloads."""

from __future__ import annotations

from typing import NamedTuple, Protocol

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
    gpu_type: NDArray[np.int64]  # (N,) index in `type_names`, or ANY_TYPE
    comm: NDArray[np.float64]  # (N,) in [0, 1]: share of its time the gang communicates
    user: NDArray[np.int64]  # (N,)
    job_id: NDArray[np.int64]  # (N,) id in the workload


def select_jobs(jobs: Jobs, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Jobs:
    return Jobs._make(column[rows] for column in jobs)


def gpu_seconds(jobs: Jobs) -> NDArray[np.float64]:
    """(N,) Whole GPUs times seconds that each job needs at speed 1."""
    return jobs.duration_s * jobs.instances * (jobs.gpu / WHOLE)


class Workload(Protocol):
    """A source of jobs."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...  # one line, for reports
    @property
    def size(self) -> int | None: ...  # number of jobs; None: unlimited
    @property
    def mean_gpu_s(self) -> float: ...  # mean GPU seconds of a job at speed 1
    @property
    def keeps_time(self) -> bool: ...  # False: arrivals are scaled to the load

    def draw(self, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
        """Draw `count` jobs with the workload's own arrivals: consecutive ones or a sample."""
        ...
