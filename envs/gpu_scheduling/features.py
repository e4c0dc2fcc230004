"""What an observation tells of a job and of a machine, number by number.

All are of about one: what differs a thousandfold is told as a logarithm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.queues import LAS_THRESHOLD_GPU_S

# Columns of `jobs`.
INSTANCES = 0  # log of the gang's size
GPUS = 1  # log(1 + GPUs) of one instance
CORES = 2  # log(1 + cores) of one instance
GPU_SHARE = 3  # of all GPUs, for the whole gang
CPU_SHARE = 4  # of all cores
SHARES = 5  # 1: an instance shares a GPU with others, and is slowed down by them
COMM = 6  # share of its time the gang spends communicating
WAITED = 7  # log(1 + minutes) since it arrived
STARTS = 8  # 1: the whole gang fits now
RUN = 9  # log(1 + minutes) that it will run at speed 1; 0 where durations are unknown
USER_SHARE = 10  # the larger of its user's shares of all GPUs and all cores
USER_DONE = 11  # log(1 + finished jobs) of its user
USER_RUN = 12  # mean log(1 + minutes) that those ran; 0 where there are none
RUNNING = 13  # 1: it is on machines now
RAN = 14  # log(1 + minutes) that it was on machines up to now
ATTAINED = 15  # log(1 + minutes) of that times its GPUs
BEYOND = 16  # how far the last is past the threshold of 2D-LAS; 0 below it
JOB_FEATURES = 17

# Columns of `machines`.
FREE_GPU = 0  # share of its GPUs
FREE_CPU = 1  # share of its cores
FREE_GPUS = 2  # log(1 + free GPUs)
FREE_CORES = 3  # log(1 + free cores)
UTILISATION = 4  # what its GPUs get done, of what they could undisturbed
JOBS = 5  # log(1 + jobs) that run there
SHARERS = 6  # instances that share a GPU, for each GPU
KEPT = 7  # what sharers keep of their speed
PRICE = 8  # dollars an hour, of one GPU
SPEED = 9  # of one GPU; 1 is a V100
MACHINE_FEATURES = 10

THRESHOLD = float(np.log1p(LAS_THRESHOLD_GPU_S / 60))


def lasting_features(cluster: Cluster, jobs: Jobs, durations: bool) -> NDArray[np.float32]:
    """(N, JOB_FEATURES) of all jobs what never changes; the other columns are 0."""
    told = np.zeros((len(jobs.arrival_s), JOB_FEATURES), np.float32)
    told[:, INSTANCES] = np.log(jobs.instances)
    told[:, GPUS] = np.log1p(jobs.gpu / WHOLE)
    told[:, CORES] = np.log1p(jobs.cpu / WHOLE)
    told[:, GPU_SHARE] = jobs.instances * jobs.gpu / cluster.gpu_capacity.sum()
    told[:, CPU_SHARE] = jobs.instances * jobs.cpu / cluster.cpu_capacity.sum()
    told[:, SHARES] = jobs.gpu % WHOLE != 0
    told[:, COMM] = jobs.comm
    if durations:
        told[:, RUN] = np.log1p(jobs.duration_s / 60)
    return told
