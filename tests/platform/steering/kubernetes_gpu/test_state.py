"""States of DAS's endpoint from pods and nodes of the Kubernetes API."""

from typing import Any

import pytest
from kubernetes_validate import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.kubernetes_gpu.records import NAME_MAX, parse_cluster, parse_pod
from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from loadmaster.platform.steering.kubernetes_gpu.state import ClusterState, cluster_state
from loadmaster.serving.systems.das.schema import DasState
from tests.platform.steering.kubernetes.api_server import Json, validate
from tests.platform.steering.kubernetes_gpu.cluster import (
    EPOCH_S,
    GPU,
    LABEL,
    gpu_node,
    gpu_pod,
)

AFFINITY = {"nodeAffinity": {}}


def state_of(
    pods: list[Json], nodes: list[Json], placed: dict[str, str] | None = None, **settings: Any
) -> ClusterState:
    own = GpuClusterSettings.model_validate(settings)
    found = cluster_state(parse_cluster(pods, nodes, own), own, placed or {}, set(), EPOCH_S + 100)
    if found.document is not None:
        DasState.model_validate(found.document).check()
    return found


def test_objects_of_these_tests_have_the_schemas_of_kubernetes() -> None:
    pod = gpu_pod("a", job="j", node="n1", started_s=EPOCH_S)
    validate(gpu_node("n1", unschedulable=True))
    validate(pod)
    for wrong in ({"nodeName": 1}, {"nodeNames": "n1"}):
        with pytest.raises(ValidationError):
            validate({**pod, "spec": {**pod["spec"], **wrong}})


def test_pods_of_a_job_are_a_gang() -> None:
    pods = [gpu_pod(f"w-{k}", 2, "mnist", cpu="1500m") for k in range(3)]
    pods += [gpu_pod(f"r-{k}", 1, "bert", node=node, started_s=EPOCH_S + 60)
             for k, node in enumerate(["n1", "n2", "n1"])]  # fmt: skip
    state = state_of(pods, [gpu_node("n1"), gpu_node("n2", 8, "NVIDIA-A100-SXM4-40GB")])
    assert state.document is not None
    jobs = {one["id"]: one for one in state.document["jobs"]}
    assert jobs["team/mnist"] == {
        "id": "team/mnist", "user": "team", "instances": 3, "gpus": 2.0, "cpus": 1.5,
        "age_s": 100.0, "ran_s": 0.0,
    }  # fmt: skip
    assert jobs["team/bert"]["placements"] == [
        {"machine": "n1", "instances": 2}, {"machine": "n2", "instances": 1}
    ]  # fmt: skip
    assert jobs["team/bert"]["running_s"] == 40.0
    assert [pod.name for pod in state.waiting["team/mnist"]] == ["w-0", "w-1", "w-2"]
    assert [(one["gpu"], one["gpus"]) for one in state.document["machines"]] == [
        ("V100", 4), ("A100", 8)
    ]  # fmt: skip


def test_pods_without_gpus_and_of_other_schedulers_count_by_what_they_use() -> None:
    others = [
        gpu_pod("web", 0, cpu="10", node="n1"),
        gpu_pod("old", 0, cpu="10", node="n1", phase="Succeeded"),
        gpu_pod("volcano", 3, node="n1", schedulerName="volcano"),
        gpu_pod("next", 1, schedulerName="volcano"),
    ]
    state = state_of([*others, gpu_pod("mine")], [gpu_node("n1")])
    assert state.document is not None
    assert set(state.waiting) == {"team/mine"}
    assert set(state.running) == {"team/volcano"}
    assert state.document["machines"][0]["cpus"] == pytest.approx(21.85)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": AFFINITY},
        {"nodeSelector": {"disk": "ssd"}},
        {"schedulingGates": [{"name": "later"}]},
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
    ],
)
def test_pod_that_is_left_alone(spec: Json) -> None:
    assert state_of([gpu_pod("a", **spec)], [gpu_node("n1")]).document is None
    running = state_of([gpu_pod("a", node="n1", **spec)], [gpu_node("n1")])
    assert set(running.running) == {"team/a"}


def test_pod_that_is_deleted_holds_its_gpus_until_it_is_gone() -> None:
    waits, runs = gpu_pod("a"), gpu_pod("b", node="n1")
    for one in (waits, runs):
        one["metadata"]["deletionTimestamp"] = "2026-11-19T00:00:00Z"
    state = state_of([waits, runs], [gpu_node("n1")])
    assert (set(state.waiting), set(state.running)) == (set(), {"team/b"})


@pytest.mark.parametrize(
    ("spec", "status", "gpus"),
    [
        ({"unschedulable": True}, None, 1),
        ({"taints": [{"key": "team", "effect": "NoSchedule"}]}, None, 1),
        ({"taints": [{"key": GPU, "effect": "NoSchedule"}]}, None, 4),
        ({"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}, None, 4),
        ({}, "Unknown", 1),
    ],
)
def test_node_that_takes_no_new_jobs(spec: Json, status: str | None, gpus: int) -> None:
    node = gpu_node("n1", **spec)
    if status is not None:
        node["status"]["conditions"][1]["status"] = status
    state = state_of([gpu_pod("a", node="n1"), gpu_pod("b")], [node])
    assert state.document is not None
    assert state.document["machines"][0]["gpus"] == gpus


def test_bound_pods_of_a_job_run_and_the_others_wait_on_their_own() -> None:
    pods = [gpu_pod("w-0", job="j", node="n1"), gpu_pod("w-1", job="j"), gpu_pod("w-2", job="j")]
    state = state_of(pods, [gpu_node("n1")])
    assert state.running["team/j"] == (("n1", 1),)
    assert [pod.name for pod in state.waiting["team/j+"]] == ["w-1", "w-2"]


def test_pods_that_were_started_count_as_bound() -> None:
    pods = [gpu_pod("w-0", job="j", node="n1"), gpu_pod("w-1", job="j")]
    state = state_of(pods, [gpu_node("n1"), gpu_node("n2")], {"uid-w-1": "n2"})
    assert state.running == {"team/j": (("n1", 1), ("n2", 1))}
    assert state.waiting == {}


def test_job_starts_with_the_instances_that_it_names() -> None:
    annotations = {"loadmaster.dev/instances": "2"}
    pods = [gpu_pod("w-0", job="j", annotations=annotations)]
    state = state_of([*pods, gpu_pod("a")], [gpu_node("n1")])
    assert (set(state.waiting), [pod.name for pod in state.incomplete]) == ({"team/a"}, ["w-0"])
    pods.append(gpu_pod("w-1", job="j", annotations=annotations))
    assert set(state_of(pods, [gpu_node("n1")]).waiting) == {"team/j"}


def test_mixed_job_is_left_alone_and_counts_where_it_runs() -> None:
    waiting = state_of([gpu_pod("a", 1, "j"), gpu_pod("b", 2, "j")], [gpu_node("n1")])
    assert (waiting.document, len(waiting.notes)) == (None, 1)
    pods = [gpu_pod("a", 1, "j", node="n1"), gpu_pod("b", 2, "j", node="n1")]
    assert set(state_of(pods, [gpu_node("n1")]).running) == {"team/j", "team/j:2"}


def test_selected_type_of_gpu_is_that_of_the_endpoint_if_it_is_the_same_nodes() -> None:
    product = "Tesla-V100-SXM2-16GB"
    pod = gpu_pod("a", nodeSelector={LABEL: product})
    state = state_of([pod], [gpu_node("n1"), gpu_node("n2", product="Tesla-T4")])
    assert state.document is not None
    assert state.document["jobs"][0]["gpu_type"] == "V100"
    other = gpu_node("n3", product="Tesla-V100-SXM2-32GB")
    assert state_of([pod], [gpu_node("n1"), other]).document is None


def test_types_of_gpus() -> None:
    nodes = [gpu_node("n1", product="Quadro-RTX-6000")]
    with pytest.raises(InputError, match="node n1 has GPUs of type 'Quadro-RTX-6000'"):
        state_of([gpu_pod("a")], nodes)
    named = state_of([gpu_pod("a")], nodes, gpu_names={"Quadro-RTX-6000": "T4"})
    priced = state_of([gpu_pod("a")], nodes, gpu_types={"RTX": {"speed": 2, "price_per_hour": 1}})
    for state, kind in ((named, "T4"), (priced, "RTX")):
        assert state.document is not None
        assert state.document["machines"][0]["gpu"] == kind


def test_owner_job_and_long_names() -> None:
    pod = gpu_pod("n" * 200)
    pod["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "j", "user": "ada"}
    found = parse_pod(pod, GpuClusterSettings(owner_label="user"))
    assert found is not None
    assert (found.job, found.owner) == ("team/j", "ada")
    alone = parse_pod(gpu_pod("n" * 200), GpuClusterSettings())
    other = parse_pod(gpu_pod("n" * 199 + "m"), GpuClusterSettings())
    assert alone is not None
    assert other is not None
    assert len(alone.job) == NAME_MAX
    assert alone.job != other.job


def test_gpus_of_init_containers_are_not_added() -> None:
    pod = gpu_pod("a", 2)
    pod["spec"]["initContainers"] = [{"name": "check", "resources": {"limits": {GPU: "1"}}}]
    found = parse_pod(pod, GpuClusterSettings())
    assert found is not None
    assert found.gpus == 2


def test_pod_that_no_state_can_have_does_not_stop_the_others() -> None:
    pods = [gpu_pod("huge", 2000), gpu_pod("wide", 1, cpu="200k"), gpu_pod("old", created_s=0.0)]
    state = state_of([*pods, gpu_pod("a")], [gpu_node("n1")])
    assert set(state.waiting) == {"team/old", "team/a"}
    assert len(state.notes) == 2
