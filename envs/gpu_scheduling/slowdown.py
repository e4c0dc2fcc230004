"""Speed of a job on its machines: GPU type, co-location, network and runtime noise."""

import numpy as np

from loadmaster.envs.compiled import njit_internal, splitmix64
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.class_speeds import CLASSES
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.state import SimState, hides_speeds

# Share of their speed that jobs on one GPU keep, by their combined use of it: measured means of the
# ranges up to 40%, 60-80%, 80-90% and above 95%; linear between the middles of the ranges.
_USE = (0.40, 0.70, 0.85, 0.975)
_KEPT = (0.997, 0.96, 0.91, 0.79)

# Factors by which a gang's communication takes longer across the machines of a rack, and across
# racks.
# A gang that communicates 0.39 of its time, the median of our workloads, keeps 0.72 and 0.46 of its
# speed; the median of Gavel's measurements kept 0.68 on P100s and 0.43 on V100s when spread.
_STRETCH_RACK = 2.0
_STRETCH_ACROSS = 4.0

_S11 = np.uint64(11)
_UNIT = 1.0 / (1 << 53)


@njit_internal
def runtime_noise(sigma: float, seed: int, job: int, machine: int) -> float:
    """Lognormal speed factor with median 1, hashed: the same under every policy."""
    if sigma == 0.0:
        return 1.0
    bits = splitmix64(splitmix64(seed, job), machine)
    radius = (float(splitmix64(bits, 0) >> _S11) + 1.0) * _UNIT  # in (0, 1]
    angle = float(splitmix64(bits, 1) >> _S11) * _UNIT
    normal = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)  # Box-Muller
    return float(np.exp(sigma * normal))


@njit_internal
def _kept_by_use(use: float) -> float:
    """Share of speed kept at a combined use of one GPU in [0, 1], interpolated."""
    if use <= _USE[0]:
        return _KEPT[0]
    for i in range(3):
        if use <= _USE[i + 1]:
            along = (use - _USE[i]) / (_USE[i + 1] - _USE[i])
            return _KEPT[i] + along * (_KEPT[i + 1] - _KEPT[i])
    return _KEPT[3]


@njit_internal
def current_colocation(state: SimState, cluster: Cluster, machine: int) -> float:
    """Share of its speed that an instance keeps which shares a GPU of this machine with others."""
    return colocation_with(state, cluster, machine, 0, 0)


@njit_internal
def colocation_with(
    state: SimState, cluster: Cluster, machine: int, sharers: int, shared: int
) -> float:
    """`current_colocation` with more sharers, which request `shared` percent in all.

    Sharers spread evenly over the GPUs that are not used exclusively. Nothing is lost while each
    has a GPU to itself; beyond that, the measured curve applies at the mean combined use.
    """
    exclusive = state.machines[machine, cols.WHOLE_GPUS]
    gpus = max(cluster.gpu_capacity[machine] // WHOLE - exclusive, 1)
    if (
        state.setup[cols.INTERFERENCE] == 0
        or state.machines[machine, cols.SHARERS] + sharers <= gpus
    ):
        return 1.0
    use = (state.machines[machine, cols.SHARED] + shared) / (WHOLE * gpus)
    return 1.0 - float(state.factors[machine, cols.SEVERITY]) * (1.0 - _kept_by_use(use))


_LEAST_KEPT = 0.05  # share of its speed that no combination of classes falls below


@njit_internal
def kept_by_class(state: SimState, job: int, machine: int, kept: float, more: int) -> float:
    """Share of its speed that a job's class keeps beside the sharers of a machine.

    `kept` is that of all classes on average. `more` is the number of other instances of the job's
    class that are not counted on the machine yet; -1 if the job itself is counted.
    """
    own = state.jobs[job, cols.CLASS]
    factors, pairs = state.factors[machine], cols.CLASS_PAIRS + own * len(CLASSES)
    others, severity = float(more), more * factors[pairs + own]
    for kind in range(len(CLASSES)):
        sharers = factors[cols.CLASS_SHARERS + kind]
        others += sharers
        severity += sharers * factors[pairs + kind]
    if others <= 0.0:
        return kept
    return max(1.0 - (1.0 - kept) * severity / others, _LEAST_KEPT)


@njit_internal
def instance_speed(
    state: SimState, cluster: Cluster, job: int, row: int, placed: bool, shares: bool, current: bool
) -> float:
    """Speed of a job's instances in one row, without the network; `gang_speed` has the flags."""
    machine = state.rows[row, cols.MACHINE]
    speed = float(state.row_speed[row] if placed else state.factors[machine, cols.EXPECTED])
    if shares:
        kept = float(state.factors[machine, cols.COLOCATION])
        if current:
            kept = current_colocation(state, cluster, machine)
        if placed and hides_speeds(state):
            kept = kept_by_class(state, job, machine, kept, -1)
        speed *= kept
    if placed:
        speed *= state.factors[machine, cols.DRIFT]
    return speed


@njit_internal
def gang_speed(
    state: SimState, cluster: Cluster, jobs: Jobs, job: int, rows: int, placed: bool, current: bool
) -> float:
    """Speed of the slowest instance in the job's first `rows` rows, reduced by the network.

    `placed` uses the true speeds of the rows, which include runtime noise, else the expected ones.
    `current` computes co-location from the present instances, else takes the last update.
    """
    first = state.jobs[job, cols.FIRST_ROW]
    rack = cluster.rack[state.rows[first, cols.MACHINE]]
    interference = state.setup[cols.INTERFERENCE] == 1
    shares = interference and jobs.gpu[job] % WHOLE != 0
    slowest, one_rack = np.inf, True
    for row in range(first, first + rows):
        speed = instance_speed(state, cluster, job, row, placed, shares, current)
        slowest = min(slowest, speed)
        one_rack = one_rack and cluster.rack[state.rows[row, cols.MACHINE]] == rack
    if interference and rows > 1:
        slowest *= network_factor(jobs.comm[job], one_rack)
    return slowest


@njit_internal
def network_factor(comm: float, one_rack: bool) -> float:
    """Share of its speed that a gang on several machines keeps: its communication takes longer."""
    stretch = _STRETCH_RACK if one_rack else _STRETCH_ACROSS
    return float(1.0 / (1.0 - comm + comm * stretch))
