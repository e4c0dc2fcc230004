"""Short forms of `bench serve` and `bench soak`, with kills too, on a service on Ray Serve."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench import kills, soak_kills
from loadmaster.platform.bench import soak as soak_bench
from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.known_applications import DECISIONS, simulate, survive_kill
from loadmaster.platform.bench.replicas import measure_point
from loadmaster.platform.bench.serve import measure_loads
from loadmaster.platform.bench.soak import run_soak, soak_result
from loadmaster.serving.settings import ServeSettings
from tests.serving import toy
from tests.serving.live import Live, free_port

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def server(live: Live, tmp_path: Path) -> BenchServer:
    live.admin.resume("toy")
    live.serve()
    live.by_policy()
    settings = build_settings(ServeSettings, {"systems": {"toy": {"endpoint": toy.REFERENCE}}})
    return BenchServer(live.url, settings, tmp_path)


@pytest.fixture
def noops(live: Live) -> Iterator[dict[str, str]]:
    """Addresses of the no-op endpoints."""
    from ray import serve

    from loadmaster.platform.bench.noop import NAME, start_noops

    yield start_noops("127.0.0.1", free_port())
    serve.delete(NAME)


@pytest.fixture
def whole(server: BenchServer, live: Live) -> BenchServer:
    """The server with all systems, the port and the folder of the service."""
    systems = {"toy": {"endpoint": toy.REFERENCE}, "decima": {}, "das": {}, "aware": {}}
    values = {"systems": systems, "port": live.port, "folder": live.folder}
    return server._replace(settings=build_settings(ServeSettings, values))


def test_soak_with_kills_sees_replacements(
    whole: BenchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker, and the control process if time is left: there is only one gateway here."""
    monkeypatch.setattr(kills, "drawn_kinds", lambda _: iter(["worker", "control"]))
    lines: list[str] = []
    soak = soak_kills.run_kill_soak(whole, 12.0, 4.0, lines.append, rate=5.0)
    result = soak_kills.kills_result(soak)
    assert result.requests == 12 * 5 * 4
    assert result.failed <= 0.05 * result.requests, result  # the client's deadline is 1 s
    assert 1 <= result.kills == result.replaced
    assert soak.kills[0].kind == "worker"
    assert all(0.1 < (one.replaced_s or 0) < kills.REPLACED_S for one in soak.kills)
    assert lines[-1].startswith("killed: ")


def test_a_kill_of_all_processes_loses_no_application(whole: BenchServer) -> None:
    simulated = simulate(load_applications("test", None)[:8])
    figures = survive_kill(whole, simulated, "known", lambda _: None)
    found = {figure.name.removeprefix("known/"): figure.value for figure in figures}
    assert found["parity_states"] == DECISIONS * 8 + 1 + 8
    for figure in ("memory", "lifecycle", "guard"):
        assert found[f"kill/{figure}_lost"] == 0
    assert (found["kill/decided_as_new"], found["parity_differences"]) == (0, 0)
    assert found["kill/restart_s"] > 0.5
    assert [one.offline for one in simulated] == [True] + [False] * 7
    assert all(one.memory for one in simulated)


def test_a_point_of_one_replica_forwards_nothing(whole: BenchServer, live: Live) -> None:
    """Measured again where a busy machine caused timeouts, after which the breaker opens."""
    for _ in range(5):
        live.by_policy()
        point = measure_point(whole, "toy", None, lambda _: None, rounds=1, seconds=0.5)
        if point.by_policy > 0.9:
            break
    assert (point.replicas, point.connections, point.speedup) == (1, 32, 1.0)
    assert (point.forwarded, point.forwarded_share) == (0.0, None)
    assert point.by_policy > 0.9
    assert 0 < point.single_p50_ms <= point.p50_ms <= point.p99_ms
    assert 0 < point.generator_cpu < 1


def test_soak_holds(server: BenchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_bench, "PEAK_S", 1.0)
    lines: list[str] = []
    soak = run_soak(server, 15.0, lines.append, most_per_s=60)
    result = soak_result(soak)
    assert result.failed == 0, result
    assert result.requests == pytest.approx(15 * min(60, soak.peaks["toy"] / 2), rel=0.05)
    assert result.by_policy > 0.9  # a fallback is not a result
    assert {one.process for one in result.memory} == {"gateway", "toy"}
    assert result.holds, result.line
    assert "toy" in lines[-1]
    known_mb = [one.worker_mb for one in soak.seconds if one.gateway_mb and one.worker_mb]
    assert len(known_mb) >= 11
    assert all(50 < memory_mb < 5000 for memory_mb in known_mb)


def test_figures_are_measured_beside_no_ops(server: BenchServer, noops: dict[str, str]) -> None:
    figures = measure_loads(server, noops, lambda _: None, rounds=5, seconds=0.4)
    found = {figure.name.removeprefix("serve/"): figure.value for figure in figures}
    each = {"p50_ms", "p99_ms", "requests_per_s"}
    shares = {"share_of_noop", "share_of_noop_by_handle", "by_policy"}
    compared = each | shares | {"over_noop_ms", "over_noop_same_body_ms"}
    bodies = ("toy/small", "toy/large")
    alone = (*noops, *(f"noop/{body}" for body in bodies))
    figures_of = dict.fromkeys(alone, each) | dict.fromkeys(bodies, compared)
    cells = product(figures_of.items(), ("c1", "c16"))
    assert set(found) == {f"{name}/{c}/{one}" for (name, ones), c in cells for one in ones}
    small = {one: found[f"toy/small/c1/{one}"] for one in compared}
    assert small["by_policy"] > 0.9
    assert 0 < small["share_of_noop"] < 1
    assert small["over_noop_ms"] > 0
    assert found["toy/large/c1/over_noop_same_body_ms"] > 0
    assert small["requests_per_s"] < found["noop/c1/requests_per_s"]
    assert found["noop_by_handle/c1/p50_ms"] > found["noop/c1/p50_ms"]
