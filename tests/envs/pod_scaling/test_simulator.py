"""The simulator: requests are conserved, pods and nodes follow their rules."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.actions import CHANGES, apply_action
from loadmaster.envs.pod_scaling.episode import build_episode
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    ARRIVED,
    CPU,
    LOST,
    MEMORY,
    NODE,
    NODE_CPU,
    NODE_MEMORY,
    NODE_READY_AT,
    NOW,
    OOMS,
    P99_S,
    PODS,
    PRESERVED,
    QUEUED,
    R_PODS,
    R_READY,
    READY_AT,
    REPLICAS,
    REQUEST_COLUMNS,
    RESTARTS,
    RUNNING,
    S_CPU_USE,
    S_TIMED_OUT,
    SERVED,
    SETTLED,
    TIMED_OUT,
    SimState,
)
from tests.envs.pod_scaling.episodes import PLAIN, last_step, set_level, set_load, setting, start

HOLD = CHANGES.index(1.0)
FREE_NODES = {"node_cpu_m": 1e6, "node_memory_mib": 1e7}


def balances(state: SimState) -> None:
    counts = state.requests
    assert counts.shape == (REQUEST_COLUMNS,)
    assert (counts >= 0).all()
    ended = counts[SERVED] + counts[TIMED_OUT] + counts[LOST]
    assert counts[ARRIVED] == ended + counts[QUEUED] + counts[RUNNING]


def plan(setup: Any, state: SimState, cores: float, mib: float, replicas: int) -> None:
    """Set a plan by the action that stands for it."""
    wanted = np.zeros(3)
    wanted[[CPU, MEMORY, REPLICAS]] = cores, mib, replicas
    low, high = setup.constants.low, setup.constants.high
    share = np.log(wanted / low) / np.log(high / low)
    assert apply_action(setup.constants, state, (2 * share - 1).astype(np.float32))


@pytest.mark.parametrize("resize", ["in-place", "evict"])
@pytest.mark.parametrize("workload", ["diurnal-like", "bursty-like"])
def test_requests_are_conserved_in_every_interval(resize: str, workload: str) -> None:
    settings, setup = setting(
        None, application="train", workload=workload, resize=resize, steps=60, load_scale=3.0
    )
    total = np.zeros(REQUEST_COLUMNS, np.int64)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        state = build_episode(settings, setup, seed).state
        for interval in range(len(state.arrivals)):
            if interval % STEP_INTERVALS == 0:
                apply_action(setup.constants, state, rng.uniform(-1, 1, 3).astype(np.float32))
            advance(setup.constants, state, 1)
            balances(state)
            _resources_balance(setup, state)
        total += state.requests
    assert (total > 0).all(), "every way to end occurs"


def _resources_balance(setup: Any, state: SimState) -> None:
    """What pods hold and what nodes have free add up to the nodes."""
    pods = state.pods[: state.clock[PODS]]
    for number, node in enumerate(state.nodes):
        if np.isfinite(node[NODE_READY_AT]):
            held = pods[pods[:, NODE] == number]
            assert node[NODE_CPU] + held[:, CPU].sum() == pytest.approx(setup.constants.node_cores)
            memory = node[NODE_MEMORY] + held[:, MEMORY].sum()
            assert memory == pytest.approx(setup.constants.node_mib)
            assert node[NODE_CPU] >= -1e-6


def test_random_numbers_do_not_depend_on_actions() -> None:
    settings, setup = setting(None, application="test", workload="bursty-like")
    states = [build_episode(settings, setup, 4).state for _ in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(settings.steps):
        apply_action(setup.constants, states[0], rng.uniform(-1, 1, 3).astype(np.float32))
        for state in states:
            advance(setup.constants, state, STEP_INTERVALS)
    for name in ("arrivals", "levels", "phases", "peaks", "delays", "missing", "apps"):
        assert np.array_equal(getattr(states[0], name), getattr(states[1], name))
    other = build_episode(settings, setup, 5).state
    assert not np.array_equal(states[0].arrivals, other.arrivals)


def test_backlog_grows_waits_and_times_out() -> None:
    """10 requests a second at a capacity of 5: 75 more wait after each interval."""
    setup, state = start(initial_replicas=1, initial_cpu_m=500, timeout_s=40, missing_metrics=0)
    queued = []
    for _ in range(4):
        advance(setup.constants, state, 1)
        queued.append(int(state.requests[QUEUED]))
    assert queued == [75, 150, 200, 200], "40 s at 5 requests a second"
    assert state.requests[TIMED_OUT] == 25 + 75
    assert last_step(state)[P99_S] == 40.0
    assert last_step(state)[S_CPU_USE] == pytest.approx(1.0)
    plan(setup, state, 2.0, 400, 2)
    advance(setup.constants, state, 2 * STEP_INTERVALS)
    assert state.requests[QUEUED] == 0
    assert last_step(state)[S_TIMED_OUT] == 0


def test_wait_of_a_backlog_is_its_length_by_the_capacity() -> None:
    setup, state = start(initial_replicas=1, initial_cpu_m=1000, timeout_s=1000)
    set_level(state)
    set_load(state, [600] + [0] * (len(state.arrivals) - 1))
    advance(setup.constants, state, 1)
    assert state.requests[QUEUED] == 450
    advance(setup.constants, state, 3)
    # The mean of the queue before and after, at 10 requests a second, and a request alone.
    assert last_step(state)[P99_S] > 0.5 * 450 / 10 + 0.1 * math.log(100)


def test_new_pods_take_their_start_and_readiness() -> None:
    slow = replace(PLAIN, start_s=20.0)
    setup, state = start(slow, initial_replicas=2, start_sigma=0.0, readiness_s=5.0, **FREE_NODES)
    advance(setup.constants, state, STEP_INTERVALS)
    plan(setup, state, *state.plan[[CPU, MEMORY]], 6)
    advance(setup.constants, state, STEP_INTERVALS)
    rows = state.reports[STEP_INTERVALS : 2 * STEP_INTERVALS]
    assert rows[:, R_PODS].tolist() == [6, 6, 6, 6]
    assert rows[:, R_READY].tolist() == [2, 6, 6, 6], "ready after 25 s, in the second interval"
    assert (state.pods[2:6, READY_AT] == STEP_INTERVALS * INTERVAL_S + 25).all()


def test_start_times_are_lognormal() -> None:
    setup, state = start(
        initial_replicas=1, start_sigma=0.5, readiness_s=0.0, max_replicas=1000, **FREE_NODES
    )
    advance(setup.constants, state, 1)
    plan(setup, state, *state.plan[[CPU, MEMORY]], 1000)
    advance(setup.constants, state, 1)
    logs = np.log((state.pods[1:1000, READY_AT] - INTERVAL_S) / PLAIN.start_s)
    assert logs.mean() == pytest.approx(0.0, abs=0.05)
    assert logs.std() == pytest.approx(0.5, rel=0.1)


def test_eviction_keeps_half_of_the_pods_and_the_budget() -> None:
    for budget, least in ((0.25, 6), (1.0, 4)):
        setup, state = start(
            replace(PLAIN, start_s=20), initial_replicas=8, initial_cpu_m=500, resize="evict",
            max_unavailable=budget, **FREE_NODES,
        )  # fmt: skip
        advance(setup.constants, state, STEP_INTERVALS)
        plan(setup, state, 1.0, 400, 8)
        ready = []
        while not (state.pods[:8, CPU] == state.plan[CPU]).all():
            before = int(state.clock[NOW]) * INTERVAL_S
            advance(setup.constants, state, 1)
            ready.append(int((state.pods[:8, READY_AT] <= before).sum()))
        assert min(ready) == least
        assert state.clock[RESTARTS] == 8


def test_resize_in_place_is_immediate_deferred_or_infeasible() -> None:
    setup, state = start(
        initial_replicas=2, initial_cpu_m=500, initial_memory_mib=300, node_cpu_m=1500, nodes=1,
        max_nodes=1,
    )  # fmt: skip
    advance(setup.constants, state, STEP_INTERVALS)
    plan(setup, state, 0.7, 300, 2)
    advance(setup.constants, state, 1)
    assert (state.pods[:2, CPU] == state.plan[CPU]).all(), "at once"
    assert state.clock[RESTARTS] == 0
    plan(setup, state, 1.2, 300, 2)
    advance(setup.constants, state, 1)
    assert (state.pods[:2, CPU] < 1.0).all(), "deferred: the node has 0.1 cores left"
    plan(setup, state, 1.2, 300, 1)
    advance(setup.constants, state, 1)
    assert state.pods[0, CPU] == pytest.approx(1.2, rel=1e-5), "room since the other pod is gone"
    plan(setup, state, 1.9, 300, 1)
    advance(setup.constants, state, 4)
    assert state.pods[0, CPU] == pytest.approx(1.2, rel=1e-5), "infeasible: the node has 1.5"


def test_memory_grows_at_once_and_shrinks_with_a_restart() -> None:
    setup, state = start(initial_replicas=4, initial_memory_mib=300, **FREE_NODES)
    advance(setup.constants, state, STEP_INTERVALS)
    plan(setup, state, state.plan[CPU], 600, 4)
    advance(setup.constants, state, STEP_INTERVALS)
    assert (state.pods[:4, MEMORY] == state.plan[MEMORY]).all()
    assert state.clock[RESTARTS] == 0
    plan(setup, state, state.plan[CPU], 300, 4)
    advance(setup.constants, state, 1)
    assert state.clock[RESTARTS] == 1, "a quarter of the pods at once"
    advance(setup.constants, state, 12)
    assert state.clock[RESTARTS] == 4


def test_pod_without_memory_is_killed_and_backs_off() -> None:
    """A request in flight takes 300 MiB, more than the pod has left."""
    greedy = replace(PLAIN, memory_mib=200, request_mib=300, start_s=2.0)
    setup, state = start(
        greedy, initial_replicas=1, initial_cpu_m=2000, initial_memory_mib=300, start_sigma=0.0,
        readiness_s=0.0, steps=20,
    )  # fmt: skip
    advance(setup.constants, state, 1)
    assert state.clock[OOMS] == 1
    assert state.requests[LOST] > 0
    ends = [float(state.pods[0, READY_AT])]
    while len(ends) < 5:
        advance(setup.constants, state, 1)
        if state.pods[0, READY_AT] != ends[-1]:
            ends.append(float(state.pods[0, READY_AT]))
    assert ends[0] == INTERVAL_S + 10 + 2
    assert np.diff(ends)[-1] > 2 * np.diff(ends)[0], "back-offs double"
    balances(state)


def test_pod_below_the_memory_of_its_application_is_never_ready() -> None:
    setup, state = start(replace(PLAIN, memory_mib=400), initial_memory_mib=300, steps=20)
    advance(setup.constants, state, 3 * STEP_INTERVALS)
    assert state.clock[OOMS] >= 4
    assert state.requests[SERVED] == 0
    assert (state.reports[: 3 * STEP_INTERVALS, R_READY] == 0).all()
    assert last_step(state)[PRESERVED] < 0.1
    plan(setup, state, state.plan[CPU], 600, 2)
    advance(setup.constants, state, 6 * STEP_INTERVALS)
    assert state.reports[state.clock[NOW] - 1, R_READY] == 2
    balances(state)


def test_pods_wait_for_a_new_node() -> None:
    setup, state = start(
        initial_replicas=2, initial_cpu_m=1000, node_cpu_m=2000, nodes=1, max_nodes=2,
        node_start_s=120, steps=30,
    )  # fmt: skip
    advance(setup.constants, state, STEP_INTERVALS)
    plan(setup, state, 1.0, 400, 5)
    advance(setup.constants, state, 1)
    assert (state.pods[:5, NODE] == -1).sum() == 3
    ready_at = state.nodes[1, NODE_READY_AT]
    assert 60 + 60 < ready_at < 60 + 300
    while state.clock[NOW] * INTERVAL_S < ready_at + INTERVAL_S:
        advance(setup.constants, state, 1)
    assert (state.pods[:5, NODE] == 1).sum() == 2, "the fifth pod has no room, nor a third node"
    plan(setup, state, 1.0, 400, 2)
    advance(setup.constants, state, 50)
    assert np.isinf(state.nodes[1, NODE_READY_AT]), "the empty node is removed"


def test_illegal_actions_change_nothing() -> None:
    for values, action in (
        ({}, [np.nan, 0, 0]),
        ({"actions": "discrete"}, [5, HOLD, HOLD]),
        ({"actions": "discrete"}, [-1, HOLD, HOLD]),
    ):
        setup, state = start(**values)  # type: ignore[arg-type]
        before = state.plan.copy()
        assert not apply_action(setup.constants, state, np.array(action, np.float32))
        assert np.array_equal(before, state.plan)


def test_actions_are_places_between_the_bounds() -> None:
    setup, state = start()
    for action, cores, mib, replicas in (
        ([-1, -1, -1], 0.128, 256, 1),
        ([1, 1, 1], 2.048, 3072, 20),
        ([0, 0, 0], 0.512, math.sqrt(256 * 3072), 4),  # of 20^0.5, 4.47
        ([9, -9, 0.1], 2.048, 256, 5),
    ):
        apply_action(setup.constants, state, np.array(action, np.float32))
        np.testing.assert_allclose(state.plan, [cores, mib, replicas], rtol=1e-5)


def test_discrete_actions_are_factors() -> None:
    setup, state = start(actions="discrete", initial_replicas=3, initial_cpu_m=1000)
    hold = np.full(3, HOLD, np.float32)
    apply_action(setup.constants, state, hold)
    assert state.plan[REPLICAS] == 3
    for change, replicas in ((1, 2), (3, 3), (4, 6), (0, 3), (0, 1), (0, 1)):
        action = hold.copy()
        action[REPLICAS] = change
        apply_action(setup.constants, state, action)
        assert state.plan[REPLICAS] == replicas
    action = hold.copy()
    action[CPU] = 4
    apply_action(setup.constants, state, action)
    assert state.plan[CPU] == 2.0


def test_small_changes_of_size_are_left_out() -> None:
    setup, state = start(actions="continuous", initial_cpu_m=512, resize_tolerance=0.05)
    action = np.array([0.02, -1, -1], np.float32)
    apply_action(setup.constants, state, action)
    assert state.plan[CPU] == 0.512
    apply_action(setup.constants, state, np.array([0.1, -1, -1], np.float32))
    assert state.plan[CPU] > 0.55


def test_backlog_does_not_time_out_while_its_pods_get_ready() -> None:
    """Pods that are ready for the last second of an interval will serve what waits."""
    slow = replace(PLAIN, start_s=9.0)
    setup, state = start(
        slow, initial_replicas=1, initial_cpu_m=1000, start_sigma=0.0, readiness_s=5.0,
        timeout_s=30, **FREE_NODES,
    )  # fmt: skip
    set_load(state, 30)
    advance(setup.constants, state, STEP_INTERVALS)
    state.pods[0, READY_AT], state.clock[SETTLED] = STEP_INTERVALS * INTERVAL_S + 14.0, 0
    advance(setup.constants, state, 4)
    assert state.requests[TIMED_OUT] == 0
    assert state.requests[QUEUED] == 0
