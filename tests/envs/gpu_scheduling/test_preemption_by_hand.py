"""Preemption worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling import scheduling_pass as passes
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.baselines import FIFO, FIRST_FIT
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.placement import no_preferences
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from loadmaster.envs.gpu_scheduling.simulator import advance
from tests.envs.gpu_scheduling.instances import Row, job, jobs_of
from tests.envs.gpu_scheduling.policies import (
    env_with,
    finish,
    first_come_first_fit,
    running,
    running_first,
)

pytestmark = pytest.mark.slow


def make(*rows: Row, gpus: int = 2, machines: int = 1, max_queue: int = 4) -> GpuSchedulingEnv:
    group = MachineGroup(count=machines, gpus=gpus, gpu="V100", cpus=32, machines_per_rack=machines)
    return env_with(*rows, machines=(group,), max_queue=max_queue, preempt=True, restart_s=60)


def three_jobs(max_queue: int = 4) -> tuple[GpuSchedulingEnv, dict[str, Any]]:
    """A and B each hold one of the machine's two GPUs when C arrives at 2 s, which needs one."""
    env = make(job(0, 10), job(1, 10), job(2, 4), max_queue=max_queue)
    for _ in range(2):
        observations, *_ = env.step(first_come_first_fit(env.runner))
    return env, observations[ORDERING]


def phase(env: GpuSchedulingEnv) -> int:
    return int(env.runner.decision_state.counts[decisions.PHASE])


def reconsider(env: GpuSchedulingEnv, priority: list[float]) -> tuple[Any, ...]:
    actions = first_come_first_fit(env.runner)
    actions[ORDERING][: len(priority)] = priority
    return env.step(actions)


def test_observation_when_reconsidering() -> None:
    env, seen = three_jobs()
    assert phase(env) == decisions.RECONSIDERING
    assert seen["job_mask"].tolist() == seen["heeded"].tolist() == [True, True, True, False]
    assert not seen["held"].any()
    assert not seen["rack_held"].any()
    columns = seen["jobs"][:3]
    assert columns[:, features.RUNNING].tolist() == [1, 1, 0]
    assert not columns[:, [features.STARTS, features.BEYOND]].any()
    minutes = np.array([2, 1, 0]) / 60
    for column in (features.RAN, features.ATTAINED, features.WAITED):
        assert columns[:, column] == pytest.approx(np.log1p(minutes))


def test_attained_service_beyond_threshold_is_observed() -> None:
    """Five GPUs for 3,700 s exceed 18,000 GPU seconds."""
    env = make(job(0, 9000, instances=5), job(3700, 4, instances=5), gpus=5)
    seen = env.step(first_come_first_fit(env.runner))[0][ORDERING]["jobs"]
    minutes = 5 * 3700 / 60
    assert seen[0, features.ATTAINED] == pytest.approx(np.log1p(minutes))
    assert seen[0, features.BEYOND] == pytest.approx(np.log((1 + minutes) / (1 + 300)), rel=1e-4)
    assert seen[1, features.BEYOND] == 0


@pytest.mark.parametrize(
    ("priority", "finish_s", "waited_s"),
    [
        # C replaces the job of lowest priority, which loses the 2 s (A) or 1 s (B) it had run, and
        # continues when C ends at 6 s.
        ([1, 2, 3], [16, 11, 6], [4, 0, 0]),
        ([2, 1, 3], [10, 16, 6], [0, 4, 0]),
        # Both precede C, which waits for A to end.
        ([3, 2, 1], [10, 11, 14], [0, 0, 8]),
    ],
)
def test_job_of_lowest_priority_is_preempted(
    priority: list[float], finish_s: list[float], waited_s: list[float]
) -> None:
    env, _ = three_jobs()
    seen = reconsider(env, priority)[0][ORDERING]
    if priority[2] > 1:
        assert phase(env) == decisions.PLACING_AGAIN
        assert env.result().preemptions == 1
        assert seen["job_mask"].tolist() == [True, True, False, False]
        assert seen["history_t"].tolist()[:3] == [0, 1, 2]  # one row per event
        reconsider(env, [0, 1])  # C, not the job just stopped
    finish(env, running_first)
    result = env.result()
    assert result.finish_s.tolist() == finish_s
    assert result.queueing_s.tolist() == waited_s
    assert result.fee == pytest.approx(result.run_s * env.cluster.price_per_s[0])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_illegal_priority_ranks_last(wrong: float) -> None:
    env, _ = three_jobs()
    assert reconsider(env, [wrong, 2, 3])[4][ORDERING]["legal"] is False
    assert running(env.runner) == {1}
    # A again, which arrived first: it loses the work of 2 s although it is placed at once.
    env.step(first_come_first_fit(env.runner))
    finish(env, running_first)
    assert env.result().finish_s.tolist() == [12, 11, 15]


def test_without_free_rows_agents_do_not_reconsider() -> None:
    env, seen = three_jobs(max_queue=1)
    assert phase(env) == decisions.PLACING
    assert seen["jobs"][0, features.RUNNING] == 0
    assert env.runner.state.times[cols.NOW] == 10


def test_rack_share_of_whole_gang_is_exactly_one() -> None:
    """The sum of twelve twelfths in single precision is less than one."""
    env = make(job(0, 5, instances=12), gpus=1, machines=12)
    observations, infos = env.reset(seed=0)
    assert observations[PLACEMENT]["rack_held"][0].tolist() == [1]
    assert infos[PLACEMENT]["hidden"] == 0


def still_running(
    machines: int,
    gpus: int,
    jobs: list[tuple[int, int]],
    started: int,
    keys: list[float],
    backfill: bool = True,
) -> list[int]:
    """Jobs left by `preempt_lower_ranked`; jobs are (instances, GPUs of each), lowest key first.

    The first `started` run on the first machines; the others are pending.
    """
    group = MachineGroup(count=machines, gpus=gpus, gpu="V100", cpus=64)
    settings = GpuSchedulingSettings(machines=(group,), backfill=backfill, stragglers=0)
    rows = [job(n, 100, 100 * each, instances) for n, (instances, each) in enumerate(jobs)]
    cluster, table = build_cluster(settings), jobs_of(rows)
    state = cols.new_state(settings, cluster, table, seed=0)
    for number in range(len(jobs)):
        assert advance(state, cluster, table, FIFO) == cols.DECIDE
        if number < started:
            rules = FIFO, FIRST_FIT, no_preferences(table)
            assert passes.run_scheduling_pass(state, cluster, table, *rules) == 1
    state.key[:started] = keys[:started]
    waiting = np.arange(started, len(jobs))
    passes.set_priorities(state, table, waiting, -np.array(keys[started:]), len(waiting))
    before, free = state.free.copy(), np.zeros((machines, 2), np.int64)
    stopped = passes.preempt_lower_ranked(state, cluster, table, free)
    left: list[int] = np.flatnonzero(state.jobs[:-1, cols.ROWS_USED] > 0).tolist()
    assert len(left) == started - stopped
    assert state.clock[cols.PREEMPTIONS] == stopped
    assert state.clock[cols.QUEUED] == len(jobs) - len(left)
    assert (state.free.sum(0) - before.sum(0)).tolist() == [
        sum(100 * jobs[n][0] * each for n in range(started) if n not in left)
        for each in (jobs[0][1], 1)
    ]
    return left


ONE = (1, 1)  # an instance with one GPU
GANG = (2, 1)
PROTECTED = [-np.inf, 3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("machines", "gpus", "jobs", "started", "keys", "left"),
    [
        (1, 2, [ONE, ONE, ONE], 2, [0, 1, 2], [0, 1]),  # the pending job ranks last
        (1, 2, [ONE, ONE, ONE], 2, [0, 2, 1], [0]),
        (1, 2, [ONE, ONE, ONE], 2, [2, 0, 1], [1]),
        (1, 2, [ONE, ONE, ONE], 2, [1, 2, 0], [0]),
        (1, 2, [ONE, ONE, ONE], 2, [-np.inf, -np.inf, 0], [0, 1]),  # not shown: protected
        (1, 2, [ONE, ONE, ONE], 2, [0, 1, np.inf], [0, 1]),  # without priority: reserves nothing
        # One of three machines is free, the gang needs two: one job of lower rank is stopped.
        (3, 1, [ONE, ONE, GANG], 2, [0, 2, 1], [0]),
        (3, 1, [ONE, ONE, GANG], 2, [2, 0, 1], [1]),
        (3, 1, [ONE, ONE, GANG], 2, [0, 1, 2], [0, 1]),
        # A job before the gang holds two of three machines: half a gang reserves nothing.
        (3, 1, [GANG, ONE, GANG], 2, [0, 2, 1], [0, 1]),
        # A free machine avoids preemption; a second pending job finds it reserved.
        (2, 1, [ONE, ONE], 1, [1, 0], [0]),
        (2, 1, [ONE, ONE, ONE], 1, [2, 0, 1], []),
        (2, 1, [ONE, ONE, ONE], 1, [1, 0, 2], [0]),
        # The first pending job needs both GPUs, of which one is protected; the next needs one.
        (1, 2, [ONE, ONE, (1, 2), ONE], 2, PROTECTED, [0]),
    ],
)
def test_lower_ranked_jobs_are_stopped(
    machines: int,
    gpus: int,
    jobs: list[tuple[int, int]],
    started: int,
    keys: list[float],
    left: list[int],
) -> None:
    assert still_running(machines, gpus, jobs, started, keys) == left


def test_without_backfill_job_that_does_not_fit_blocks_preemption() -> None:
    jobs = [ONE, ONE, (1, 2), ONE]
    assert still_running(1, 2, jobs, 2, PROTECTED, backfill=False) == [0, 1]
