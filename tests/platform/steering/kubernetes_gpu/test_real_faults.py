"""Faults behind a real kube-scheduler: no pod is lost, and none is bound twice; opt-in."""

import signal
import time

import pytest

from tests.platform.steering.kubernetes.control_plane import wait_for
from tests.platform.steering.kubernetes_gpu.real_cluster import (
    BIND_ORDER,
    ORDER_ROLE,
    RULE,
    Cluster,
    RecordedRule,
)
from tests.platform.steering.test_jobs import Decider

pytestmark = [pytest.mark.slow, pytest.mark.engine("kubernetes")]

BACK_OFF_S = 10.0  # the longest of kube-scheduler
SLACK_S = 10.0  # of a busy machine
HOLD = ("--recommender", "hold:Hold")


def decide(*starts: object, wait: int = 0) -> dict[str, object]:
    return {"start": list(starts), "stop": [], "wait": wait}


def test_dead_extender_is_ignored(cluster: Cluster) -> None:
    steered = cluster.steer(Decider(**decide()))
    steered.step_until(steered.is_live)
    steered.end_server()
    cluster.create("a")
    assert wait_for(lambda: cluster.node("a"), SLACK_S)


def test_stuck_steerer_lets_new_pods_pass(cluster: Cluster) -> None:
    steered = cluster.steer(Decider(**decide()), ttl_s=3)
    steered.step_until(steered.is_live)
    wait_for(lambda: not steered.is_live())
    cluster.create("a")
    assert wait_for(lambda: cluster.node("a"), SLACK_S)


def test_silent_recommender_lets_held_pods_go(cluster: Cluster) -> None:
    decider = Decider(**decide(wait=1))
    steered = cluster.steer(decider, ttl_s=3)
    steered.step_until(steered.is_live)
    cluster.create("a")
    steered.step_until(lambda _: steered.table.held())
    decider.decision = None
    steered.steerer.cadence = steered.steerer.cadence.model_copy(update={"stale_s": 1.0})

    def bound() -> str:
        steered.step()
        return cluster.node("a")

    wait_for(bound, BACK_OFF_S + SLACK_S)
    assert cluster.bindings() == {"a": 1}


def test_command_that_is_killed_leaves_the_pods_to_kube_scheduler(cluster: Cluster) -> None:
    names = [f"job-{number}" for number in range(12)]
    command = cluster.command("--recommender", RULE)
    cluster.create(*names, run_s=3)
    wait_for(cluster.bound)
    command.kill()
    command.wait()
    cluster.create("after")
    wait_for(lambda: cluster.node("after"), SLACK_S)
    wait_for(lambda: cluster.bound() == {*names, "after"})
    assert cluster.bindings() == dict.fromkeys((*names, "after"), 1)


def test_command_that_is_killed_is_started_anew(cluster: Cluster) -> None:
    command = cluster.command(*HOLD)
    cluster.create("a")
    wait_for(lambda: "loadmaster: " in cluster.failures("a"))
    command.kill()
    command.wait()
    second = cluster.command("--recommender", RULE)
    wait_for(lambda: cluster.node("a"))
    cluster.create("b")
    wait_for(lambda: cluster.node("b"))
    assert cluster.bindings() == {"a": 1, "b": 1}
    assert second.poll() is None


def test_end_of_the_command_lets_held_pods_go_at_once(cluster: Cluster) -> None:
    command = cluster.command(*HOLD)
    cluster.create("a")
    wait_for(lambda: "loadmaster: " in cluster.failures("a"))
    command.send_signal(signal.SIGTERM)
    assert command.wait(60) == 0
    wait_for(lambda: cluster.node("a"), BACK_OFF_S + SLACK_S)


def test_api_server_that_stops_and_comes_back(cluster: Cluster) -> None:
    rule = RecordedRule()
    steered = cluster.steer(rule)
    steered.step_until(steered.is_live)
    names = [f"job-{number}" for number in range(10)]
    cluster.create(*names, run_s=3)
    steered.step_until(lambda _: cluster.bound())
    cluster.plane.stop_api_server()
    results = [steered.step() for _ in range(2)]
    assert {one.silent for one in results} == {"engine"}
    cluster.plane.start_api_server()

    def ended() -> bool:
        steered.step()
        return cluster.has_ended()

    wait_for(ended)
    wait_for(lambda: not steered.step().degraded)
    assert cluster.pods().keys() == set(names)
    assert set(cluster.bindings().values()) == {1}


def test_without_the_right_to_patch_no_pod_is_held_back(cluster: Cluster) -> None:
    steered = cluster.steer(RecordedRule())
    steered.step_until(steered.is_live)
    cluster.plane.kubectl("delete", "clusterrolebinding", ORDER_ROLE)
    try:
        cluster.create("a")
        refused = wait_for(lambda: next((one for one in [steered.step()] if one.degraded), None))
        assert refused.result == "refused"
        assert any("403" in one for one in refused.messages)
        cluster.create("b")
        began_s = time.monotonic()
        wait_for(lambda: cluster.node("b"), SLACK_S)
        assert time.monotonic() - began_s < SLACK_S
    finally:
        cluster.plane.kubectl(*BIND_ORDER)

    def steered_again() -> bool:
        steered.step()
        return bool(cluster.node("a")) and steered.is_live()

    wait_for(steered_again)
    assert cluster.bindings() == {"a": 1, "b": 1}
