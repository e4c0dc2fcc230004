"""The jobs of one episode, in flat arrays ready for compiled code."""

from __future__ import annotations

from typing import NamedTuple

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
