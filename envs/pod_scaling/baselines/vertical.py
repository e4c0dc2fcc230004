"""Kubernetes' vertical pod autoscaler and the peak of a moving window, compiled.

Samples of a pod's use go to histograms whose buckets grow by 5%, with weights that double every
half-life. Limits are percentiles with a margin: 0.9 is the target, 0.5 and 0.95 bound it, wider
while there are few samples. A pod is resized if its limits are outside the bounds, after an OOM, or
at a certain age if the target differs by 10%. Days of the original are half-lives here.
"""

import math

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.pod_scaling.baselines import HALF_LIFE, MARGIN, PERCENTILE, WINDOW
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters
from loadmaster.envs.pod_scaling.baselines.memory import (
    BUCKETS,
    FIRST_SAMPLE,
    OOM_AT,
    RESIZED_AT,
    SAMPLES,
    RuleState,
)
from loadmaster.envs.pod_scaling.observation import newest_report
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    NOW,
    R_LIMIT_MIB,
    R_OOMS,
    R_PEAK_MIB,
    R_PODS,
    R_READY,
    R_USED_CORES,
    REPLICAS,
    Floats,
    SimState,
)

GROWTH = 0.05  # of the buckets
CPU_UNIT, MEMORY_UNIT = 0.01, 1e7 / 2**20  # first bucket, in cores and MiB
LEAST_CPU, LEAST_MEMORY = 0.025, 250e6 / 2**20  # of a recommendation
LOWER, UPPER = 0.5, 0.95
OOM_MIB, OOM_FACTOR = 100.0, 1.2  # memory to add after an OOM
LEAST_CHANGE = 0.1  # relative
LEAST_REPLICAS = 2  # with fewer, a resize would stop the application
_MIN_CONFIDENCE = 1e-3


@compiled
def bucket_start(bucket: int, unit: float) -> float:
    """The least value of a bucket."""
    return unit * ((1.0 + GROWTH) ** bucket - 1.0) / GROWTH


@compiled
def bucket_of(value: float, unit: float) -> int:
    """The bucket that holds a value."""
    found = int(math.log(1.0 + GROWTH * max(value, 0.0) / unit) / math.log(1.0 + GROWTH))
    return min(found, BUCKETS - 1)


@compiled
def percentile(weights: Floats, share: float, unit: float) -> float:
    """The end of the bucket in which the share of all weights is reached."""
    total, reached = 0.0, 0.0
    for bucket in range(BUCKETS):
        total += weights[bucket]
    for bucket in range(BUCKETS):
        reached += weights[bucket]
        if total > 0 and reached >= share * total:
            return bucket_start(bucket + 1, unit)
    return 0.0


@njit_internal
def add_samples(parameters: Parameters, state: SimState, memory: RuleState) -> None:
    """Add a pod's use in the newest report; after an OOM, the memory that it needed."""
    now, marks, newest = state.clock[NOW], memory.marks, newest_report(state)
    report = state.reports[newest]
    if marks[FIRST_SAMPLE] == 0:
        marks[FIRST_SAMPLE] = now
    minutes = (now - marks[FIRST_SAMPLE]) * INTERVAL_S / 60
    weight = 2.0 ** (minutes / max(parameters[HALF_LIFE], 1.0))
    if report[R_READY] > 0:
        cores = report[R_USED_CORES] / report[R_READY]
        memory.cpu[bucket_of(cores, CPU_UNIT)] += weight
        memory.memory[bucket_of(report[R_PEAK_MIB], MEMORY_UNIT)] += weight
        marks[SAMPLES] += 1.0
    killed = 0.0
    for place in range(max(newest - STEP_INTERVALS + 1, 0), newest + 1):
        killed += state.reports[place, R_OOMS]
    if killed > 0:
        used = report[R_LIMIT_MIB] / max(report[R_PODS], 1.0)
        needed = max(used + OOM_MIB, OOM_FACTOR * used)
        memory.memory[bucket_of(needed, MEMORY_UNIT)] += weight
        marks[OOM_AT] = now


@njit_internal
def vertical_limits(
    parameters: Parameters, state: SimState, memory: RuleState, with_cpu: bool
) -> tuple[float, float]:
    """Cores and MiB of a pod, those of the plan where nothing is to be done."""
    plan, marks, now = state.plan, memory.marks, state.clock[NOW]
    known = marks[SAMPLES] > 0 or marks[OOM_AT] > 0
    if not known or plan[REPLICAS] < LEAST_REPLICAS:
        return plan[CPU], plan[MEMORY]
    with_cpu = with_cpu and marks[SAMPLES] > 0
    half_life = max(parameters[HALF_LIFE], 1.0)
    minutes = (now - marks[FIRST_SAMPLE]) * INTERVAL_S / 60
    confidence = max(min(minutes, marks[SAMPLES]) / half_life, _MIN_CONFIDENCE)
    margin = 1.0 + parameters[MARGIN]
    cores = max(margin * percentile(memory.cpu, parameters[PERCENTILE], CPU_UNIT), LEAST_CPU)
    mib = margin * percentile(memory.memory, parameters[PERCENTILE], MEMORY_UNIT)
    mib = max(mib, LEAST_MEMORY)
    outside = _outside(memory.memory, plan[MEMORY], margin, confidence, MEMORY_UNIT, LEAST_MEMORY)
    change = abs(mib / plan[MEMORY] - 1.0)
    if with_cpu:
        outside = outside or _outside(
            memory.cpu, plan[CPU], margin, confidence, CPU_UNIT, LEAST_CPU
        )
        change = max(change, abs(cores / plan[CPU] - 1.0))
    age = (now - max(marks[RESIZED_AT], marks[FIRST_SAMPLE])) * INTERVAL_S / 60
    early_oom = marks[OOM_AT] > marks[RESIZED_AT]
    if outside or early_oom or (age >= 0.5 * half_life and change >= LEAST_CHANGE):
        marks[RESIZED_AT] = now
        return (cores if with_cpu else plan[CPU]), mib
    return plan[CPU], plan[MEMORY]


@njit_internal
def _outside(
    weights: Floats, limit: float, margin: float, confidence: float, unit: float, least: float
) -> bool:
    """Whether a limit is outside the bounds of the recommendation."""
    lower = margin * percentile(weights, LOWER, unit) * (1.0 + 0.001 / confidence) ** -2.0
    upper = margin * percentile(weights, UPPER, unit) * (1.0 + 1.0 / confidence)
    return limit < max(lower, least) or limit > max(upper, least)


@njit_internal
def window_limits(parameters: Parameters, state: SimState) -> tuple[float, float]:
    """The highest use of a pod in the window, with a margin (Rzadca et al. 2020)."""
    cores, mib, newest = 0.0, 0.0, newest_report(state)
    intervals = int(60 * parameters[WINDOW] / INTERVAL_S)
    for place in range(max(newest - intervals + 1, 0), newest + 1):
        report = state.reports[place]
        if report[R_READY] > 0:
            cores = max(cores, report[R_USED_CORES] / report[R_READY])
        mib = max(mib, report[R_PEAK_MIB])
    margin = 1.0 + parameters[MARGIN]
    return margin * cores, margin * mib
