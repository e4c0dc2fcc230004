"""The KubeRay manifests: kinds, versions, security settings, Serve configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.conftest import Dockerfile


@pytest.fixture(scope="module")
def manifests(docker: Path) -> dict[str, dict[str, Any]]:
    files = sorted((docker / "kuberay").glob("*.yaml"))
    found = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return {one["kind"]: one for one in found}


@pytest.fixture(scope="module")
def clusters(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Specs of Ray clusters by image target."""
    return {
        "train": manifests["RayCluster"]["spec"],
        "serve": manifests["RayService"]["spec"]["rayClusterConfig"],
    }


@pytest.fixture(params=["train", "serve"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    return [group["template"]["spec"] for group in groups]


def test_kinds_and_versions(manifests: dict[str, dict[str, Any]]) -> None:
    kinds = {kind: one["apiVersion"] for kind, one in manifests.items()}
    expected = {"RayCluster": "ray.io/v1", "RayService": "ray.io/v1", "PersistentVolumeClaim": "v1"}
    assert kinds == expected
    assert set(manifests["RayCluster"]["spec"]) == {
        *("rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs")
    }
    assert set(manifests["RayService"]["spec"]) == {
        *("upgradeStrategy", "serveConfigV2", "rayClusterConfig")
    }
    assert manifests["RayService"]["spec"]["upgradeStrategy"] == {"type": "None"}


def test_cluster_has_token_and_metrics_port(
    target: str, clusters: dict[str, Any], pins: dict[str, str]
) -> None:
    cluster = clusters[target]
    assert cluster["rayVersion"] == pins["ray"]
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(ports["metrics"]) == group["rayStartParams"]["metrics-export-port"]


def test_pod_is_restricted(
    target: str, clusters: dict[str, Any], dockerfile: Dockerfile, project: dict[str, Any]
) -> None:
    user, group = map(int, dockerfile.all("USER", target)[-1].split(":"))
    for pod in pods(clusters[target]):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (
            user,
            group,
        )
        (container,) = pod["containers"]
        assert container["image"] == f"loadmaster-{target}:{project['project']['version']}"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert "env" not in container
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {
            "/tmp",
            "/var/lib/loadmaster",
        }


@pytest.mark.slow
def test_service_matches_the_schema_of_ray(
    manifests: dict[str, dict[str, Any]], clusters: dict[str, Any]
) -> None:
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load(manifests["RayService"]["spec"]["serveConfigV2"])
    schema = ServeDeploySchema.model_validate(config)
    (application,) = schema.applications
    assert application.import_path == "loadmaster.serving.app:build"
    (pod,) = pods(clusters["serve"])
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert schema.http_options.port == ports["serve"] == application.args["port"]
    (tokens,) = [mount for mount in container["volumeMounts"] if mount["name"] == "tokens"]
    assert application.args["tokens"] == f"{tokens['mountPath']}/tokens"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "tokens"]
    assert secret["secretName"] == "loadmaster-tokens"


def test_state_is_on_a_persistent_volume(
    manifests: dict[str, dict[str, Any]], clusters: dict[str, Any]
) -> None:
    (pod,) = pods(clusters["serve"])
    (claim,) = [v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"] == "state"]
    assert claim["claimName"] == manifests["PersistentVolumeClaim"]["metadata"]["name"]


def test_application_can_be_imported_with_its_arguments(
    manifests: dict[str, dict[str, Any]],
) -> None:
    from loadmaster.serving import app
    from loadmaster.serving.settings import ServeSettings

    (application,) = yaml.safe_load(manifests["RayService"]["spec"]["serveConfigV2"])[
        "applications"
    ]
    assert callable(app.build)
    assert not ServeSettings.model_validate(application["args"]).is_private
