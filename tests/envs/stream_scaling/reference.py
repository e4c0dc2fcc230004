"""A record-level simulation of a job with large buffers, to compare the simulator with.

Every record has its own arrival and service times. Without back-pressure a task does not depend on
those behind it, so tasks are simulated one after another.
"""

from dataclasses import replace

import numba
import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.episode import EpisodeResult, episode_result
from loadmaster.envs.stream_scaling.jobs import Job, Task, build_job, job_tables
from loadmaster.envs.stream_scaling.metrics import latency_quantile_s
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import JobTables, SimConstants, SimState, new_state

Floats = NDArray[np.float64]
SERVICE_MIN = 1 / 60  # of the longest task


def sim_constants(**changed: object) -> SimConstants:
    """Large buffers and no noise, but for what is changed."""
    values = {
        "buffer": 1e9, "contention": 0.0, "restart_min": 1.0, "restore_min_per_mb": 0.0,
        "checkpoint_min": 1, "shared_queue": False, "published": False,
        "plan_limit": 10_000, "noise": 0.0, "missing": 0.0, "key": 1, **changed,
    }  # fmt: skip
    return SimConstants(*(values[name] for name in SimConstants._fields))  # type: ignore[arg-type]


def single(variability: float = 1.0) -> Job:
    return build_job("single", [Task("a", 1.0, variability=variability)])


def fork() -> Job:
    """Two branches and a join."""
    return build_job(
        "fork",
        [
            Task("a", 1.0),
            Task("b", 0.8, ("a",)),
            Task("c", 0.6, ("a",)),
            Task("d", 0.9, ("b", "c")),
        ],
    )


def simulate(
    job: Job, load: Floats, instances: int, constants: SimConstants
) -> tuple[JobTables, SimState]:
    """Run the simulator with the same load at every source and parallelism at every task."""
    tables = job_tables(job, 64, service_min=SERVICE_MIN)
    rows = np.repeat(load[None].astype(np.float64), (tables.source >= 0).sum(), axis=0)
    plan = np.full(len(tables.cap), instances, np.int64)
    state = new_state(tables, rows, plan, 256)
    advance(tables, constants, state, len(load))
    return tables, state


def record_level(
    job: Job, tables: JobTables, load: Floats, instances: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """When each record left the job, and its latency, in minutes."""
    left: dict[int, tuple[Floats, Floats]] = {}  # by task: times, and times of arrival at the job
    for task in range(len(job.tasks)):
        if tables.source[task] >= 0:
            counts = rng.poisson(load)
            arrivals = [minute + rng.random(count) for minute, count in enumerate(counts)]
            at = np.concatenate(arrivals)
            born = at
        else:
            parts = []
            for edge in range(tables.parent_at[task], tables.parent_at[task + 1]):
                times, births = left[int(tables.parent[edge])]
                kept = rng.random(len(times)) < tables.ratio[edge]
                parts.append((times[kept], births[kept]))
            at, born = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(at, kind="stable")
        at, born = at[order], born[order]
        service = rng.exponential(tables.service_min[task], len(at))
        left[task] = _serve(at, rng.integers(0, instances, len(at)), service, instances), born
    ends = [left[task] for task in range(len(job.tasks)) if tables.weight[task] > 0]
    times, births = (np.concatenate(each) for each in zip(*ends, strict=True))
    return times, times - births


@numba.njit
def _serve(at: Floats, instance: NDArray[np.int64], service: Floats, instances: int) -> Floats:
    free, done = np.zeros(instances), np.empty_like(at)
    for record in range(len(at)):
        begin = max(at[record], free[instance[record]])
        done[record] = free[instance[record]] = begin + service[record]
    return done


def result_between(state: SimState, first: int, last: int) -> EpisodeResult:
    """The result of some minutes."""
    whole = episode_result(StreamScalingSettings(), state, "test", 0)
    part = slice(first - WARM_UP_MIN, last - WARM_UP_MIN)
    return replace(
        whole,
        latency_min=whole.latency_min[part],
        latency_variance=whole.latency_variance[part],
        output=whole.output[part],
    )


def p99_min(result: EpisodeResult) -> float:
    return latency_quantile_s(result, 0.99) / 60
