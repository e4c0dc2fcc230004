"""Order, nodes, scores and modes behind a real kube-scheduler; opt-in.

The steerer has the rights of docker/kubernetes/gpu-rbac.yaml and no others.
"""

from typing import Any

import pytest

from loadmaster.platform.steering.core import Mode
from loadmaster.platform.steering.kubernetes_gpu.engine import SPEC, TRIED
from loadmaster.platform.steering.recommenders import find_recommender
from tests.platform.steering.kubernetes.control_plane import wait_for
from tests.platform.steering.kubernetes_gpu.cluster import PODS
from tests.platform.steering.kubernetes_gpu.real_cluster import RULE, Cluster, RecordedRule
from tests.platform.steering.test_jobs import Decider

pytestmark = [pytest.mark.slow, pytest.mark.engine("kubernetes")]


RETRIED_S = 120.0  # kube-scheduler tries pods again without an event after 60 to 90 s


def place(name: str, node: str) -> dict[str, Any]:
    return {"job": f"team/{name}", "placements": [{"machine": node, "instances": 1}]}


def decide(*starts: dict[str, Any], wait: int = 0) -> dict[str, Any]:
    return {"start": list(starts), "stop": [], "wait": wait}


def test_pods_start_in_the_order_and_on_the_nodes_of_decisions(cluster: Cluster) -> None:
    decider = Decider(**decide())
    steered = cluster.steer(decider)
    steered.step_until(steered.is_live)
    cluster.create("a", "b")
    steered.step_until(lambda _: len(steered.table.held()) == 2)
    assert cluster.bound() == set()
    decider.decision = decide(place("b", "n2"), wait=1)
    steered.step_until(lambda _: cluster.node("b"))
    assert (cluster.node("a"), cluster.node("b")) == ("", "n2")
    reason = "loadmaster: waits; decider: because"
    steered.step_until(lambda _: reason in cluster.failures("a"), RETRIED_S)
    steered.engine.release()
    wait_for(lambda: cluster.node("a"))
    assert cluster.bindings() == {"a": 1, "b": 1}


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_is_changed_without_act(cluster: Cluster, mode: Mode) -> None:
    steered = cluster.steer(find_recommender([RULE], SPEC.endpoint), mode)
    steered.step()
    cluster.create("a", "b", gpus=4)
    wait_for(lambda: len(cluster.bound()) == 2)
    cluster.create("c", gpus=4)
    wait_for(lambda: "Insufficient" in cluster.failures("c"))
    steered.step_until(lambda result: result.commands == ())
    node = cluster.node("a")
    cluster.admin.delete(f"{PODS}/a")
    found = steered.step_until(lambda result: result.commands or cluster.node("c"))
    if found != node:  # else kube-scheduler was faster than the step
        assert found == (f"start team/c on {node} x1",)
    wait_for(lambda: cluster.node("c"))
    result = steered.step()
    if mode == "shadow" and found != node:
        assert result.agreement == 1.0
    assert steered.table.counts() == {"starts": 0, "waits": 0, "live": False}
    assert TRIED not in (cluster.pods()["c"]["metadata"].get("annotations") or {})


def test_score_decides_the_node(cluster: Cluster) -> None:
    decider = Decider(**decide())
    steered = cluster.steer(decider, order=False)
    steered.step()
    cluster.create("a", "b", gpus=4)
    wait_for(lambda: len(cluster.bound()) == 2)
    for name, node in (("c", "n1"), ("d", "n2")):
        cluster.create(name)
        wait_for(lambda name=name: "Insufficient" in cluster.failures(name))
        decider.decision = decide(place(name, node))
        steered.step_until(lambda _: steered.table.counts()["starts"])
        free = [one for one in ("a", "b") if one in cluster.pods()]
        for one in free:
            cluster.admin.delete(f"{PODS}/{one}")
        assert wait_for(lambda name=name: cluster.node(name)) == node
        if name == "c":
            cluster.admin.delete(f"{PODS}/c")
            cluster.create("a", "b", gpus=4)
            wait_for(lambda: {"a", "b"} <= cluster.bound())


def test_all_jobs_run_once_as_a_rule_places_them(cluster: Cluster) -> None:
    rule = RecordedRule()
    steered = cluster.steer(rule)
    steered.step_until(steered.is_live)
    gang = [f"gang-{place}" for place in range(3)]
    cluster.create(*gang, gpus=2, job="gang", size=3, run_s=2)
    singles = [f"single-{number}" for number in range(4)]
    cluster.create(*singles, gpus=2, run_s=2)
    steered.step_until(lambda _: cluster.has_ended())
    steered.step()
    assert cluster.bindings() == dict.fromkeys((*gang, *singles), 1)
    assert set(rule.outcomes) == {"team/gang", *(f"team/{name}" for name in singles)}
    assert all(one["run_s"] >= 1 for one in rule.outcomes.values())
