"""The KubeRay manifests: kinds, versions, security settings, Serve configuration."""

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
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["fsGroup"]) == (user, group)
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
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted >= {"/tmp", "/var/lib/loadmaster"}


@pytest.mark.slow
def test_service_matches_the_schema_of_ray(
    manifests: dict[str, dict[str, Any]], clusters: dict[str, Any]
) -> None:
    from ray.serve.schema import ServeDeploySchema

    from loadmaster.serving.settings import ServeSettings

    config = yaml.safe_load(manifests["RayService"]["spec"]["serveConfigV2"])
    schema = ServeDeploySchema.model_validate(config)
    (application,) = schema.applications
    assert application.import_path == "loadmaster.serving.app:build"
    assert not ServeSettings.model_validate(application.args).is_private
    (pod,) = pods(clusters["serve"])
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert schema.http_options.port == ports["serve"] == application.args["port"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert application.args["tokens"] == f"{mounts['tokens']}/tokens"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["tokens"]["secret"]["secretName"] == "loadmaster-tokens"
    claim = manifests["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim
