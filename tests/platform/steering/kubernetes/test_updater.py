"""Acting on a cluster: order, budgets, Deferred, Infeasible, conflicts, forbidden, the template."""

from typing import Any

import pytest

from loadmaster.platform.steering.core import Action
from loadmaster.platform.steering.kubernetes.checks import find_rival, matches
from loadmaster.platform.steering.kubernetes.resource import parse_spec
from loadmaster.platform.steering.kubernetes.updater import Updater
from loadmaster.platform.steering.kubernetes.workload import read_workload, selector_text
from tests.platform.steering.kubernetes import api_server
from tests.platform.steering.kubernetes.api_server import (
    DEPLOYMENT,
    LABELS,
    PODS,
    ApiServer,
    Fault,
    pod,
    pod_name,
    small_cluster,
)
from tests.platform.steering.kubernetes.conftest import Connect

Change = tuple[str, Any]


def update(
    server: ApiServer, connect: Connect, replicas: float, cpu_m: float, memory_mib: float,
    only_new_pods: bool = False,
) -> Action:  # fmt: skip
    client = connect(server)
    spec = parse_spec(server.objects[api_server.MPA], "shop/cart")
    workload = read_workload(client, spec, "shop/cart")
    plan = {"replicas": replicas, "cpu_m": cpu_m, "memory_mib": memory_mib}
    return Updater(client, workload, only_new_pods).update(plan)


def changes(server: ApiServer) -> list[Change]:
    """Path below the namespace, and the replicas or limits that were written."""
    found: list[Change] = []
    for one in server.changes():
        path = one.path.rpartition("/shop/")[2]
        spec = one.body["spec"]
        if path.endswith("/scale"):
            found.append((path, spec["replicas"]))
        else:
            inside = spec.get("template", one.body)["spec"]
            found.append((path, tuple(inside["containers"][0]["resources"]["limits"].values())))
    return found


def resized(*numbers: int, cpu: str = "600m", memory: str = "512Mi") -> list[Change]:
    return [(f"pods/{pod_name(number)}/resize", (cpu, memory)) for number in numbers]


def replace_pod(server: ApiServer, number: int, **fields: Any) -> None:
    server.put(f"{PODS}/{pod_name(number)}", pod(pod_name(number), **fields))


def add_budget(server: ApiServer, allowed: int, selector: Any = None) -> None:
    server.put(
        "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/cart",
        {
            "metadata": {"name": "cart"},
            "spec": {"selector": {"matchLabels": LABELS} if selector is None else selector},
            "status": {"disruptionsAllowed": allowed},
        },
    )


def test_plan_that_holds_already_changes_nothing(connect: Connect) -> None:
    server = small_cluster()
    assert update(server, connect, 3, 500, 512) == Action("unchanged")
    assert changes(server) == []


def test_replicas_rise_before_pods_are_resized(connect: Connect) -> None:
    server = small_cluster(2)
    assert update(server, connect, 4, 600, 512).result == "acted"
    assert changes(server) == [("deployments/cart/scale", 4), *resized(0, 1)]


def test_replicas_fall_after_the_pods_have_grown(connect: Connect) -> None:
    server = small_cluster(3)
    first = update(server, connect, 2, 600, 512)
    assert (first.result, changes(server)) == ("pending", resized(0, 1, 2))
    for number in range(3):  # specified, and not given yet
        replace_pod(server, number, cpu="600m", actual=("500m", "512Mi"))
    assert update(server, connect, 2, 600, 512).result == "pending"
    for number in range(3):
        replace_pod(server, number, cpu="600m")
    assert update(server, connect, 2, 600, 512).result == "acted"
    assert changes(server)[3:] == [("deployments/cart/scale", 2)]


def test_requests_keep_their_share_of_the_limits(connect: Connect) -> None:
    server = small_cluster(1)
    data = pod(pod_name(0))
    data["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "250m", "memory": "128Mi"}
    server.put(f"{PODS}/{pod_name(0)}", data)
    update(server, connect, 1, 1000, 1024)
    resources = server.changes()[0].body["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "500m", "memory": "256Mi"}


def test_fractions_are_written_in_whole_units(connect: Connect) -> None:
    server = small_cluster(1)
    update(server, connect, 1.5, 600.2, 600.0001)
    size = resized(0, cpu="601m", memory="601Mi")
    assert changes(server) == [("deployments/cart/scale", 2), *size]


def test_deferred_resize_waits_without_eviction_or_template(connect: Connect) -> None:
    server = small_cluster(2)
    fields = {"cpu": "600m", "actual": ("500m", "512Mi"), "pending": "Deferred"}
    for number in range(2):
        replace_pod(server, number, **fields)
    action = update(server, connect, 2, 600, 512)
    assert (action.result, changes(server)) == ("pending", [])
    assert action.messages[0].startswith(f"deferred: {pod_name(0)}")


def test_resize_that_fails_in_the_kubelet_is_pending(connect: Connect) -> None:
    server = small_cluster(1)
    replace_pod(server, 0, cpu="600m", actual=("500m", "512Mi"))
    condition = {"type": "PodResizeInProgress", "status": "True", "reason": "Error"}
    server.objects[f"{PODS}/{pod_name(0)}"]["status"]["conditions"].append(condition)
    action = update(server, connect, 1, 600, 512)
    assert (action.result, action.messages) == ("pending", (f"error: {pod_name(0)}",))


def test_infeasible_resize_is_refused_and_not_repeated(connect: Connect) -> None:
    server = small_cluster(2)
    replace_pod(server, 0, cpu="600m", actual=("500m", "512Mi"), pending="Infeasible")
    action = update(server, connect, 1, 600, 512)
    assert action.result == "refused"
    assert action.messages[0].startswith(f"infeasible: {pod_name(0)}")
    assert changes(server) == resized(1)  # replicas stay: the pod has not grown


def test_budget_limits_restarts(connect: Connect) -> None:
    server = small_cluster(4)
    for number in range(4):
        replace_pod(server, number, restart_on=("memory",))
    add_budget(server, 2)
    action = update(server, connect, 4, 500, 400)
    assert changes(server) == resized(0, 1, cpu="500m", memory="400Mi")
    assert (action.result, action.messages) == (
        "held", ("disruption budget: 2 pods wait for their restart",),
    )  # fmt: skip


def test_without_a_budget_a_quarter_restarts(connect: Connect) -> None:
    server = small_cluster(8)
    for number in range(8):
        replace_pod(server, number, restart_on=("memory",), ready=number > 0)
    update(server, connect, 8, 500, 400)
    # The pod that is not ready is resized at once, and is one of the two that may be down.
    assert changes(server) == resized(0, 1, cpu="500m", memory="400Mi")


def test_budget_does_not_limit_resizes_without_a_restart(connect: Connect) -> None:
    server = small_cluster(3)
    add_budget(server, 0)
    update(server, connect, 3, 600, 512)
    assert changes(server) == resized(0, 1, 2)


def test_budget_limits_the_pods_that_are_removed(connect: Connect) -> None:
    server = small_cluster(5)
    add_budget(server, 1)
    action = update(server, connect, 2, 500, 512)
    assert (action.result, changes(server)) == ("held", [("deployments/cart/scale", 4)])


def test_budget_of_other_pods_does_not_count(connect: Connect) -> None:
    server = small_cluster(5)
    add_budget(server, 0, {"matchLabels": {"app": "other"}})
    update(server, connect, 2, 500, 512)
    assert changes(server) == [("deployments/cart/scale", 2)]


def test_forbidden_is_refused(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", "resize", 403, times=9)]
    action = update(server, connect, 4, 600, 512)
    assert action.result == "refused"
    assert action.messages[0].startswith("forbidden")
    assert len(server.changes()) == 2  # /scale, and one resize: not all pods are tried


def test_invalid_resize_of_one_pod_is_refused_and_the_others_go_on(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", f"{pod_name(0)}/resize", 422)]
    assert update(server, connect, 3, 600, 512).result == "refused"
    assert len(server.changes()) == 3


def test_pod_that_is_gone_is_left_out(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", f"{pod_name(0)}/resize", 404)]
    assert update(server, connect, 3, 600, 512) == Action("acted")


def test_conflict_of_a_resize_waits_for_the_next_step(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", f"{pod_name(0)}/resize", 409)]
    assert update(server, connect, 3, 600, 512).result == "pending"


def test_conflict_of_the_scale_is_tried_again_if_the_replicas_are_the_same(
    connect: Connect,
) -> None:
    server = small_cluster()
    server.faults = [
        Fault("PATCH", "scale", 409, before=lambda: touch(server)),
    ]
    assert update(server, connect, 5, 500, 512) == Action("acted")
    assert server.objects[DEPLOYMENT]["spec"]["replicas"] == 5


def touch(server: ApiServer, replicas: int | None = None) -> None:
    data = server.objects[DEPLOYMENT]
    if replicas is not None:
        data["spec"]["replicas"] = replicas
    server.put(DEPLOYMENT, data)


def test_replicas_of_another_writer_are_not_overwritten(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", "scale", 409, before=lambda: touch(server, 9))]
    action = update(server, connect, 5, 500, 512)
    assert action.result == "refused"
    assert server.objects[DEPLOYMENT]["spec"]["replicas"] == 9


def test_conflicts_without_end_are_given_up(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("PATCH", "scale", 409, times=99)]
    assert update(server, connect, 5, 500, 512).result == "pending"
    assert len(server.changes()) == 3


def test_cluster_without_resize_changes_the_template(connect: Connect) -> None:
    server = small_cluster(resize=False)
    assert update(server, connect, 3, 600, 512).result == "acted"
    assert changes(server) == [("deployments/cart", ("600m", "512Mi"))]
    container = server.objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["resources"]["requests"]["cpu"]) == ("cart:1", "600m")


@pytest.mark.parametrize(
    ("cpu_m", "allowed", "rolled_out", "result"),
    [(520, 1, True, "held"), (600, 0, True, "held"), (600, 1, False, "pending")],
)
def test_template_waits(
    cpu_m: float, allowed: int, rolled_out: bool, result: str, connect: Connect
) -> None:
    server = small_cluster(resize=False)
    add_budget(server, allowed)
    if not rolled_out:
        server.objects[DEPLOYMENT]["status"]["updatedReplicas"] = 1
    assert update(server, connect, 3, cpu_m, 512).result == result
    assert changes(server) == []


def test_mode_initial_sizes_only_pods_that_are_not_ready(connect: Connect) -> None:
    server = small_cluster(2)
    replace_pod(server, 1, ready=False)
    update(server, connect, 3, 600, 512, only_new_pods=True)
    assert changes(server) == [("deployments/cart/scale", 3), *resized(1)]
    old = small_cluster(2, resize=False)
    assert update(old, connect, 2, 600, 512, only_new_pods=True).result == "held"
    assert changes(old) == []


@pytest.mark.parametrize(
    ("path", "spec", "found"),
    [
        ("autoscaling/v1/namespaces/shop/horizontalpodautoscalers", {}, True),
        (
            "autoscaling.k8s.io/v1/namespaces/shop/verticalpodautoscalers",
            {"updatePolicy": {"updateMode": "Auto"}},
            True,
        ),
        (
            "autoscaling.k8s.io/v1/namespaces/shop/verticalpodautoscalers",
            {"updatePolicy": {"updateMode": "Off"}},
            False,
        ),
        ("loadmaster.dev/v1alpha1/namespaces/shop/multidimpodautoscalers", {}, True),
    ],
)
def test_other_autoscalers_of_the_target_are_rivals(
    path: str, spec: Any, found: bool, connect: Connect
) -> None:
    server = small_cluster()
    client = connect(server)
    workload = read_workload(client, parse_spec(server.objects[api_server.MPA], "a/b"), "shop/cart")
    assert find_rival(client, workload, "cart") == ""
    reference = {"kind": "Deployment", "name": "cart"}
    data = {"metadata": {"name": "rival"}, "spec": {**spec}}
    data["spec"] |= {"scaleTargetRef": reference, "targetRef": reference}
    server.put(f"/apis/{path}/rival", data)
    assert ("'rival'" in find_rival(client, workload, "cart")) == found
    reference["name"] = "other"
    assert find_rival(client, workload, "cart") == ""


def test_autoscalers_that_may_not_be_listed_count_as_rivals(connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("GET", "horizontalpodautoscalers", 403)]
    client = connect(server)
    workload = read_workload(client, parse_spec(server.objects[api_server.MPA], "a/b"), "shop/cart")
    assert "may not be listed" in find_rival(client, workload, "cart")


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ({"key": "app", "operator": "In", "values": ["cart"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["cart"]}, False),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
        ({"key": "other", "operator": "In", "values": ["cart"]}, False),
    ],
)
def test_selectors(expression: Any, holds: bool) -> None:
    assert matches({"matchExpressions": [expression]}, LABELS) == holds
    assert matches({}, LABELS)
    text = {"In": "app in (cart)", "NotIn": "app notin (cart)", "Exists": "app"}
    if expression["key"] == "app":
        shown = selector_text({"matchExpressions": [expression]})
        assert shown == text.get(expression["operator"], "!app")
