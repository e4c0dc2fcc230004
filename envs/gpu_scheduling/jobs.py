"""The jobs of one episode, in flat arrays ready for compiled code, and where they come from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ANY_TYPE = -1  # the job runs on GPUs of any type


class Jobs(NamedTuple):
    """N jobs in the order of (arrival, id). Resources are in percent, as in `Cluster`."""

    arrival_s: NDArray[np.float64]  # (N,) never falls
    duration_s: NDArray[np.float64]  # (N,) of the whole job, at speed 1 and undisturbed
    instances: NDArray[np.int64]  # (N,) the gang: all of them run, or none
    gpu: NDArray[np.int64]  # (N,) per instance; 50 is half a GPU
    cpu: NDArray[np.int64]  # (N,) per instance; 100 is one core
    gpu_type: NDArray[np.int64]  # (N,) place in `type_names`, or ANY_TYPE
    comm: NDArray[np.float64]  # (N,) in [0, 1]: share of its time the gang spends communicating
    user: NDArray[np.int64]  # (N,)
    job_id: NDArray[np.int64]  # (N,) as the workload numbers them


def select_jobs(jobs: Jobs, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Jobs:
    """Those jobs alone, in that order."""
    return Jobs._make(column[rows] for column in jobs)


def gpu_seconds(jobs: Jobs) -> NDArray[np.float64]:
    """(N,) What each job needs of whole GPUs at speed 1."""
    return jobs.duration_s * jobs.instances * (jobs.gpu / 100)


class Workload(Protocol):
    """A source of jobs."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...  # one line a reader of its figures should know
    @property
    def size(self) -> int | None: ...  # how many jobs it has; None: as many as are asked for
    @property
    def mean_gpu_s(self) -> float: ...  # GPU seconds of a job at speed 1, on average
    @property
    def keeps_time(self) -> bool: ...  # arrivals are in seconds; False: only their rhythm counts

    def draw(self, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
        """`count` jobs with arrivals of the source's own, consecutive ones or any."""
        ...
