"""Special cases in which the simulator is a queue, against queues simulated the textbook way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.jobs import Stage, Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from tests.envs.dag_scheduling.cluster import workload_of

JOBS = 2000


def single_stage_jobs(most_tasks: int) -> Workload:
    """Forty templates of one stage, with some fifty durations each."""
    rng = np.random.default_rng(0)
    jobs = []
    for _ in range(40):
        mean_ms = rng.uniform(200, 3000)
        drawn = [{1: rng.exponential(mean_ms, 50).astype(int)} for _ in range(3)]
        jobs.append([Stage(int(rng.integers(1, most_tasks + 1)), (), *drawn)])
    return workload_of(*jobs)


def episode(
    executors: int, moving_delay_s: float, workload: Workload, load: float
) -> EpisodeResult:
    settings = DagSchedulingSettings(
        arrivals="poisson",
        jobs=JOBS,
        executors=executors,
        load=load,
        moving_delay_s=moving_delay_s,
    )
    return run_episode("fifo", settings, 5, workload, record=True)


def work_ms(result: EpisodeResult) -> NDArray[np.int64]:
    """(jobs,) what the job's tasks took in all, read off the trace."""
    trace = result.trace
    assert trace is not None
    work = np.zeros(len(result.arrival_s), np.int64)
    task = trace.moving == 0
    np.add.at(work, trace.job[task], (trace.end_ms - trace.start_ms)[task])
    return work


def in_ms(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1000).astype(np.int64)


@pytest.mark.parametrize("moving_delay_s", [0, 0.5])
def test_one_executor_is_a_single_server_queue(moving_delay_s: float) -> None:
    """Lindley's recursion: a job waits what the one before it waited and worked, less the gap."""
    result = episode(1, moving_delay_s, single_stage_jobs(most_tasks=5), load=0.8)
    arrival_ms, service_ms = in_ms(result.arrival_s), work_ms(result) + round(1000 * moving_delay_s)
    wait_ms = np.zeros(len(arrival_ms), np.int64)
    for job in range(1, len(wait_ms)):
        gap_ms = arrival_ms[job] - arrival_ms[job - 1]
        wait_ms[job] = max(0, wait_ms[job - 1] + service_ms[job - 1] - gap_ms)
    assert (wait_ms > 0).mean() > 0.5  # a queue that never waits proves nothing
    np.testing.assert_array_equal(in_ms(result.jct_s), wait_ms + service_ms)


@pytest.mark.parametrize("moving_delay_s", [0, 0.5])
@pytest.mark.parametrize("executors", [2, 5])
def test_single_task_jobs_are_a_multi_server_queue(executors: int, moving_delay_s: float) -> None:
    """Every job holds one executor for its move and its task, first come first served."""
    result = episode(executors, moving_delay_s, single_stage_jobs(most_tasks=1), load=0.8)
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


def test_a_job_alone_on_as_many_executors_as_tasks_takes_its_critical_path() -> None:
    """Layered random DAGs, constant durations: every stage starts when its last parent ends."""
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
