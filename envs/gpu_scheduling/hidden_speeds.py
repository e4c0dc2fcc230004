"""Hidden speeds: drift of machines and racks, and what rules know of speeds.

A rule expects a speed of a job on every machine (EXPECTED): the nominal one of the GPU type, one
from running means of measured progress, or the true one, which only an oracle knows.
"""

import numpy as np

from loadmaster.envs.compiled import njit_internal, normal, splitmix64
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import MEASURED, NOMINAL, OPTIMISM, PROCESS
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.slowdown import gang_speed
from loadmaster.envs.gpu_scheduling.speed_process import drift_process, observe_job, predicted_log
from loadmaster.envs.gpu_scheduling.state import NONE, SimState

_DRIFT = 1 << 40  # separates the drift from the runtime noise, whose keys are jobs
_RACKS = 1 << 20  # likewise racks from machines

_EVERY_S = 60.0  # at most one measurement in this time
_PROCESS_EVERY_S = 300.0  # likewise of the process, whose update takes longer
_MEMORY_S = 900.0  # of the mean of a machine
_FORGET_S = 14_400.0  # likewise while no job runs on it
_PRIOR_S = 600.0  # time at the nominal speed that counts in the mean of a class


@njit_internal
def draw_drift(state: SimState, cluster: Cluster) -> None:
    """Draw the next speeds of machines and racks: Ornstein-Uhlenbeck processes of log speed.

    Numbers are hashed from seed, machine or rack, and step: the same under every policy.
    """
    step, times = state.clock[cols.DRIFTS], state.times
    state.clock[cols.DRIFTS] = step + 1
    kept = times[cols.DRIFT_KEPT] if step > 0 else 0.0
    fresh = np.sqrt(1.0 - kept * kept)
    key = splitmix64(state.setup[cols.SEED], _DRIFT)
    for machine in range(len(state.factors)):
        factors = state.factors[machine]
        own = normal(splitmix64(key, machine), step)
        rack = normal(splitmix64(key, _RACKS + cluster.rack[machine]), step)
        factors[cols.MACHINE_LOG] *= kept
        factors[cols.MACHINE_LOG] += fresh * times[cols.MACHINE_SIGMA] * own
        factors[cols.RACK_LOG] *= kept
        factors[cols.RACK_LOG] += fresh * times[cols.RACK_SIGMA] * rack
        factors[cols.DRIFT] = np.exp(factors[cols.MACHINE_LOG] + factors[cols.RACK_LOG])


@njit_internal
def expect_speeds(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Write the speed of an instance on each machine that the rule expects into EXPECTED."""
    source = state.setup[cols.SPEED_SOURCE]
    if source == NOMINAL:
        return  # written once: it is the same for all jobs
    for machine in range(len(state.factors)):
        factors = state.factors[machine]
        if source == MEASURED:
            mean = _measured_log(state, jobs, job, cluster.gpu_type[machine])
            factor = np.exp(mean + factors[cols.MEAN_LOG])
        elif source == PROCESS:
            row = _row_of(state, jobs, job)
            mean, variance = predicted_log(state, cluster, row, machine)
            factor = np.exp(mean + state.rule[OPTIMISM] * np.sqrt(variance))
        else:
            factor = factors[cols.CLASS_FACTOR + state.jobs[job, cols.CLASS]] * factors[cols.DRIFT]
        factors[cols.EXPECTED] = cluster.speed[machine] * factor


@njit_internal
def _row_of(state: SimState, jobs: Jobs, job: int) -> int:
    """Row of measured speeds: the job's class if it is known, else its user."""
    if state.setup[cols.CLASSES_KNOWN] == 1:
        return int(state.jobs[job, cols.CLASS])
    return int(jobs.user[job])


@njit_internal
def _measured_log(state: SimState, jobs: Jobs, job: int, gpu_type: int) -> float:
    """Mean logarithm of the relative speed of such jobs on a GPU type."""
    means, column = state.user_history[_row_of(state, jobs, job)], cols.MEASURED_LOG + 2 * gpu_type
    return float(means[column] / (means[column + 1] + _PRIOR_S))


@njit_internal
def measure_speeds(state: SimState, cluster: Cluster, jobs: Jobs) -> None:
    """Update what the rule knows of speeds by the progress of running jobs, at intervals."""
    passed_s = state.times[cols.NOW] - state.times[cols.LAST_MEASURED]
    by_process = state.setup[cols.SPEED_SOURCE] == PROCESS
    if passed_s < (_PROCESS_EVERY_S if by_process else _EVERY_S):
        return
    state.times[cols.LAST_MEASURED] = state.times[cols.NOW]
    if by_process:
        _update_process(state, cluster, jobs, passed_s)
    else:
        _update_means(state, cluster, jobs, passed_s)


@njit_internal
def _update_process(state: SimState, cluster: Cluster, jobs: Jobs, passed_s: float) -> None:
    drift_process(state, cluster, passed_s)
    for place in range(state.clock[cols.RUNNING]):
        job = state.event_heap[place]
        seen_s = min(passed_s, state.times[cols.NOW] - state.progress[job, cols.PLACED_S])
        if state.progress[job, cols.RATE] > 0.0 and seen_s > 0.0:  # else it has just started
            observe_job(state, cluster, jobs, job, _row_of(state, jobs, job), seen_s)


@njit_internal
def _update_means(state: SimState, cluster: Cluster, jobs: Jobs, passed_s: float) -> None:
    """Add the progress of running jobs to the means by class and GPU type, and by machine.

    A job's speed is taken relative to the nominal one on its machines, co-location and network
    included; the rest is split between the class on the GPU type and the machine.
    """
    now = state.times[cols.NOW]
    for machine in range(len(state.factors)):
        state.factors[machine, cols.EXPECTED] = cluster.speed[machine]
    for machine in range(len(state.factors)):
        factors, gpu_type = state.factors[machine], cluster.gpu_type[machine]
        column, total, count = cols.MEASURED_LOG + 2 * gpu_type, 0.0, 0
        row = state.machines[machine, cols.FIRST]
        while row != NONE:
            job = state.rows[row, cols.JOB]
            row = state.rows[row, cols.NEXT]
            rate = state.progress[job, cols.RATE]
            if rate <= 0.0:
                continue  # it has just started
            used = state.jobs[job, cols.ROWS_USED]
            ratio = np.log(rate / gang_speed(state, cluster, jobs, job, used, False, False))
            total += ratio - _measured_log(state, jobs, job, gpu_type)
            count += 1
            means = state.user_history[_row_of(state, jobs, job)]
            seen_s = min(passed_s, now - state.progress[job, cols.PLACED_S])
            means[column] += seen_s * (ratio - factors[cols.MEAN_LOG])
            means[column + 1] += seen_s
        if count > 0:
            change = total / count - factors[cols.MEAN_LOG]
            factors[cols.MEAN_LOG] -= change * np.expm1(-passed_s / _MEMORY_S)
        else:
            factors[cols.MEAN_LOG] *= np.exp(-passed_s / _FORGET_S)
