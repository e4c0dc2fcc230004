"""The simulator against queueing theory in special cases, and against Decima's simulator.

The published figures are means over 80 seeds, measured with Decima's public code and profiles: a
first job, then 200 more at 25 s, on 50 executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.jobs import Stage, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import workload_of
from tests.traces import needs_traces


def single_stage_jobs(most_tasks: int) -> Workload:
    """Build forty templates of one stage with fifty durations."""
    rng = np.random.default_rng(0)
    jobs = []
    for _ in range(40):
        mean_ms = rng.uniform(200, 3000)
        drawn = [{1: rng.exponential(mean_ms, 50).astype(int)} for _ in range(3)]
        jobs.append([Stage(int(rng.integers(1, most_tasks + 1)), (), *drawn)])
    return workload_of(*jobs)


def episode(executors: int, moving_delay_s: float, workload: Workload) -> EpisodeResult:
    values = {"executors": executors, "load": 0.8, "moving_delay_s": moving_delay_s}
    settings = DagSchedulingSettings(arrivals="poisson", jobs=2000, **values)
    return run_episode("fifo", settings, 5, workload, record=True)


def work_ms(result: EpisodeResult) -> NDArray[np.int64]:
    """(jobs,) Sum the durations of the job's tasks."""
    trace = result.trace
    assert trace is not None
    work = np.zeros(len(result.arrival_s), np.int64)
    task = trace.moving == 0
    np.add.at(work, trace.job[task], (trace.end_ms - trace.start_ms)[task])
    return work


def in_ms(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1000).astype(np.int64)


@pytest.mark.parametrize("moving_delay_s", [0, 0.5])
def test_one_executor_equals_lindleys_recursion(moving_delay_s: float) -> None:
    result = episode(1, moving_delay_s, single_stage_jobs(most_tasks=5))
    arrival_ms, service_ms = in_ms(result.arrival_s), work_ms(result) + round(1000 * moving_delay_s)
    wait_ms = np.zeros(len(arrival_ms), np.int64)
    for job in range(1, len(wait_ms)):
        gap_ms = arrival_ms[job] - arrival_ms[job - 1]
        wait_ms[job] = max(0, wait_ms[job - 1] + service_ms[job - 1] - gap_ms)
    assert (wait_ms > 0).mean() > 0.5  # the queue is not empty
    np.testing.assert_array_equal(in_ms(result.jct_s), wait_ms + service_ms)


@pytest.mark.parametrize("moving_delay_s", [0, 0.5])
@pytest.mark.parametrize("executors", [2, 5])
def test_single_task_jobs_equal_a_multi_server_queue(executors: int, moving_delay_s: float) -> None:
    result = episode(executors, moving_delay_s, single_stage_jobs(most_tasks=1))
    arrival_ms, service_ms = in_ms(result.arrival_s), work_ms(result) + round(1000 * moving_delay_s)
    left_ms = np.zeros(len(arrival_ms), np.int64)
    world = simpy.Environment()
    servers = simpy.Resource(world, capacity=executors)

    def live(job: int) -> Iterator[simpy.Event]:
        yield world.timeout(int(arrival_ms[job]))
        with servers.request() as turn:
            yield turn
            yield world.timeout(int(service_ms[job]))
        left_ms[job] = world.now

    for job in range(len(arrival_ms)):
        world.process(live(job))
    world.run()
    assert (left_ms - arrival_ms > service_ms).mean() > 0.3
    np.testing.assert_array_equal(in_ms(result.completion_s), left_ms)


def test_job_alone_with_an_executor_per_task_takes_its_critical_path() -> None:
    rng = np.random.default_rng(1)
    always = [{1: [int(ms)]} for ms in rng.integers(1, 5000, size=12)]
    stages = []
    finish_ms: list[int] = []
    for number, wave in enumerate(always):
        parents = tuple(sorted({int(p) for p in rng.integers(0, number, size=2)})) if number else ()
        stages.append(Stage(int(rng.integers(1, 6)), parents, wave, wave, wave))
        ready_ms = max((finish_ms[parent] for parent in parents), default=0)
        finish_ms.append(ready_ms + wave[1][0])
    enough = sum(stage.tasks for stage in stages)
    for policy in ("fifo", "fair", "sjf-cp", "tetris"):
        settings = DagSchedulingSettings(jobs=1, executors=enough, moving_delay_s=2)
        result = run_episode(policy, settings, 0, workload_of(stages))
        assert result.makespan_s == 2 + max(finish_ms) / 1000


# Decima's simulator.

SEEDS = 80
SETTINGS = DagSchedulingSettings(
    workload="tpch", arrivals="poisson", jobs=200, interarrival_s=25, interpolation="as-published"
)


class Published(NamedTuple):
    mean_jct_s: float
    standard_error_s: float
    makespan_s: float


PUBLISHED = {"fair": Published(62.9, 1.3, 5036), "fifo": Published(309, 17, 5472)}
DECISIONS = 3600  # an episode; it counts those without a choice too, some 2%


@pytest.mark.slow
@needs_traces
@pytest.mark.parametrize("policy", PUBLISHED)
def test_published_profiles_give_the_published_figures(policy: str) -> None:
    published, workload = PUBLISHED[policy], load_workload(SETTINGS)
    with ThreadPoolExecutor() as threads:
        results = list(
            threads.map(lambda seed: run_episode(policy, SETTINGS, seed, workload), range(SEEDS))
        )
    jct_s = np.array([result.mean_jct_s for result in results])
    # Two standard errors of the difference of two independent means.
    standard_error = np.hypot(jct_s.std(ddof=1) / np.sqrt(SEEDS), published.standard_error_s)
    assert abs(jct_s.mean() - published.mean_jct_s) < 2 * standard_error
    # No error was published for the makespan; the arrivals make it vary by some 7% a seed.
    makespan_s = np.mean([result.makespan_s for result in results])
    assert makespan_s == pytest.approx(published.makespan_s, rel=0.03)
    decisions = np.mean([result.decisions for result in results])
    assert decisions == pytest.approx(DECISIONS, rel=0.05)
