"""MPA objects on a real control plane: modes, rights, faults, the command; opt-in.

The steerer has the rights of docker/kubernetes/rbac.yaml and no others. Controllers make the pods,
kube-scheduler binds them, and their kubelets are simulated.
"""

import os
import signal
import time
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Mode
from loadmaster.platform.steering.kubernetes.client import ApiError
from loadmaster.platform.steering.kubernetes.engine import MpaEngine
from loadmaster.platform.steering.kubernetes.resource import PAUSED
from loadmaster.platform.steering.kubernetes.updater import has_resize
from tests.platform.steering.kubernetes.api_server import DEPLOYMENT, MPA, PODS, mpa_object, pod
from tests.platform.steering.kubernetes.control_plane import wait_for
from tests.platform.steering.kubernetes.real_workload import (
    EVENTS,
    HPA,
    FixedReader,
    Shop,
    SilentReader,
)

pytestmark = [pytest.mark.slow, pytest.mark.engine("kubernetes")]

MORE = (5, 800, 1024)  # replicas, CPU and memory; there are 3 pods of 500m and 512Mi
APPLY_ROLE = "loadmaster-steer-apply"


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_nothing_but_the_status_is_changed_without_act(shop: Shop, mode: Mode) -> None:
    before = shop.deployment()["spec"]
    result = shop.step(MORE, mode)
    assert (result.result, result.degraded) == ("dry-run", False), result
    status = shop.status()
    assert status["recommendation"] == {"replicas": 5, "cpu": "800m", "memory": "1024Mi"}
    assert (status["lastSafe"]["replicas"], status["mode"]) == (3, "DryRun")
    assert status["memory"]["measured"] is True
    assert shop.deployment()["spec"] == before


def test_replicas_and_sizes_reach_the_pods(shop: Shop) -> None:
    assert shop.step(MORE).result == "acted"
    shop.wait_ready(5)
    wait_for(lambda: shop.limits() == [("800m", "1Gi")] * 5)
    (container,) = shop.deployment()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "cart:1"
    if not has_resize(shop.admin):
        assert container["resources"]["limits"] == {"cpu": "800m", "memory": "1Gi"}
    shop.wait_ready(5)
    result = shop.step(MORE)
    assert (result.result, result.degraded) == ("unchanged", False), result
    assert {one["reason"] for one in shop.admin.list(EVENTS)} >= {"Acted"}
    assert shop.step((3, 800, 1024)).result == "acted"
    shop.wait_ready(3)


def test_nothing_falls_below_what_was_recommended_before(shop: Shop) -> None:
    shop.admin.patch(MPA, {"spec": {"stabilisationSeconds": 300}})
    shop.step((5, 500, 512), "watch")
    shop.admin.patch(f"{DEPLOYMENT}/scale", {"spec": {"replicas": 6}})
    shop.wait_ready(6)
    result = shop.step((3, 500, 512))
    assert shop.replicas == 5, result


def test_target_of_an_hpa_is_refused(shop: Shop) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 9}
    shop.admin.create(HPA, {"metadata": {"name": "cart"}, "spec": spec})
    result = shop.step(MORE)
    assert (result.result, result.degraded) == ("refused", True), result
    degraded = {one["type"]: one for one in shop.status()["conditions"]}["Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "Refused")
    assert shop.replicas == 3


def test_pause(shop: Shop) -> None:
    shop.admin.patch(MPA, {"metadata": {"annotations": {PAUSED: "true"}}})
    assert shop.step(MORE).result == "held"
    assert shop.replicas == 3


def test_schema_refuses_wrong_objects(shop: Shop) -> None:
    # 1.20 compares a whole number with the whole part of a minimum: an SLO of 0 passes there.
    for spec in ({"sloSeconds": 0.0001}, {"updateMode": "Sometimes"}, {"minReplicas": 0}):
        wrong = mpa_object(**spec)
        wrong["metadata"]["name"] = "wrong"
        with pytest.raises(ApiError) as refused:
            shop.admin.create(MPA.rpartition("/")[0], wrong)
        assert refused.value.status == 422


def test_rights_end_at_the_roles(shop: Shop) -> None:
    steerer = shop.plane.client("steer")
    for change in (
        lambda: steerer.list("/api/v1/namespaces/shop/secrets"),
        lambda: steerer.patch(MPA, {"spec": {"maxReplicas": 999}}),
        lambda: steerer.create(PODS, pod("another")),
    ):
        with pytest.raises(ApiError) as refused:
            change()
        assert refused.value.status == 403
    unknown: Any = FixedReader()
    with pytest.raises(InputError):
        MpaEngine(steerer, unknown, "shop/unknown", True).read()


def test_without_the_second_role_it_is_refused_and_the_pods_stay(shop: Shop) -> None:
    before = {one["metadata"]["uid"] for one in shop.pods()}
    shop.plane.kubectl("delete", "clusterrolebinding", APPLY_ROLE)
    try:
        result = wait_for(lambda: next((r for r in [shop.step(MORE)] if r.degraded), None))
        assert (result.result, shop.replicas) == ("refused", 3), result
        assert "forbidden" in result.line() or any("forbidden" in m for m in result.messages)
        assert {one["metadata"]["uid"] for one in shop.pods()} == before
    finally:
        shop.plane.kubectl("apply", "-f", "docker/kubernetes/rbac.yaml")
    wait_for(lambda: shop.step((5, 500, 512)).result in ("acted", "unchanged"))
    shop.wait_ready(5)


def test_api_server_that_stops_and_comes_back(shop: Shop) -> None:
    before = {one["metadata"]["uid"] for one in shop.pods()}
    shop.plane.stop_api_server()
    result = shop.step((5, 500, 512))
    assert (result.silent, result.degraded) == ("engine", True), result
    shop.plane.start_api_server()
    wait_for(lambda: shop.step((5, 500, 512)).result in ("acted", "unchanged"))
    shop.wait_ready(5)
    assert before <= {one["metadata"]["uid"] for one in shop.pods()}


def test_silent_metrics_are_in_the_status_and_the_third_step_returns_to_the_safe_plan(
    shop: Shop,
) -> None:
    shop.step((3, 500, 512))
    shop.admin.patch(f"{DEPLOYMENT}/scale", {"spec": {"replicas": 2}})
    shop.wait_ready(2)
    for number in range(1, 4):
        result = shop.step(MORE, reader=SilentReader())
        assert (result.silent, shop.status()["memory"]["silentSteps"]) == ("metrics", number)
    assert "source" not in shop.status()
    shop.wait_ready(3)


def test_command_that_is_killed_leaves_the_pods_and_goes_on_anew(shop: Shop) -> None:
    shop.metrics.load_cpu_m = 1425  # 95% of three pods; the rule wants 70%
    first = shop.command("--mode", "act", "--recommender", "hpa")
    wait_for(lambda: shop.replicas == 5)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    shop.wait_ready(5)
    before = {one["metadata"]["uid"] for one in shop.pods()}
    shop.metrics.load_cpu_m = 2450  # 98% of five pods
    time.sleep(2)
    assert {one["metadata"]["uid"] for one in shop.pods()} == before
    second = shop.command("--mode", "act", "--recommender", "hpa")
    wait_for(lambda: shop.replicas >= 7)
    second.terminate()
    assert second.wait(60) == 0
    shop.wait_ready(shop.replicas)
    assert before <= {one["metadata"]["uid"] for one in shop.pods()}
    assert shop.status()["source"]
