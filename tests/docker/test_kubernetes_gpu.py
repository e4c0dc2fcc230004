"""Rights of the steerer of GPU pods, and the configuration of kube-scheduler."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings


@pytest.fixture(scope="module")
def manifests(docker: Path) -> dict[str, list[dict[str, Any]]]:
    """By file."""
    folder = docker / "kubernetes"
    names = "gpu-rbac", "gpu-scheduler"
    return {one: list(yaml.safe_load_all((folder / f"{one}.yaml").read_text())) for one in names}


def test_bound_rights_change_nothing(manifests: dict[str, list[dict[str, Any]]]) -> None:
    roles = {
        one["metadata"]["name"]: one["rules"]
        for one in manifests["gpu-rbac"]
        if one["kind"] == "ClusterRole"
    }
    assert roles == {
        "loadmaster-steer-gpu": [
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list"]}
        ],
        "loadmaster-steer-gpu-order": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
        ],
    }
    (binding,) = (one for one in manifests["gpu-rbac"] if one["kind"] == "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "loadmaster-steer-gpu"
    (account,) = (
        one["metadata"] for one in manifests["gpu-rbac"] if one["kind"] == "ServiceAccount"
    )
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def test_extender_is_that_of_the_settings_and_may_be_silent(
    manifests: dict[str, list[dict[str, Any]]],
) -> None:
    (configuration,) = manifests["gpu-scheduler"]
    assert configuration["percentageOfNodesToScore"] == 100
    (extender,) = configuration["extenders"]
    own = GpuClusterSettings()
    assert extender["urlPrefix"] == f"http://{own.host}:{own.port}"
    assert (extender["filterVerb"], extender["prioritizeVerb"]) == ("filter", "prioritize")
    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert extender["managedResources"] == [{"name": own.resource, "ignoredByScheduler": False}]
