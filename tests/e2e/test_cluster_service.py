"""The service on a running cluster: as KubeRay deploys it, and by `loadmaster serve --address`."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import yaml

from loadmaster.envs.compiled import cache_root
from loadmaster.platform.ray.head import free_ports
from loadmaster.serving.client import Client
from loadmaster.serving.jobs.job import venv_first
from tests.e2e.cluster import Cluster, running_cluster
from tests.serving import toy
from tests.serving.live import free_port

pytestmark = pytest.mark.slow

PROGRAM = str(Path(sys.executable).with_name("loadmaster"))
TOKEN = "a-token-that-is-long-enough-for-this"
START_S = 300.0  # with an empty cache of compiled code
END_S = 60.0


class Deployed(NamedTuple):
    """A head as the manifest starts it, with its Serve configuration applied."""

    cluster: Cluster
    proxy: str
    gateway: str
    probe: list[str]


@pytest.fixture(scope="module")
def deployed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Ports and folders of the manifest are replaced by free ones, nothing else."""
    home = tmp_path_factory.mktemp("home")
    documents = yaml.safe_load_all((root / "docker" / "kuberay" / "serve.yaml").read_text())
    (spec,) = (one["spec"] for one in documents if one["kind"] == "RayService")
    head = spec["rayClusterConfig"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    proxy, gateway, metrics = free_ports(3)
    (home / "tokens").write_text(f"read {TOKEN}\n")
    (home / "tokens").chmod(0o600)
    text = spec["serveConfigV2"]
    for old, new in (
        ("port: 8000", f"port: {proxy}"),
        ("port: 8700", f"port: {gateway}"),
        ("/etc/loadmaster/tokens", str(home / "tokens")),
        ("/var/lib/loadmaster", str(home)),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    options = {**head["rayStartParams"], "metrics-export-port": metrics}
    options["num-cpus"] = container["resources"]["limits"]["cpu"]  # as the operator sets it
    variables = {each["name"]: each["value"] for each in container["env"]}
    variables |= {"PATH": venv_first("/usr/bin:/bin"), "LOADMASTER_CACHE": str(cache_root().parent)}
    variables["PYTHONPATH"] = python_path()
    flags = [f"--{name}={value}" for name, value in options.items()]
    with running_cluster(home, *flags, env=variables) as cluster:
        apply(cluster, text)
        *shell, command = container["readinessProbe"]["exec"]["command"]
        command = command.replace("127.0.0.1:52365", f"127.0.0.1:{cluster.agent}")
        command = command.replace("http://127.0.0.1:8265", cluster.address)
        probe = [*shell, command]
        yield Deployed(cluster, f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{gateway}", probe)


def python_path() -> str:
    """With the repository, for the toy system."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def apply(cluster: Cluster, text: str) -> None:
    """Send the configuration to the dashboard, as the operator does."""
    request = urllib.request.Request(
        f"{cluster.address}/api/serve/applications/",
        json.dumps(yaml.safe_load(text)).encode(),
        {
            "Authorization": f"Bearer {cluster.env['RAY_AUTH_TOKEN']}",
            "Content-Type": "application/json",
        },
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def status_of(url: str) -> int:
    """HTTP status of a GET; 0 while nothing listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(condition: Callable[[], object], within_s: float, details: Callable[[], Any]) -> None:
    limit = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit, details()
        time.sleep(0.3)


def applications(cluster: Cluster) -> dict[str, Any]:
    """Applications on the cluster's Serve, by name."""
    request = urllib.request.Request(
        f"{cluster.address}/api/serve/applications/",
        headers={"Authorization": f"Bearer {cluster.env['RAY_AUTH_TOKEN']}"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return dict(json.load(response)["applications"])


@pytest.fixture(scope="module")
def ready(deployed: Deployed) -> Deployed:
    wait_for(
        lambda: status_of(f"{deployed.proxy}/readyz") == 200,
        START_S,
        lambda: applications(deployed.cluster),
    )
    return deployed


@pytest.mark.parametrize("listener", ["proxy", "gateway"])
def test_manifest_answers_through_proxy_and_gateway(listener: str, ready: Deployed) -> None:
    url = getattr(ready, listener)
    assert {path: status_of(url + path) for path in ("/healthz", "/readyz", "/v1/das/status")} == {
        "/healthz": 200,
        "/readyz": 200,
        "/v1/das/status": 401,
    }
    with Client(url, TOKEN, deadline_s=30.0) as client:
        for system in ("das", "decima"):
            state = client.example(system, "small")
            # A busy machine may miss a deadline.
            assert "policy" in {client.decide(system, state).source for _ in range(5)}


def test_manifest_reserves_what_it_declares(ready: Deployed) -> None:
    found = applications(ready.cluster)["loadmaster"]["deployments"]
    cpus = {
        name: one["deployment_config"]["ray_actor_options"]["num_cpus"]
        for name, one in found.items()
    }
    assert cpus == {"gateway": 1, "das": 1, "decima": 1, "control": 0.1}


def test_probes_of_the_manifest_succeed(ready: Deployed) -> None:
    assert subprocess.run(ready.probe, timeout=30, check=False).returncode == 0
    broken = [*ready.probe[:-1], ready.probe[-1].replace("_healthz", "_nothing")]
    assert subprocess.run(broken, timeout=30, check=False).returncode != 0
    with urllib.request.urlopen(f"{ready.proxy}/-/healthz", timeout=10) as response:
        assert response.read() == b"success"


class Served:
    """`loadmaster serve --address`, in its own process group."""

    def __init__(self, cluster: Cluster, folder: Path, *arguments: str) -> None:
        self._log = folder / f"served-{free_port()}.log"
        environment = {**cluster.env, "PYTHONPATH": python_path()}
        environment.pop("LOADMASTER_TOKENS", None)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--address", cluster.gcs, *arguments],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        def shown() -> bool:
            assert self.process.poll() is None, self.out
            return text in self.out

        wait_for(shown, START_S, lambda: self.out)

    def end(self, number: int) -> int:
        os.killpg(self.process.pid, number)
        return self.process.wait(END_S)


@pytest.fixture
def serve(ready: Deployed, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def begin(*arguments: str) -> Served:
        started.append(Served(ready.cluster, tmp_path, *arguments))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            psutil.Process(each.process.pid).kill()
            each.process.wait()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    system = {"endpoint": toy.REFERENCE, "bundle": bundle, "deadline_ms": 5000}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({"systems": {"toy": system}, "folder": str(tmp_path / "kept")}))
    return file


@pytest.mark.long
def test_serve_on_a_cluster_removes_only_its_own_application(
    serve: Callable[..., Served], config: Path, ready: Deployed
) -> None:
    """A used name is refused; one that is replaced no longer belongs to the first command."""
    port = str(free_port())
    refused = serve("--config", str(config), "--port", port)
    assert refused.process.wait(START_S) == 2
    assert refused.out.count("error: ") == 1
    assert "already (RUNNING); expected another --name, or --replace" in refused.out

    arguments = ["--config", str(config), "--port", port, "--name", "other"]
    first = serve(*arguments)
    first.wait_for("Serving at")
    with Client(f"http://127.0.0.1:{port}") as client:
        assert client.decide("toy", {"load": 42, "replicas": 3}).decision == {"replicas": 5}
    gateway = applications(ready.cluster)["other"]["deployments"]["gateway"]
    options = gateway["deployment_config"]["ray_actor_options"]
    (here,) = options["resources"]
    assert (options["num_cpus"], here.startswith("node:")) == (1, True)

    second = serve(*arguments, "--replace")
    second.wait_for("Serving at")
    assert (first.end(signal.SIGINT), first.out.endswith("stopped\n")) == (0, True)
    assert set(applications(ready.cluster)) == {"loadmaster", "other"}
    assert status_of(f"http://127.0.0.1:{port}/readyz") == 200
    assert second.end(signal.SIGTERM) == 0
    assert set(applications(ready.cluster)) == {"loadmaster"}
    assert status_of(f"http://127.0.0.1:{port}/readyz") == 0
    assert status_of(f"{ready.gateway}/readyz") == 200
