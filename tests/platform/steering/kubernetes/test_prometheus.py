"""The queries against a real Prometheus with series of cAdvisor and kube-state-metrics."""

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.queries import STALE_S, Application, MetricReader
from loadmaster.platform.steering.kubernetes.resource import parse_spec
from loadmaster.platform.steering.prometheus import Prometheus
from loadmaster.serving.systems.aware.schema import AwareState
from tests.platform.steering.kubernetes.api_server import mpa_object

SCRAPE_S, HISTORY_S, GROWN_S = 15, 1800, 600  # the third pod is there in the last ten minutes
PODS = [f"cart-7d9f8b6c5d-{name}" for name in ("aaaaa", "bbbbb", "ccccc")]
PLAN = {"replicas": 3.0, "cpu_m": 500.0, "memory_mib": 512.0}


def program(root: Path, name: str) -> str:
    found = shutil.which(name) or root / "build" / "prometheus" / "usr" / "bin" / name
    if not Path(found).exists():
        pytest.skip("no Prometheus on PATH or in build/prometheus; see .ci/install-prometheus")
    return str(found)


def sample_lines(end_s: int) -> Iterator[str]:
    """OpenMetrics of the application, of a neighbour with a similar name, and of a sidecar."""
    families: dict[str, list[str]] = {}
    times = range(end_s - HISTORY_S, end_s + 1, SCRAPE_S)

    def add(name: str, kind: str, labels: str, value: Any, begin_s: int = times.start) -> None:
        family = name.removesuffix("_total").removesuffix("_bucket").removesuffix("_count")
        lines = families.setdefault(f"# TYPE {family} {kind}", [])
        for at in times:
            if at >= begin_s:
                lines.append(f'{name}{{namespace="shop",{labels}}} {value(at - begin_s)} {at}')

    for pod, begin_s in zip(PODS, (times.start, times.start, end_s - GROWN_S), strict=True):
        own = f'pod="{pod}",container="app"'
        add("container_cpu_usage_seconds_total", "counter", own, lambda s: 0.4 * s, begin_s)
        add("container_memory_working_set_bytes", "gauge", own, lambda s: 300 * 2**20, begin_s)
        for side in ("reads", "writes"):
            add(f"container_fs_{side}_bytes_total", "counter", own, lambda s: 1e6 * s, begin_s)
        for side in ("receive", "transmit"):
            add(
                f"container_network_{side}_bytes_total", "counter", f'pod="{pod}"',
                lambda s: 2e6 * s, begin_s,
            )  # fmt: skip
        for resource, limit in (("cpu", 0.5), ("memory", 512 * 2**20)):
            add("kube_pod_container_resource_limits", "gauge",
                f'{own},node="n1",resource="{resource}"',
                lambda s, limit=limit: limit, begin_s)  # fmt: skip
        add("kube_pod_status_phase", "gauge", f'pod="{pod}",phase="Running"', lambda s: 1, begin_s)
        add("kube_pod_status_ready", "gauge", f'pod="{pod}",condition="true"', lambda s: 1, begin_s)
        for le, rate in (("0.1", 8), ("0.2", 9.8), ("0.4", 10), ("+Inf", 10)):
            add("http_request_duration_seconds_bucket", "histogram", f'pod="{pod}",le="{le}"',
                lambda s, rate=rate: rate * s, begin_s)  # fmt: skip
        add("http_request_duration_seconds_count", "histogram", f'pod="{pod}"',
            lambda s: 10 * s, begin_s)  # fmt: skip
    for pod, container in (("cart-db-7d9f8b6c5d-aaaaa", "app"), (PODS[0], "sidecar")):
        other = f'pod="{pod}",container="{container}"'
        add("container_cpu_usage_seconds_total", "counter", other, lambda s: 7 * s)
        add("container_memory_working_set_bytes", "gauge", other, lambda s: 2**33)
    add("kube_pod_container_status_restarts_total", "counter", f'pod="{PODS[0]}",container="app"',
        lambda s: int(s > HISTORY_S - 40))  # fmt: skip
    add("container_oom_events_total", "counter", f'pod="{PODS[0]}",container="app"',
        lambda s: int(s > HISTORY_S - 400))  # fmt: skip
    for head, lines in families.items():
        yield head
        yield from lines
    yield "# EOF"


@pytest.fixture(scope="module")
def end_s() -> int:
    return int(time.time()) // 60 * 60 - 4 * 3600


@pytest.fixture(scope="module")
def url(root: Path, tmp_path_factory: pytest.TempPathFactory, end_s: int) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "samples").write_text("\n".join(sample_lines(end_s)) + "\n")
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    promtool, server = program(root, "promtool"), program(root, "prometheus")
    import_samples = [promtool, "tsdb", "create-blocks-from", "openmetrics"]
    done = subprocess.run(
        [*import_samples, folder / "samples", folder / "data"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                server, f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            found = f"http://127.0.0.1:{port}"
            wait_until_ready(found, process, folder / "log")
            yield found
        finally:
            process.terminate()
            process.wait(20)


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    pytest.fail(log.read_text())


def read(url: str, now_s: float, measured: bool = False, **spec: Any) -> tuple[Any, list[str]]:
    reader = MetricReader(Prometheus(url), window_s=30, reports=60, steps=20)
    parsed = parse_spec(mpa_object(**spec), "shop/cart")
    return reader.read(Application("shop/cart", parsed, "app", PLAN, measured), now_s)


def test_document_of_real_series(url: str, end_s: int) -> None:
    document, notes = read(url, end_s)
    reports, steps = document["reports"], document["steps"]
    assert notes == []
    assert reports["age_s"] == [15.0 * back for back in reversed(range(60))]
    before, after = 10, -10  # before the third pod, and after
    for name, two, three in (
        ("pods", 2, 3),
        ("ready", 2, 3),
        ("used_cpu_m", 800, 1200),
        ("limit_cpu_m", 1000, 1500),
        ("used_memory_mib", 600, 900),
        ("limit_memory_mib", 1024, 1536),
        ("peak_memory_mib", 300, 300),
        ("disk_mb_s", 4, 6),
        ("network_mb_s", 8, 12),
        ("requests", 300, 450),
    ):
        assert reports[name][before] == pytest.approx(two, rel=1e-6), name
        assert reports[name][after] == pytest.approx(three, rel=1e-6), name
    assert sum(reports["ooms"]) == pytest.approx(1)
    assert steps["requests"][0] == pytest.approx(1200)
    assert steps["requests"][-1] == pytest.approx(1800)
    # Of 10 requests 9.8 are below 0.2 s: the 9.9th is in the middle of the next bucket.
    assert steps["p99_s"][-1] == pytest.approx(0.3)
    assert steps["restarts"][-1] == pytest.approx(1)
    assert sum(steps["restarts"]) == pytest.approx(1)
    AwareState.model_validate(document).check()


def test_missing_series_are_wrong_input_at_first_and_silence_later(url: str, end_s: int) -> None:
    with pytest.raises(InputError, match=r"no series for reports[.]requests of shop"):
        read(url, end_s, latencyMetric="nothing_seconds")
    with pytest.raises(InputError, match=r"no series for steps[.]p99_s"):
        read(url, end_s, queries={"steps.p99_s": "sum(nothing)"})
    with pytest.raises(SilentError) as silent:
        read(url, end_s, measured=True, latencyMetric="nothing_seconds")
    assert silent.value.part == "metrics"


def test_optional_series_are_noted(url: str, end_s: int) -> None:
    document, notes = read(url, end_s, queries={"reports.disk_mb_s": "sum(nothing{$container})"})
    assert notes == ["no series for reports.disk_mb_s, taken as 0"]
    assert set(document["reports"]["disk_mb_s"]) == {0.0}


def test_stale_series_are_silence(url: str, end_s: int) -> None:
    assert read(url, end_s - 7)[0]["reports"]["used_cpu_m"][-5] == pytest.approx(1200)
    with pytest.raises(SilentError):
        read(url, end_s + 60 * 20, measured=True)
    assert STALE_S < 300  # the time that Prometheus repeats a last sample


def test_query_that_prometheus_refuses_is_silence(url: str, end_s: int) -> None:
    with pytest.raises(SilentError, match="parse error"):
        read(url, end_s, queries={"steps.p99_s": "sum("})


def test_query_of_several_series_is_wrong_input(url: str, end_s: int) -> None:
    with pytest.raises(InputError, match="series; expected one"):
        read(url, end_s, queries={"reports.pods": "kube_pod_status_phase"})
