"""Preemption small enough to work out with pencil and paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.cluster import MachineGroup, build_cluster
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.preemption import preempt_lower_ranked
from loadmaster.envs.gpu_scheduling.rollout import no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import offer, run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from tests.envs.gpu_scheduling.doors import (
    Given,
    finish,
    first_come_first_fit,
    running,
    running_first,
)
from tests.envs.gpu_scheduling.instances import jobs_of

# One machine of two GPUs: A and B hold one each; C, which wants one, comes at 2 s.
ONE_GPU = (100, 100, ANY_TYPE, 0.0, 0)
PAIR = {
    "machines": (MachineGroup(count=1, gpus=2, gpu="V100", cpus=32),),
    "arrivals": "trace",
    "stragglers": 0,
    "interference": False,
    "preempt": True,
    "max_queue": 4,
    "restart_s": 60,
}


def three_jobs(**changed: Any) -> tuple[GpuSchedulingEnv, dict[str, Any]]:
    rows = [(0.0, 10.0, 1, *ONE_GPU), (1.0, 10.0, 1, *ONE_GPU), (2.0, 4.0, 1, *ONE_GPU)]
    env = GpuSchedulingEnv(Given(jobs_of(rows)), record=True, **{**PAIR, **changed})
    env.reset(seed=0)
    for _ in range(2):
        observations, *_ = env.step(first_come_first_fit(env))
    return env, observations[ORDERING]


def test_what_is_shown_when_everything_is_reconsidered() -> None:
    env, seen = three_jobs()
    assert env._desk.counts[on.MOMENT] == on.RECONSIDERING
    assert seen["job_mask"].tolist() == seen["heeded"].tolist() == [True, True, True, False]
    assert not seen["held"].any()
    assert not seen["rack_held"].any()
    columns = seen["jobs"][:3]
    assert columns[:, told.RUNNING].tolist() == [1, 1, 0]
    assert not columns[:, told.STARTS].any()
    minutes = np.array([2, 1, 0]) / 60
    assert columns[:, told.RAN] == pytest.approx(np.log1p(minutes))
    assert columns[:, told.ATTAINED] == pytest.approx(np.log1p(minutes))
    assert columns[:, told.WAITED] == pytest.approx(np.log1p(minutes))
    assert not columns[:, told.BEYOND].any()


def test_attained_service_beyond_the_threshold_is_told() -> None:
    """Five GPUs for an hour and a bit are just past 18,000 GPU-seconds."""
    rows = [(0.0, 9000.0, 5, *ONE_GPU), (3700.0, 4.0, 5, *ONE_GPU)]
    machine = MachineGroup(count=1, gpus=5, gpu="V100", cpus=32)
    env = GpuSchedulingEnv(Given(jobs_of(rows)), **{**PAIR, "machines": (machine,)})
    env.reset(seed=0)
    seen = env.step(first_come_first_fit(env))[0][ORDERING]["jobs"]
    minutes = 5 * 3700 / 60
    assert seen[0, told.ATTAINED] == pytest.approx(np.log1p(minutes))
    assert seen[0, told.BEYOND] == pytest.approx(np.log((1 + minutes) / (1 + 300)), rel=1e-4)
    assert seen[1, told.BEYOND] == 0


@pytest.mark.parametrize(
    ("priority", "finish_s"),
    [
        # C turns out whoever comes last. That one had run 2 s (A) or 1 s (B), loses it, and goes
        # on when C ends at 6 s.
        ([1, 2, 3], [16, 11, 6]),
        ([2, 1, 3], [10, 16, 6]),
        ([3, 1, 2], [10, 16, 6]),
        # Both come before C, which waits for A to end.
        ([3, 2, 1], [10, 11, 14]),
    ],
)
def test_who_is_stopped_for_whom_by_hand(priority: list[float], finish_s: list[float]) -> None:
    env, _ = three_jobs()
    actions = first_come_first_fit(env)
    actions[ORDERING][:3] = priority
    seen = env.step(actions)[0][ORDERING]
    if priority[2] > 1:
        assert env._desk.counts[on.MOMENT] == on.PLACING_AGAIN
        assert env.result().preemptions == 1
        assert seen["job_mask"].tolist() == [True, True, False, False]
        assert seen["history_t"].tolist()[:3] == [0, 1, 2]  # one row an event
        last = first_come_first_fit(env)
        last[ORDERING][:2] = [0, 1]  # C, not the one just stopped
        env.step(last)
    finish(env, running_first)
    result = env.result()
    assert result.finish_s.tolist() == finish_s
    run_s = np.array(finish_s) - [0, 1, 2]
    for job, jct_s in enumerate(run_s):
        waited = 4.0 if finish_s[job] == 16 else 8.0 if finish_s[job] == 14 else 0.0
        assert result.run_s[job] == jct_s - waited
    assert result.fee == pytest.approx(result.run_s * env.cluster.price_per_s[0])


def test_a_stopped_job_may_be_placed_again_at_once_and_loses_its_work_all_the_same() -> None:
    env, _ = three_jobs()
    actions = first_come_first_fit(env)
    actions[ORDERING][:3] = [1, 2, 3]
    env.step(actions)
    env.step(first_come_first_fit(env))  # A again, which came first
    finish(env, running_first)
    assert env.result().finish_s.tolist() == [12, 11, 15]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_priorities_that_are_no_numbers_come_last_here_too(wrong: float) -> None:
    env, _ = three_jobs()
    actions = first_come_first_fit(env)
    actions[ORDERING][:3] = [wrong, 2, 3]
    infos = env.step(actions)[4]
    assert infos[ORDERING]["legal"] is False
    assert running(env) == {1}


def test_jobs_that_wait_in_hiding_are_counted_when_running_ones_are_shown() -> None:
    env, _ = three_jobs()
    assert env._told()["hidden"] == 0
    crowded, seen = three_jobs(max_queue=1)
    # One row, and somebody waits: no running job could be shown, so nothing is reconsidered.
    assert crowded._desk.counts[on.MOMENT] == on.PLACING
    assert seen["jobs"][0, told.RUNNING] == 0
    assert crowded._state.times[at.NOW] == 10


def test_a_rack_that_holds_a_gang_is_told_as_a_whole() -> None:
    """Twelve twelfths in single precision are less than one."""
    machine = MachineGroup(count=12, gpus=1, gpu="V100", cpus=32, machines_per_rack=12)
    job = (0.0, 5.0, 12, *ONE_GPU)
    env = GpuSchedulingEnv(Given(jobs_of([job])), **{**PAIR, "machines": (machine,)})
    observations, _ = env.reset(seed=0)
    assert observations[PLACEMENT]["rack_held"][0].tolist() == [1]


def still_running(
    machines: int,
    gpus: int,
    jobs: list[tuple[int, int]],
    started: int,
    keys: list[float],
    backfill: bool = True,
) -> list[int]:
    """Who is left after `make_way`; jobs are (instances, GPUs of each), the lowest key first.

    The first `started` fill the machines from the first on; the others came and wait.
    """
    group = MachineGroup(count=machines, gpus=gpus, gpu="V100", cpus=64)
    settings = GpuSchedulingSettings(machines=(group,), backfill=backfill, stragglers=0)
    rows = [
        (float(number), 100.0, instances, 100 * each, 100, ANY_TYPE, 0.0, 0)
        for number, (instances, each) in enumerate(jobs)
    ]
    cluster, table = build_cluster(settings), jobs_of(rows)
    state = at.new_state(settings, cluster, table, seed=0)
    for number in range(len(jobs)):
        assert advance(state, cluster, table, rules.FIFO) == at.DECIDE
        if number < started:
            asked = rules.FIFO, rules.FIRST_FIT, no_preferences(table)
            assert run_scheduling_pass(state, cluster, table, *asked) == 1
    state.key[:started] = keys[:started]
    waiting = np.arange(started, len(jobs))
    offer(state, table, waiting, -np.array(keys[started:]), len(waiting))
    before, free = state.free.copy(), np.zeros((machines, 2), np.int64)
    stopped = preempt_lower_ranked(state, cluster, table, free)
    left: list[int] = np.flatnonzero(state.jobs[:-1, at.ROWS_USED] > 0).tolist()
    assert len(left) == started - stopped
    assert state.clock[at.PREEMPTIONS] == stopped
    assert state.clock[at.QUEUED] == len(jobs) - len(left)
    assert (state.free.sum(0) - before.sum(0)).tolist() == [
        sum(100 * jobs[job][0] * each for job in range(started) if job not in left)
        for each in (jobs[0][1], 1)
    ]
    return left


ONE = (1, 1)  # an instance with a GPU


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ([0, 1, 2], [0, 1]),  # the one that waits comes last
        ([0, 2, 1], [0]),
        ([2, 0, 1], [1]),
        ([1, 2, 0], [0]),
        ([2, 1, 0], [1]),
        ([-np.inf, -np.inf, 0], [0, 1]),  # not shown: safe
        ([0, 1, np.inf], [0, 1]),  # not offered: asks for nothing
    ],
)
def test_the_last_in_the_order_gives_way(keys: list[float], left: list[int]) -> None:
    assert still_running(1, 2, [ONE, ONE, ONE], 2, keys) == left


def test_a_free_place_elsewhere_spares_everybody() -> None:
    assert still_running(2, 1, [ONE, ONE], 1, [1, 0]) == [0]
    # The second that waits finds that place booked, and takes that of the last.
    assert still_running(2, 1, [ONE, ONE, ONE], 1, [2, 0, 1]) == []
    assert still_running(2, 1, [ONE, ONE, ONE], 1, [1, 0, 2]) == [0]


def test_a_gang_turns_out_as_many_as_it_needs_and_only_those_behind_it() -> None:
    """Three machines of one GPU, of which one is free; the gang wants two."""
    gang = (2, 1)
    assert still_running(3, 1, [ONE, ONE, gang], 2, [0, 2, 1]) == [0]
    assert still_running(3, 1, [ONE, ONE, gang], 2, [2, 0, 1]) == [1]
    assert still_running(3, 1, [ONE, ONE, gang], 2, [0, 1, 2]) == [0, 1]


def test_a_gang_that_cannot_have_all_takes_nothing() -> None:
    """Two of three machines are held by a job before it: half a gang is of no use to anybody."""
    held, gang = (2, 1), (2, 1)
    assert still_running(3, 1, [held, ONE, gang], 2, [0, 2, 1]) == [0, 1]


def test_in_a_strict_queue_nobody_gives_way_to_those_behind_a_job_without_room() -> None:
    """The first that waits wants both GPUs of which one is safe; the next could have the other."""
    jobs = [ONE, ONE, (1, 2), ONE]
    keys = [-np.inf, 3.0, 1.0, 2.0]
    assert still_running(1, 2, jobs, 2, keys) == [0]
    assert still_running(1, 2, jobs, 2, keys, backfill=False) == [0, 1]
