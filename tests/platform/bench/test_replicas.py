"""Several replicas: points, forwarded requests, bodies of a connection, the files."""

import csv
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench import copies, replicas
from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.http_load import Load, drive, report
from loadmaster.platform.bench.replicas import ReplicaPoint, Run
from loadmaster.platform.bench.service_processes import accepted_by, expected_replicas
from loadmaster.serving.settings import ServeSettings
from tests.platform.cli.one_line import Cli, Patch
from tests.serving.client.fake_service import fake_service


def made_server(folder: Path, size: int) -> BenchServer:
    values = {"systems": {"toy": {"workers": size}}, "replicas": size, "folder": folder}
    server = BenchServer("http://127.0.0.1:9", build_settings(ServeSettings, values), folder)
    (folder / "toy-small.json").write_bytes(b'{"state":{}}')
    return server


def test_a_point_has_medians_and_is_relative_to_the_first(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    seen: list[list[Load]] = []

    def run_loads(server: BenchServer, loads: list[Load]) -> Run:
        seen.append(loads)
        size, turn = server.settings.replicas, len(seen)
        forwarded = [] if size == 1 else [3.0, 3.0, 3.0]
        return Run(900.0 * size + turn, [2.0, 2.0, 2.0], forwarded, 0.8, 1.0, 0.25)

    monkeypatch.setattr(replicas, "run_loads", run_loads)
    first = None
    for size in (1, 2):
        seen.clear()
        server = made_server(tmp_path, size)
        point = replicas.measure_point(server, "toy", first, lambda _: None)
        first = first or point
    assert first.speedup == first.single_share == 1
    assert first.forwarded == 0
    assert first.forwarded_share is None
    assert (point.requests_per_s, point.connections) == (1804, 64)
    assert point.speedup == pytest.approx(1804 / 904)
    assert (point.forwarded, point.forwarded_share) == (0.5, 1.5)
    single, many = seen[:2]
    assert [(load.concurrency, load.in_flight) for load in single] == [(64, 1)]
    assert [load.concurrency for load in many] == [32, 32]
    tenants = [load.bodies[k].stem for load in many for k in range(load.concurrency)]
    assert tenants == [f"toy-small-t{number}" for number in range(64)]
    assert many[1].bodies[0].read_bytes() == b'{"state":{},"tenant":"t32"}'
    assert expected_replicas(server.settings) == {"control": 1, "gateway": 2, "toy": 2}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_copies_that_share_nothing_decide_at_once(monkeypatch: Patch) -> None:
    began: list[float] = []

    def rates(copies: Sequence[Any], seconds: float = 0.1) -> list[float]:
        began.append(time.time())
        return rates_of(copies, seconds)

    rates_of = copies.rates_of
    monkeypatch.setattr(copies, "rates_of", rates)
    speedups = copies.independent_speedups([2, 1], "decima", "small")
    assert list(speedups) == [1, 2]
    assert speedups[1] == 1
    assert 0 < speedups[2] < 4
    assert len(began) == 3, "until all have started, and each size"


def test_requests_to_another_gateway_than_the_owner_are_forwarded() -> None:
    reports: list[dict[str, Any]] = [
        {"connections": [{"port": 1, "latencies_ms": [1.0, 2.0]}]},
        {"connections": [{"port": 2, "latencies_ms": [3.0]}, {"port": 3, "latencies_ms": [4.0]}]},
    ]
    owners = [[70], [70, 71]]
    found = replicas.split_latencies(reports, owners, {1: 70, 2: 71, 3: 71})
    assert found == ([1.0, 2.0, 4.0], [3.0])
    with pytest.raises(RuntimeError, match="port 3"):
        replicas.split_latencies(reports, owners, {1: 70, 2: 71})


def test_accepted_connections_are_found_by_the_clients_port() -> None:
    own = psutil.Process().pid
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0]:
            assert accepted_by([own], port) == {client.getsockname()[1]: own}


@pytest.mark.parametrize("in_flight", [None, 1])
def test_each_connection_posts_its_own_body(in_flight: int | None, tmp_path: Path) -> None:
    bodies = tuple(tmp_path / name for name in ("one", "two"))
    for body in bodies:
        body.write_text(f'"{body.name}"')
    with fake_service() as service:
        load = Load(
            service.url,
            bodies,
            concurrency=3,
            seconds=0.3,
            own_bodies=True,
            in_flight=in_flight,
            marker='"source": "policy"',
        )
        found = report(load, drive(load))
    by_connection: dict[int, set[bytes]] = {}
    for seen in service.seen:
        by_connection.setdefault(seen.connection, set()).add(seen.body)
    assert sorted(by_connection.values(), key=str) == [{b'"one"'}, {b'"one"'}, {b'"two"'}]
    assert found["marked"] == found["requests"] == len(service.seen)
    counts = [len(one["latencies_ms"]) for one in found["connections"]]
    assert sum(counts) == found["requests"]
    assert len({one["port"] for one in found["connections"]}) == 3
    if in_flight:
        assert max(counts) - min(counts) <= 1, "in turn"
        busy_ms = sum(sum(one["latencies_ms"]) for one in found["connections"])
        elapsed_s = found["requests"] / found["requests_per_s"]
        assert busy_ms <= 1000 * elapsed_s + 1, "one at a time"


def test_table_and_chart_are_written_after_every_point(
    cli: Cli, tmp_path: Path, monkeypatch: Patch
) -> None:
    folder = tmp_path / "new" / "folder"
    one = ReplicaPoint(1, 16, 900.0, 1.0, 16.0, 60.0, 2.0, 1.0, 0.8, 1.0, 0.0, None, 0.2)
    four = ReplicaPoint(4, 64, 2700.0, 3.0, 20.0, 70.0, 2.4, 1.2, 0.9, 0.99, 0.75, 1.3, 0.4)

    def measured(sizes: list[int], report_step: Any) -> Any:
        assert sizes == [1, 4]
        yield one
        rows = list(csv.DictReader((folder / "replicas.csv").read_text().splitlines()))
        assert [row["forwarded_share"] for row in rows] == [""]
        yield four

    monkeypatch.setattr(replicas, "measure_replicas", measured)
    printed = cli.json(f"bench serve --replicas 4,1 --output {folder}")
    values = {result["name"]: result["value"] for result in printed["results"]}
    assert values["serve/replicas-4/speedup"] == 3
    assert "serve/replicas-1/forwarded_share" not in values
    rows = list(csv.DictReader((folder / "replicas.csv").read_text().splitlines()))
    assert [(row["replicas"], row["requests_per_s"]) for row in rows] == [
        ("1", "900.0"),
        ("4", "2700.0"),
    ]
    assert (folder / "replicas.png").read_bytes().startswith(b"\x89PNG")
    assert "2,700" in cli(f"bench serve --replicas 1,4 --output {folder}").out
