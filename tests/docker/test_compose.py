"""The compose file: ports, users, limits, secrets, and existence of all files."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from loadmaster.serving.monitoring.metrics import METRICS
from tests.docker.conftest import Dockerfile

SERVICES = ("serve", "prometheus", "grafana", "head", "worker")
FORBIDDEN = {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices", "userns_mode"}


def test_services_and_secrets(compose: Any) -> None:
    assert set(compose["services"]) == set(SERVICES)
    used = {name for service in compose["services"].values() for name in service.get("secrets", [])}
    assert used == set(compose["secrets"])


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_restricted(name: str, compose: Any) -> None:
    service = compose["services"][name]
    assert not set(service) & FORBIDDEN
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    limits = service["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[mg]", limits["memory"])
    assert limits["pids"] > 0


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned(
    name: str, compose: Any, project: dict[str, Any], dockerfile: Dockerfile
) -> None:
    service = compose["services"][name]
    image, _, tag = service["image"].partition(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
    if image.startswith("loadmaster-"):
        assert tag == project["project"]["version"]
        target = image.removeprefix("loadmaster-")
        assert dockerfile.all("HEALTHCHECK", target)
        assert service["user"] == dockerfile.all("USER", target)[-1]
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_are_files(name: str, compose: Any, root: Path) -> None:
    for key, value in compose["services"][name].get("environment", {}).items():
        if re.search("TOKEN|SECRET|PASSWORD|KEY", key):
            assert key.endswith("_FILE")
            assert value.removeprefix("/run/secrets/") in compose["services"][name]["secrets"]
    for secret in compose["secrets"].values():
        assert set(secret) == {"file"}
        assert secret["file"].startswith("./secrets/")
    assert "/docker/secrets/" in (root / ".gitignore").read_text().splitlines()


def test_mounted_files_exist(compose: Any, docker: Path) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source, target, *options = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (docker / source).exists(), source
                assert options == ["ro"]
            else:
                assert source in compose["volumes"]


def test_build_context_is_the_repository(
    compose: Any, docker: Path, dockerfile: Dockerfile
) -> None:
    for service in compose["services"].values():
        if build := service.get("build"):
            context = (docker / build["context"]).resolve()
            assert (context / build["dockerfile"]).samefile(docker / "Dockerfile")
            assert build["target"] in dockerfile.parents


def test_prometheus_scrapes_the_service(docker: Path, compose: Any, dockerfile: Dockerfile) -> None:
    config = yaml.safe_load((docker / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in compose["services"]
    assert f"LOADMASTER_METRICS_PORT={port}" in " ".join(dockerfile.all("ENV", "serve"))
    assert port not in " ".join(compose["services"]["serve"]["ports"])


def test_prometheus_keeps_every_metric(docker: Path) -> None:
    config = yaml.safe_load((docker / "prometheus.yml").read_text())
    keep, drop = config["scrape_configs"][0]["metric_relabel_configs"]
    assert keep["action"] == "keep"
    for name, metric in METRICS.items():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for end in ends:
            assert re.fullmatch(keep["regex"], f"ray_{name}{end}")
    assert drop["action"] == "labeldrop"
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert not [label for label in labels if re.fullmatch(drop["regex"], label)]


def test_grafana_is_provisioned(docker: Path, compose: Any) -> None:
    provisioning = docker / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    (source,) = sources["datasources"]
    assert source["type"] == "prometheus"
    assert urlsplit(source["url"]).hostname in compose["services"]
    providers = yaml.safe_load((provisioning / "dashboards" / "loadmaster.yaml").read_text())
    (provider,) = providers["providers"]
    mounted = [v.split(":")[1] for v in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    environment = compose["services"]["grafana"]["environment"]
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(provider["options"]["path"])
    assert (docker / "grafana" / "dashboards" / Path(home).name).is_file()
