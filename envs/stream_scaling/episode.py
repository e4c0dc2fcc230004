"""Episodes: their load, faults and initial state, drawn by the seed, and their results."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.loads import Load
from loadmaster.envs.stream_scaling.job_files import load_job
from loadmaster.envs.stream_scaling.jobs import Job, job_tables
from loadmaster.envs.stream_scaling.rewards import reward_sum
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, Fault, StreamScalingSettings
from loadmaster.envs.stream_scaling.state import (
    DRIFT,
    INSTANCES,
    LAG,
    LATENCY,
    LATENCY_VARIANCE,
    LOST_INSTANCE,
    MINUTE,
    OUTPUT,
    RESTARTS,
    SLOTS,
    SUM_MINUTES,
    UP,
    UTILISATION,
    Floats,
    JobTables,
    SimConstants,
    SimState,
    new_state,
)
from loadmaster.envs.stream_scaling.workloads import load_workload

RING_MARGIN = 68  # minutes kept beside the observed ones
_SIMULATED = {"drift": DRIFT, "lost-instance": LOST_INSTANCE}  # the others change the load


class Setup(NamedTuple):
    """What all episodes with the same settings share."""

    job: Job
    tables: JobTables
    load: Load


class Episode(NamedTuple):
    constants: SimConstants
    state: SimState
    week_minute: int  # of the first minute


@dataclass(frozen=True)
class EpisodeResult:
    """An episode from its first decision on; arrays are by minute."""

    policy: str
    seed: int
    latency_min: Floats
    latency_variance: Floats
    output: Floats
    utilisation: Floats
    instances: Floats
    slots: Floats
    lag: Floats
    load: Floats  # records that arrive
    up: Floats  # share of the minute in which the job runs
    restarts: int
    target_min: float
    reward: float  # mean of a decision
    parallelism: NDArray[np.int64] | None = None  # (minutes, N), where recorded


def build_setup(settings: StreamScalingSettings, job: Job | None = None) -> Setup:
    job = job or load_job(settings)
    tables = job_tables(job, settings.max_parallelism, chains=settings.chains, skew=settings.skew)
    rows = []
    for fault in settings.faults:
        if fault.task is not None and fault.task not in job.names:
            raise unknown_name("task", fault.task, job.names)
        task = _task_of(fault, job, tables)
        if fault.kind in _SIMULATED:
            begin, end = WARM_UP_MIN + fault.begin, WARM_UP_MIN + fault.end
            rows.append([_SIMULATED[fault.kind], task, begin, end, fault.factor])
        elif tables.source[task] < 0:
            sources = [name for name, row in zip(job.names, tables.source, strict=True) if row >= 0]
            raise unknown_name("source", job.names[task], sources)
    if rows:
        tables = tables._replace(faults=np.array(rows, np.float64))
    return Setup(job, tables, load_workload(settings))


def _task_of(fault: Fault, job: Job, tables: JobTables) -> int:
    """The named task, or the one with the most work; of sources only, where the load changes."""
    if fault.task is not None:
        return job.names.index(fault.task)
    work = tables.nominal * tables.service_min
    if fault.kind not in _SIMULATED:
        work = np.where(tables.source >= 0, work, -1.0)
    return int(work.argmax())


def build_episode(settings: StreamScalingSettings, setup: Setup, seed: int) -> Episode:
    """The episode of `seed`, before its first minute."""
    rng = np.random.default_rng(seed)
    minutes = WARM_UP_MIN + settings.minutes
    counts, week_minute = setup.load.draw(minutes, rng)
    scale = settings.load_scale * (1 + settings.random_scale * rng.uniform(-1, 1))
    sources = int((setup.tables.source >= 0).sum())
    load = np.repeat(counts[None] * scale, sources, axis=0)
    for fault in settings.faults:
        span = slice(WARM_UP_MIN + fault.begin, WARM_UP_MIN + fault.end)
        source = setup.tables.source[_task_of(fault, setup.job, setup.tables)]
        if fault.kind == "spike":
            load[slice(None) if fault.task is None else source, span] *= fault.factor
        elif fault.kind == "silent-source":  # its records are not sent later
            load[source, span] = 0.0
    plan = np.minimum(settings.initial, setup.tables.cap)
    state = new_state(setup.tables, load, plan, settings.history + RING_MARGIN)
    return Episode(constants_of(settings, int(rng.integers(1 << 40))), state, week_minute)


def constants_of(settings: StreamScalingSettings, key: int) -> SimConstants:
    published = settings.published
    return SimConstants(
        buffer=settings.buffer,
        contention=0.0 if published else settings.contention,
        restart_min=1.0 if published else settings.restart_s / 60,
        restore_min_per_mb=0.0 if published else 1 / settings.restore_mb_per_s / 60,
        checkpoint_min=settings.checkpoint_min,
        shared_queue=published or settings.queues == "shared",
        published=published,
        plan_limit=settings.max_instances,
        noise=0.0 if published else settings.metric_noise,
        missing=settings.missing_metrics,
        key=key,
    )


def episode_result(
    settings: StreamScalingSettings,
    state: SimState,
    policy: str,
    seed: int,
    parallelism: NDArray[np.int64] | None = None,
) -> EpisodeResult:
    """The result so far."""
    minute = int(state.clock[MINUTE])
    rows = state.outcome[WARM_UP_MIN:minute].copy()
    minutes = max(float(state.sums[SUM_MINUTES]), 1.0)
    return EpisodeResult(
        policy=policy,
        seed=seed,
        latency_min=rows[:, LATENCY],
        latency_variance=rows[:, LATENCY_VARIANCE],
        output=rows[:, OUTPUT],
        utilisation=rows[:, UTILISATION],
        instances=rows[:, INSTANCES],
        slots=rows[:, SLOTS],
        lag=rows[:, LAG],
        load=state.load[:, WARM_UP_MIN:minute].sum(axis=0),
        up=rows[:, UP],
        restarts=int(state.clock[RESTARTS]),
        target_min=settings.latency_target_min,
        reward=float(reward_sum(settings, state.sums)) / minutes,
        parallelism=parallelism,
    )
