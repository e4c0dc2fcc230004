"""How fast a job runs where it is: its GPUs, its neighbours on them, the network, its luck."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.random import splitmix64

# What jobs on one GPU keep of their speed, by their combined use of it: measured means of the
# ranges up to 40%, 60-80%, 80-90% and above 95%; straight lines between the ranges' middles.
_USE = (0.40, 0.70, 0.85, 0.975)
_KEPT = (0.997, 0.96, 0.91, 0.79)

# How much longer a gang's communication takes once it leaves its machine, and its rack. A gang that
# spends 0.39 of its time on it, the middle one of our workloads, keeps 0.72 and 0.46 of its speed;
# the middle one of Gavel's measurements kept 0.68 on P100s and 0.43 on V100s when it was spread.
_STRETCH_RACK = 2.0
_STRETCH_ACROSS = 4.0

_S11 = np.uint64(11)
_UNIT = 1.0 / (1 << 53)


@njit_internal
def luck(sigma: float, seed: int, job: int, machine: int) -> float:
    """Lognormal with median 1. A hash, not a draw: every policy meets the same luck."""
    if sigma == 0.0:
        return 1.0
    bits = splitmix64(splitmix64(seed, job), machine)
    radius = (float(splitmix64(bits, 0) >> _S11) + 1.0) * _UNIT  # in (0, 1]
    angle = float(splitmix64(bits, 1) >> _S11) * _UNIT
    normal = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)  # Box and Muller
    return float(np.exp(sigma * normal))


@njit_internal
def kept_by_use(use: float) -> float:
    """The measured share of speed at a combined use of one GPU in [0, 1]."""
    if use <= _USE[0]:
        return _KEPT[0]
    for i in range(3):
        if use <= _USE[i + 1]:
            along = (use - _USE[i]) / (_USE[i + 1] - _USE[i])
            return _KEPT[i] + along * (_KEPT[i + 1] - _KEPT[i])
    return _KEPT[3]


@njit_internal
def colocation_factor(
    whole: int, sharers: int, shared: int, capacity: int, severity: float
) -> float:
    """What a sharer keeps of its speed on a machine with these users of its GPUs.

    Fractions spread evenly over the GPUs that nobody has to himself; while there is one for each
    of them nobody is disturbed. Beyond that, the measured curve at their mean combined use.
    """
    gpus = capacity // WHOLE - whole
    if sharers <= max(gpus, 1):
        return 1.0
    use = shared / (WHOLE * max(gpus, 1))
    return 1.0 - severity * (1.0 - kept_by_use(use))


@njit_internal
def network_factor(comm: float, machines: int, racks: int) -> float:
    """What a gang keeps of its speed when spread: only its share of communication stretches."""
    if machines <= 1:
        return 1.0
    stretch = _STRETCH_RACK if racks == 1 else _STRETCH_ACROSS
    return 1.0 / (1.0 - comm + comm * stretch)


@njit_inline
def speed_of(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> float:
    """The speed of the slowest instance, less what the network takes."""
    first, used = state.jobs[job, at.FIRST_ROW], state.jobs[job, at.ROWS_USED]
    interference = state.setup[at.INTERFERENCE] == 1
    shares = jobs.gpu[job] % WHOLE != 0
    slowest, one_rack = np.inf, True
    rack = cluster.rack[state.rows[first, at.MACHINE]]
    for row in range(first, first + used):
        machine = state.rows[row, at.MACHINE]
        speed = state.row_speed[row]
        if interference and shares:
            speed *= state.factors[machine, at.COLOCATION]
        slowest = min(slowest, speed)
        one_rack = one_rack and cluster.rack[machine] == rack
    if interference:
        slowest *= network_factor(jobs.comm[job], used, 1 if one_rack else 2)
    return slowest
