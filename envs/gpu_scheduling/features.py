"""Columns of the observation's job and machine tables.

Features are of order one; quantities that span orders of magnitude are logarithmic.
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.keys import LAS_THRESHOLD_GPU_S

# Columns of `jobs`.
INSTANCES = 0  # log of the number of instances
GPUS = 1  # log(1 + GPUs) of one instance
CORES = 2  # log(1 + cores) of one instance
GPU_SHARE = 3  # share of all GPUs that the gang requests
CPU_SHARE = 4  # likewise of all cores
SHARES = 5  # 1: an instance requests a fraction of a GPU
COMM = 6  # share of its time the gang communicates
WAITED = 7  # log(1 + minutes) since its arrival
STARTS = 8  # 1: the whole gang fits now
RUN = 9  # log(1 + minutes) of its duration at speed 1; 0 if durations are unknown
USER_SHARE = 10  # the larger of its user's shares of all GPUs and all cores
USER_DONE = 11  # log(1 + finished jobs) of its user
USER_RUN = 12  # mean log(1 + minutes) of their run times; 0 without finished jobs
RUNNING = 13  # 1: it is running
RAN = 14  # log(1 + minutes) on machines so far
ATTAINED = 15  # log(1 + GPU minutes) on machines so far
BEYOND = 16  # excess of ATTAINED over the threshold of 2D-LAS
JOB_FEATURES = 17

# Columns of `machines`.
FREE_GPU = 0  # share of its GPUs
FREE_CPU = 1  # share of its cores
FREE_GPUS = 2  # log(1 + free GPUs)
FREE_CORES = 3  # log(1 + free cores)
UTILISATION = 4  # work done by its GPUs, relative to their full speed
JOBS = 5  # log(1 + jobs) on it
SHARERS = 6  # instances with a fraction of a GPU, per GPU
KEPT = 7  # share of their speed that these keep
PRICE = 8  # dollars per hour of one GPU
SPEED = 9  # of one GPU, relative to a V100
MACHINE_FEATURES = 10

THRESHOLD = float(np.log1p(LAS_THRESHOLD_GPU_S / 60))


def static_features(cluster: Cluster, jobs: Jobs, durations: bool) -> NDArray[np.float32]:
    """(N, JOB_FEATURES) Features that never change; the other columns are 0."""
    table = np.zeros((len(jobs.arrival_s), JOB_FEATURES), np.float32)
    table[:, INSTANCES] = np.log(jobs.instances)
    table[:, GPUS] = np.log1p(jobs.gpu / WHOLE)
    table[:, CORES] = np.log1p(jobs.cpu / WHOLE)
    table[:, GPU_SHARE] = jobs.instances * jobs.gpu / cluster.gpu_capacity.sum()
    table[:, CPU_SHARE] = jobs.instances * jobs.cpu / cluster.cpu_capacity.sum()
    table[:, SHARES] = jobs.gpu % WHOLE != 0
    table[:, COMM] = jobs.comm
    if durations:
        table[:, RUN] = np.log1p(jobs.duration_s / 60)
    return table
