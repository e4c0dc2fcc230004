"""Gaussian process of hidden speeds: their posterior after the measured progress of running jobs.

The log of a job's speed on a machine, relative to the nominal one, is a sum of three components:
the job's class on the GPU type, which is constant, the machine, and its rack, which drift. Their
drift is an Ornstein-Uhlenbeck process, hence Markov, so a Kalman filter computes the posterior
exactly (Hartikainen and Särkkä, MLSP 2010). A gang is as slow as its slowest instance: a
measurement counts for the machine that is expected to be the slowest.
"""

import numpy as np

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.slowdown import gang_speed, instance_speed
from loadmaster.envs.gpu_scheduling.state import NONE, SimState

# Prior standard deviations of log speeds, and the time constant of the drift: assumptions of the
# rule, whatever the settings of the environment are.
CLASS_STD, MACHINE_STD, RACK_STD, MEMORY_S = 0.5, 0.25, 0.15, 21_600.0
# Standard deviations of a job's own deviation, alone on its GPU and sharing it. It lasts, so that
# INDEPENDENT_S of measurements count as one.
ALONE_STD, SHARED_STD, INDEPENDENT_S = 0.1, 0.2, 600.0


def begin_process(state: SimState, cluster: Cluster) -> None:
    """Write the prior; classes get a component when they are first measured."""
    machines, racks = len(cluster.rack), int(cluster.rack.max()) + 1
    state.components[:] = NONE
    state.clock[cols.COMPONENTS] = machines + racks
    state.process[:] = 0
    variances = np.repeat([MACHINE_STD**2, RACK_STD**2], [machines, racks])
    state.process[: len(variances), : len(variances)] = np.diag(variances)


@njit_internal
def predicted_log(state: SimState, cluster: Cluster, row: int, machine: int) -> tuple[float, float]:
    """Posterior mean and variance of a log speed; `row` is that of the class or user."""
    process, mean = state.process, state.process[cols.PROCESS_MEAN]
    rack = len(cluster.rack) + cluster.rack[machine]
    own = state.components[row, cluster.gpu_type[machine]]
    found = mean[machine] + mean[rack]
    variance = process[machine, machine] + process[rack, rack] + 2 * process[machine, rack]
    if own == NONE:
        return found, variance + CLASS_STD**2
    shared = process[own, machine] + process[own, rack]
    return found + mean[own], variance + process[own, own] + 2 * shared


@njit_internal
def drift_process(state: SimState, cluster: Cluster, passed_s: float) -> None:
    """Predict the components after some time: drifting ones return to 0 and spread."""
    process, size = state.process, state.clock[cols.COMPONENTS]
    machines, drifting = len(cluster.rack), len(cluster.rack) + len(state.rack_fit)
    kept = np.exp(-passed_s / MEMORY_S)
    for i in range(drifting):
        process[cols.PROCESS_MEAN, i] *= kept
        for j in range(size):
            process[i, j] *= kept
            process[j, i] *= kept
        std = MACHINE_STD if i < machines else RACK_STD
        process[i, i] += std**2 * (1 - kept * kept)


@njit_internal
def observe_job(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, row: int, passed_s: float
) -> None:
    """Condition the process on the speed of a running job; `row` is that of its class or user."""
    used, first = state.jobs[job, cols.ROWS_USED], state.jobs[job, cols.FIRST_ROW]
    shares = state.setup[cols.INTERFERENCE] == 1 and jobs.gpu[job] % WHOLE != 0
    slowest, least = NONE, np.inf
    for at in range(first, first + used):
        machine = state.rows[at, cols.MACHINE]
        mean, _ = predicted_log(state, cluster, row, machine)
        state.factors[machine, cols.EXPECTED] = cluster.speed[machine] * np.exp(mean)
        speed = instance_speed(state, cluster, job, at, False, shares, False)
        if speed < least:
            slowest, least = machine, speed
    expected = gang_speed(state, cluster, jobs, job, used, False, False)
    loses_speed = shares and state.factors[slowest, cols.COLOCATION] < 1
    noise = (SHARED_STD if loses_speed else ALONE_STD) ** 2 * INDEPENDENT_S / passed_s
    own = _component(state, row, cluster.gpu_type[slowest])
    innovation = np.log(state.progress[job, cols.RATE] / expected)
    _condition(state, slowest, len(cluster.rack) + cluster.rack[slowest], own, innovation, noise)


@njit_internal
def _component(state: SimState, row: int, gpu_type: int) -> int:
    """Component of a class or user on a GPU type; NONE if the table is full."""
    if state.components[row, gpu_type] == NONE:
        added = state.clock[cols.COMPONENTS]
        if added == state.process.shape[1]:
            return NONE
        state.components[row, gpu_type] = added
        state.process[added, added] = CLASS_STD**2
        state.clock[cols.COMPONENTS] = added + 1
    return int(state.components[row, gpu_type])


@njit_internal
def _condition(
    state: SimState, machine: int, rack: int, own: int, innovation: float, noise: float
) -> None:
    """Kalman update by one observation of the sum of three components."""
    process, size = state.process, state.clock[cols.COMPONENTS]
    gain = process[cols.PROCESS_GAIN]  # covariance of each component with the sum
    for i in range(size):
        gain[i] = process[machine, i] + process[rack, i]
        if own != NONE:
            gain[i] += process[own, i]
    total = noise + gain[machine] + gain[rack]
    total += gain[own] if own != NONE else CLASS_STD**2
    for i in range(size):
        process[cols.PROCESS_MEAN, i] += gain[i] / total * innovation
        for j in range(size):
            process[i, j] -= gain[i] * gain[j] / total
