"""The KubeRay manifests: fields, versions, security, volumes, probes, Serve configuration.

tests/e2e/test_cluster_service.py deploys the Serve configuration and runs the probes.
"""

import datetime
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.platform.cli.jobs import check_command
from loadmaster.platform.cli.retries import repeatable
from loadmaster.platform.ray.serve_session import ENVIRONMENT
from loadmaster.serving.jobs.job import RETRIES_MODULE
from tests.docker.conftest import Dockerfile

# Fields of ray.io/v1 in KubeRay 1.5.1 and 1.7.0, as far as they make sense here; KubeRay drops
# unknown ones without an error.
CLUSTER_FIELDS = {
    "rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling",
    "autoscalerOptions", "gcsFaultToleranceOptions", "upgradeStrategy", "suspend",
}  # fmt: skip
SERVICE_FIELDS = {
    "serveConfigV2", "rayClusterConfig", "upgradeStrategy", "serveService", "suspend",
    "excludeHeadPodFromServeSvc", "rayClusterDeletionDelaySeconds",
}  # fmt: skip
JOB_FIELDS = {
    "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished", "rayClusterSpec", "activeDeadlineSeconds", "clusterSelector",
    "runtimeEnvYAML", "metadata", "entrypointNumCpus", "entrypointNumGpus", "suspend",
}  # fmt: skip
HEAD_FIELDS = {"rayStartParams", "template", "headService", "serviceType", "enableIngress"}
WORKER_FIELDS = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
    "numOfHosts", "idleTimeoutSeconds", "scaleStrategy", "suspend",
}  # fmt: skip
AUTOSCALER_FIELDS = {
    "version", "upscalingMode", "idleTimeoutSeconds", "resources", "securityContext", "env",
    "envFrom", "volumeMounts", "image", "imagePullPolicy",
}  # fmt: skip
POD_FIELDS = {
    "automountServiceAccountToken", "terminationGracePeriodSeconds", "securityContext",
    "containers", "volumes", "initContainers", "nodeSelector", "tolerations", "affinity",
}  # fmt: skip
CONTAINER_FIELDS = {
    "name", "image", "securityContext", "env", "ports", "readinessProbe", "livenessProbe",
    "resources", "volumeMounts", "lifecycle",
}  # fmt: skip
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # where clients of Kubernetes expect it
HOME = "/var/lib/loadmaster"


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that occurs twice; the last one would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
        return super().construct_mapping(node, deep=deep)


@pytest.fixture(scope="module")
def files(docker: Path) -> list[Path]:
    return sorted((docker / "kuberay").glob("*.yaml"))


@pytest.fixture(scope="module")
def documents(files: list[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    found = [one for file in files for one in yaml.load_all(file.read_text(), StrictLoader)]
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(by_name) == len(found)
    return by_name


Documents = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def clusters(documents: Documents) -> dict[str, Any]:
    """Specs of Ray clusters by image target."""
    return {
        "train": documents["RayCluster", "loadmaster-train"]["spec"],
        "serve": documents["RayService", "loadmaster"]["spec"]["rayClusterConfig"],
    }


@pytest.fixture(params=["train", "serve"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]


def pods(cluster: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod and its container."""
    for group in groups(cluster):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


def ports_of(container: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_files_are_clean_yaml(files: list[Path], documents: Documents) -> None:
    assert [file.stem for file in files] == ["job", "serve", "train"]
    for file in files:
        lines = file.read_text().splitlines()
        faults = [line for line in lines if "\t" in line or line != line.rstrip()]
        assert faults == []
        assert max(map(len, lines)) <= 120
    versions = {(one["apiVersion"], kind) for (kind, _), one in documents.items()}
    custom = {("ray.io/v1", kind) for kind in ("RayService", "RayCluster", "RayJob")}
    assert versions == {*custom, ("v1", "PersistentVolumeClaim"), ("v1", "Service")}


def test_fields_are_those_of_kuberay(documents: Documents, clusters: dict[str, Any]) -> None:
    assert set(documents["RayService", "loadmaster"]["spec"]) <= SERVICE_FIELDS
    for cluster in clusters.values():
        assert set(cluster) <= CLUSTER_FIELDS
        assert set(cluster["headGroupSpec"]) <= HEAD_FIELDS
        assert set(cluster.get("autoscalerOptions", {})) <= AUTOSCALER_FIELDS
        assert all(set(group) <= WORKER_FIELDS for group in cluster.get("workerGroupSpecs", []))
        for pod, container in pods(cluster):
            assert set(pod) <= POD_FIELDS
            assert set(container) <= CONTAINER_FIELDS


def test_cluster_has_token_and_metrics_port(
    target: str, clusters: dict[str, Any], pins: dict[str, str]
) -> None:
    cluster = clusters[target]
    assert cluster["rayVersion"] == pins["ray"]
    assert cluster["authOptions"] == {"mode": "token"}
    for group in groups(cluster):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = group["template"]["spec"]["containers"]
        ports = ports_of(container)
        assert str(ports["metrics"]) == group["rayStartParams"]["metrics-export-port"]
        assert len(set(ports.values())) == len(ports)


def test_pod_is_restricted(
    target: str, clusters: dict[str, Any], dockerfile: Dockerfile, project: dict[str, Any]
) -> None:
    user, group = map(int, dockerfile.all("USER", target)[-1].split(":"))
    for pod, container in pods(clusters[target]):
        assert pod["automountServiceAccountToken"] is False
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["fsGroup"]) == (user, group)
        assert container["image"] == f"loadmaster-{target}:{project['project']['version']}"
        assert container["securityContext"] == RESTRICTED
        assert container["resources"]["requests"] == container["resources"]["limits"]
        names = [each["name"] for each in container["env"]]
        assert not [name for name in names if re.search("TOKEN|SECRET|PASSWORD", name)]


def test_volumes_are_mounted_and_claimed(
    target: str, clusters: dict[str, Any], documents: Documents
) -> None:
    """State and runs survive the pods; a volume that several pods use allows that."""
    found = list(pods(clusters[target]))
    for pod, container in found:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) | {"kubernetes-api"} >= set(volumes)
        assert set(mounts.values()) <= set(volumes)
        assert "emptyDir" in volumes[mounts["/tmp"]]
        claim = volumes[mounts[HOME]]["persistentVolumeClaim"]["claimName"]
        (mode,) = documents["PersistentVolumeClaim", claim]["spec"]["accessModes"]
        assert mode == ("ReadWriteMany" if len(found) > 1 else "ReadWriteOnce")


def test_probes_request_ray_of_their_own_container(target: str, clusters: dict[str, Any]) -> None:
    """The image has wget; the operator deploys the service only once the head is ready."""
    for number, (_, container) in enumerate(pods(clusters[target])):
        expected = {("127.0.0.1", 52365, "/api/local_raylet_healthz")}
        if number == 0:
            expected.add(("127.0.0.1", ports_of(container)["dashboard"], "/api/gcs_healthz"))
        for kind in ("readinessProbe", "livenessProbe"):
            probe = container[kind]
            text = " ".join(probe["exec"]["command"])
            urls = re.findall(r"wget [^|]*http://([\d.]+):(\d+)(\S+) \| grep -q success", text)
            assert {(host, int(port), path) for host, port, path in urls} == expected
            assert probe["timeoutSeconds"] > 4 * len(urls)  # wget's own limit
        assert container["livenessProbe"]["failureThreshold"] >= 30  # restarts are the last resort


def test_training_cluster_scales_with_its_jobs(clusters: dict[str, Any]) -> None:
    cluster = clusters["train"]
    assert cluster["enableInTreeAutoscaling"] is True
    (group,) = cluster["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert group["minReplicas"] < group["maxReplicas"]
    # Only the autoscaler may call Kubernetes; jobs run in the container next to it.
    autoscaler = cluster["autoscalerOptions"]
    assert autoscaler["securityContext"] == RESTRICTED
    assert autoscaler["resources"]["requests"] == autoscaler["resources"]["limits"]
    mounts = {mount["mountPath"]: mount["name"] for mount in autoscaler["volumeMounts"]}
    for pod, container in pods(cluster):
        assert API_TOKEN not in {mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        if pod is cluster["headGroupSpec"]["template"]["spec"]:
            sources = volumes[mounts[API_TOKEN]]["projected"]["sources"]
            assert [next(iter(source)) for source in sources] == [
                "serviceAccountToken", "configMap", "downwardAPI",
            ]  # fmt: skip


def test_service_has_the_variables_of_the_command(clusters: dict[str, Any]) -> None:
    """`loadmaster serve` and the pods run Serve in the same mode."""
    for _, container in pods(clusters["serve"]):
        assert {each["name"]: each["value"] for each in container["env"]} == ENVIRONMENT


@pytest.mark.slow
def test_service_matches_the_schema_of_ray(documents: Documents, clusters: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    from loadmaster.platform.training.config import Rollouts
    from loadmaster.serving.settings import ServeSettings

    config = yaml.safe_load(documents["RayService", "loadmaster"]["spec"]["serveConfigV2"])
    schema = ServeDeploySchema.model_validate(config)
    (application,) = schema.applications
    assert application.import_path == "loadmaster.serving.app:build"
    settings = ServeSettings.model_validate(application.args)
    assert not settings.is_private
    ((pod, container),) = pods(clusters["serve"])
    ports = ports_of(container)
    assert (schema.http_options.port, settings.port) == (ports["serve"], ports["gateway"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.tokens) == f"{mounts['tokens']}/tokens"
    assert settings.folder.is_relative_to(mounts["state"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["tokens"]["secret"]["secretName"] == "loadmaster-tokens"
    # A retraining must not wait for ever for CPUs that its service has reserved.
    retraining = Rollouts().workers
    cpus = int(container["resources"]["limits"]["cpu"])
    assert cpus >= math.ceil(settings.reserved_cpus) + retraining


def test_job_runs_a_training_with_retries(documents: Documents, clusters: dict[str, Any]) -> None:
    job = documents["RayJob", "loadmaster-job"]["spec"]
    assert set(job) <= JOB_FIELDS
    assert job["rayClusterSpec"] == clusters["train"]
    python, module, name, count, *rest = job["entrypoint"].split()
    assert (python, module, name) == ("python", "-m", RETRIES_MODULE)
    command = rest[rest.index("--") + 1 :]
    assert rest[0] == "--continue"
    assert int(count) > 0 < job["backoffLimit"]
    check_command(command)
    assert repeatable(command, datetime.datetime.now()) == command  # its folder is fixed
    assert Path(command[command.index("--output") + 1]).is_relative_to(HOME)


def test_kubernetes_service_selects_the_gateway(
    documents: Documents, clusters: dict[str, Any]
) -> None:
    service = documents["Service", "loadmaster"]["spec"]
    head = clusters["serve"]["headGroupSpec"]["template"]
    (port,) = service["ports"]
    (container,) = head["spec"]["containers"]
    assert ports_of(container)[port["targetPort"]] == port["port"]
    own = {name: value for name, value in service["selector"].items() if "ray.io" not in name}
    assert own == head["metadata"]["labels"]
    operators = {name: value for name, value in service["selector"].items() if "ray.io" in name}
    assert operators == {"ray.io/node-type": "head", "ray.io/serve": "true"}
