"""Tenants: their states do not mix, survive restarts and kills, and stay bounded."""

import asyncio
import gc
import itertools
import json
import sqlite3
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import MagicMock

import psutil
import pytest

from loadmaster.serving.decisions import tenant_database, tenant_registry, tenant_store
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.decisions.request import Decided, RequestOptions
from loadmaster.serving.decisions.tenant import Tenant, TenantParts
from loadmaster.serving.decisions.tenant_database import SavedTenant, TenantDatabase, TenantRows
from loadmaster.serving.decisions.tenant_names import (
    ALL_TENANTS,
    DEFAULT_TENANT,
    TenantAccess,
    TenantSettings,
)
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.decisions.tenant_store import TenantStore
from loadmaster.serving.http import schemas
from loadmaster.serving.monitoring.log_files import read_log
from loadmaster.serving.monitoring.metrics import TenantLabels
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.system import Quantity
from tests.serving import toy
from tests.serving.conftest import LocalService, Start

Result = TypeVar("Result")
FLAPPY = {"guard": {"flaps": 2}}
HELD = ["flap: web from 1 to 2"]


def decide(here: LocalService, tenant: str | None, load: float, replicas: int, **more: Any) -> Any:
    options = more if tenant is None else {"tenant": tenant, **more}
    return here.decide(load=load, replicas=replicas, **options)


def flap(here: LocalService, tenant: str | None, times: int, **more: Any) -> Any:
    """Move one replica up and down; the last response."""
    for turn in range(times):
        response = decide(here, tenant, load=10 if turn % 2 else 30, replicas=2, **more)
    return response


def view(here: LocalService, name: str, tenant: str | None = None) -> Any:
    return here.request("GET", f"/v1/toy/{name}" + (f"?tenant={tenant}" if tenant else "")).json


def test_tenants_with_the_same_job_do_not_mix(start: Start) -> None:
    here = start(toy=FLAPPY)
    assert flap(here, "a", 4)["guard"] == HELD
    assert flap(here, "b", 3)["guard"] == flap(here, None, 3)["guard"] == []
    assert flap(here, "b", 2)["guard"] == HELD
    response = decide(here, "a", 30, 2, request_id="r-1")
    schemas.DecisionResponse.model_validate(response)
    assert decide(here, "a", 30, 2, request_id="r-1") == response
    assert decide(here, "b", 30, 2, request_id="r-1")["tenant"] == "b"  # another body anyway
    assert [view(here, "status", name)["decisions"]["total"] for name in ("a", "b", None)] == [
        5,
        6,
        3,
    ]
    assert {one["tenant"] for one in view(here, "decisions", "a")["decisions"]} == {"a"}
    assert sum(one["decisions"] for one in view(here, "history", "b")["intervals"]) == 6
    here.close()
    rows = list(read_log(here.folder / "kept" / "log" / "toy"))
    assert [sum(row.tenant == name for row in rows) for name in ("a", "b", "default")] == [5, 6, 3]


def test_shadow_requests_do_not_count_as_changes(start: Start) -> None:
    here = start(toy={"guard": {"flaps": 2, "stabilisation_s": 60}, "rule": "follow"})
    assert flap(here, "a", 20, mode="shadow")["decision"] == {"replicas": 1}
    assert decide(here, "a", 10, 2)["guard"] == []


def test_pause_of_a_tenant_or_of_the_system(start: Start) -> None:
    here = start()
    status = here.post("pause", {"tenant": "a", "reason": "night"}).json
    schemas.StatusResponse.model_validate(status)
    assert (status["tenant"], status["acting_because"]) == ("a", "paused: night")
    assert [decide(here, name, 42, 3)["cause"] for name in ("a", "b", None)] == [
        "paused",
        None,
        None,
    ]
    here.post("pause")
    assert decide(here, "b", 42, 3)["cause"] == "paused"
    here.post("resume")  # the tenant stays paused
    assert [decide(here, name, 42, 3)["cause"] for name in ("a", "b")] == ["paused", None]
    assert here.post("resume", {"tenant": "a"}).json["paused"] is False
    for verb in ("promote", "rollback"):
        assert here.post(verb, {"tenant": "a"}).json["field"] == "tenant"


def test_each_tenant_has_its_own_lifecycle(start: Start) -> None:
    window = {"monitor": {"lifecycle": {"window": 10}}, "auto_retrain": {"enabled": True}}
    here = start(toy=window)

    def rewards(tenant: str, reward: float, times: int, **more: Any) -> None:
        for step in range(times):
            given = decide(here, tenant, 42 + step % 3, 3, **more)["id"]
            outcome = {"reward": reward + 0.01 * (step % 3)}
            body = {"id": given, "outcome": outcome, "tenant": tenant}
            assert here.post("feedback", body).json["tenant"] == tenant

    rewards("a", 1.0, 12, mode="shadow")
    rewards("a", 2.0, 12)
    rewards("a", 0.1, 20)
    rewards("b", 0.1, 5)
    here.run(here.service.tick())
    status = view(here, "status", "a")
    assert (status["lifecycle"]["state"], status["acting"]) == ("OFFLINE", "fallback")
    assert status["retraining"]["wanted"].startswith("tenant a: ")
    assert view(here, "status", "b")["lifecycle"]["state"] == "ONLINE"
    assert view(here, "status")["tenants"]["by_state"] == {"ONLINE": 2, "OFFLINE": 1}
    assert here.decide()["cause"] is None
    listed = view(here, "status")["tenants"]["most_active"]
    assert [one["tenant"] for one in listed] == ["a", "b", "default"]
    here.close()
    again = start(toy=window)
    assert view(again, "status", "a")["lifecycle"]["state"] == "OFFLINE"
    assert view(again, "status")["tenants"]["known"] == 3
    assert decide(again, "a", 42, 3)["cause"] == "lifecycle"


def test_a_bundle_that_replaced_another_resets_tenants_on_disk(start: Start) -> None:
    here = start(tenants={"most": 1})
    body = {"id": decide(here, "a", 42, 3)["id"], "outcome": {"reward": 1.0}, "tenant": "a"}
    here.post("feedback", body)
    decide(here, "b", 42, 3)
    assert view(here, "status", "a")["rewards"]["policy"]["count"] == 1
    here.post("promote", {"bundle": str(toy.make_bundle(here.folder / "other", extra=1))})
    assert view(here, "status", "a")["rewards"]["policy"]["count"] == 0
    assert view(here, "status", "a")["decisions"]["total"] == 1


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 65, "a%0A", "%00"])
def test_wrong_names_are_refused_in_one_line(start: Start, name: str) -> None:
    here = start()
    for path in ("toy/status", "toy/history", "toy/decisions", "systems"):
        answer = here.request("GET", f"/v1/{path}?tenant={name}")
        assert (answer.status, answer.json["field"]) == (422, "tenant")
        assert "\n" not in answer.json["error"]


# Persistence.


def written(here: LocalService) -> None:
    """Wait until changes are written without a close."""
    here.run(asyncio.sleep(tenant_store.FLUSH_S + 0.1))


def killed(here: LocalService) -> None:
    """Give up a service as a kill would: nothing more is written, and its folder is free."""
    written(here)
    here.kill()


@pytest.mark.slow
def test_state_survives_a_kill(start: Start) -> None:
    here = start(toy=FLAPPY)
    flap(here, "a", 3)
    first = decide(here, "a", 30, 2, request_id="r-1")
    here.post("pause", {"tenant": "b", "reason": "night"})
    killed(here)
    again = start(toy=FLAPPY)
    assert decide(again, "a", 30, 2, request_id="r-1") == first  # its latency too
    assert decide(again, "a", 10, 2)["guard"] == HELD
    assert decide(again, "b", 42, 3)["cause"] == "paused"
    assert decide(again, None, 42, 3)["cause"] is None


def test_the_source_of_earlier_decisions_survives_a_restart(start: Start) -> None:
    here = start()
    given = decide(here, "a", 42, 3, mode="shadow")["id"]
    here.close()
    again = start()
    again.post("feedback", {"id": given, "outcome": {"reward": 1.0}, "tenant": "a"})
    again.post("feedback", {"id": given, "outcome": {"reward": 1.0}, "tenant": "b"})
    assert view(again, "status", "a")["rewards"]["rule"]["count"] == 1
    assert view(again, "status", "b")["rewards"]["policy"]["count"] == 1  # unknown there


def test_a_damaged_file_is_put_aside(start: Start) -> None:
    here = start()
    here.close()
    file = here.folder / "kept" / "toy.sqlite"
    file.write_bytes(b"no database" * 1000)
    again = start()
    assert again.decide()["cause"] is None
    assert file.with_suffix(".damaged").read_bytes().startswith(b"no database")
    assert oct(file.stat().st_mode)[-3:] == "600"


@pytest.mark.slow
def test_a_fault_of_the_disk_costs_no_decision(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(toy=FLAPPY)
    monkeypatch.setattr(tenant_store, "RETRY_S", 0.05)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tenant_database, "_insert", full)
        flap(here, "a", 4)
        written(here)
        assert "No space left" in view(here, "status", "a")["log"]["state"]
    written(here)
    assert view(here, "status", "a")["log"]["state"] is None
    killed(here)
    assert flap(start(toy=FLAPPY), "a", 2)["guard"] == HELD  # nothing was lost


def test_state_of_before_there_were_tenants_is_adopted(start: Start) -> None:
    here = start()
    here.decide()
    here.close()
    (folder := here.folder / "kept").joinpath("toy.sqlite").unlink()
    record = {
        "keeper": {
            "state": "OFFLINE",
            "since": 0.0,
            "why": "then",
            "guarded": {},
            "monitor": {"decisions": {"policy": 7, "fallback": 0}, "history": []},
        }
    }
    folder.joinpath("toy.json").write_text(json.dumps(record))
    again = start()
    status = again.status()
    assert (status["lifecycle"]["state"], status["decisions"]["total"]) == ("OFFLINE", 7)


# Bounds.


class Unused:
    """Log and control process, without effect."""

    dropped, fault = 0, None

    def put(self, _: Any) -> bool:
        return True

    def status(self) -> Any:
        return self

    def close(self) -> None: ...


class Kept:
    """A registry and its database, with an event loop."""

    def __init__(self, folder: Path, **bounds: Any) -> None:
        settings = TenantSettings(**bounds)
        database = TenantDatabase(folder / "toy.sqlite", 3600.0, 60.0, settings.disk_bytes)
        self.database, self._runner = database, asyncio.Runner()

        class Backend:
            async def load(self, tenant: str) -> SavedTenant:
                return database.load(tenant, time.time())

            async def write(self, rows: TenantRows) -> None:
                await database.write(rows)

        async def make() -> TenantRegistry:
            others: Any = Unused()
            parts = TenantParts(
                "toy", GuardSettings(), MonitorSettings(), "SERVING", others, others,
                TenantStore(Backend()), TenantLabels(),
            )  # fmt: skip
            return TenantRegistry(settings, parts, lambda: next(TIMES))

        self.registry = self.run(make())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def get(self, name: str) -> Tenant:
        return self.run(self.registry.get(name))

    def flush(self) -> bool:
        return self.run(self.registry.parts.store.flush())

    def known(self) -> int:
        assert self.flush()
        return self.database.states().total()

    def use(self, *names: str, now: float | None = None) -> Tenant:
        """What decisions do to their tenants."""

        async def use_all() -> Tenant:
            for name in names:
                tenant = self.registry.find(name) or await self.registry.get(name)
                at = time.monotonic() if now is None else now
                result = tenant.guard.apply(DECIDED.quantities, at)
                tenant.guard.commit(DECIDED.quantities, result, at)
                response = {"id": name, "decision": {}, "reason": {}, "shadow": None}
                options = RequestOptions(tenant=name)
                answer = {**response, "latency_ms": 1.0}
                tenant.record_decision(RAW, options, answer, DECIDED, at)
                self.registry.changed(tenant, next(TIMES))
            return tenant

        return self.run(use_all())

    def close(self) -> None:
        self.run(self.registry.close())
        self._runner.close()
        self.database.close()


TIMES = map(float, itertools.count(1_700_000_000))
RAW = b'{"state":{"load":42,"replicas":3}}'
DECIDED = Decided(
    decision={"replicas": 3}, reason={"summary": "x", "choices": {}}, source="policy", cause=None,
    detail="", policy={"name": "toy", "version": "1"},
    quantities=(Quantity("web", 3, 4), Quantity("db", 3, 2)), features={"load": 42.0},
)  # fmt: skip


@pytest.fixture
def registries(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    opened: list[Kept] = []

    def make(**bounds: Any) -> Kept:
        opened.append(Kept(tmp_path, **bounds))
        return opened[-1]

    yield make
    for kept in opened:
        kept.close()


Registries = Callable[..., Kept]


def test_the_least_recently_used_leave_memory_and_return(registries: Registries) -> None:
    kept = registries(most=10)
    kept.use(*(f"t{number}" for number in range(100)))
    assert len(list(kept.registry)) == 10
    assert kept.known() == 100
    for name in ("t5", "t50", "t95"):  # on disk or still being written, or in memory
        tenant = kept.get(name)
        assert tenant.recorder.monitor.total == 1
        assert set(tenant.guard.histories) == {"web", "db"}
        assert tenant.source_of(name, "unknown") == "policy"
    assert kept.known() == 100
    others = {"states": {"SERVING": 100}, "active": []}
    limited = kept.run(kept.registry.summary(TenantAccess(["t5", "never"]), others))
    assert [one["tenant"] for one in limited["most_active"]] == ["t5"]
    assert limited["known"] == 1
    assert kept.run(kept.registry.summary(ALL_TENANTS, others))["known"] == 100


def test_as_many_tenants_as_fit_stay_beside_the_default_one(registries: Registries) -> None:
    kept, names = registries(most=10), [f"t{number}" for number in range(10)]
    kept.use(DEFAULT_TENANT, *names)
    first = [kept.get(name) for name in names]
    kept.use(*names)  # in turn, the least recently used first
    assert all(kept.get(name) is tenant for name, tenant in zip(names, first, strict=True))
    kept.use("t10")
    assert {one.name for one in kept.registry} == {DEFAULT_TENANT, *names[1:], "t10"}


def test_a_tenant_with_a_request_under_way_stays(registries: Registries) -> None:
    kept = registries(most=5)
    busy = kept.use("busy")
    busy.pins += 1
    kept.use(*(f"t{number}" for number in range(50)))
    assert kept.get("busy") is busy


def test_memory_is_bounded_by_bytes(registries: Registries) -> None:
    kept = registries(memory_bytes=1 << 20)
    kept.use(*(f"t{number}" for number in range(200)), now=0.0)
    assert sum(tenant.memory_bytes for tenant in kept.registry) <= 1 << 20
    assert 30 < len(list(kept.registry)) < 150


@pytest.mark.slow
@pytest.mark.long
def test_many_names_fill_neither_memory_nor_disk(
    registries: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_database, "PRUNE_S", 0.2)
    bound, first, more = 4 << 20, 10_000, 20_000
    kept, database = registries(most=100, disk_bytes=bound), tmp_path / "toy.sqlite"
    files = [0]
    kept.use(DEFAULT_TENANT)

    def use_some(names: range) -> tuple[int, int]:
        """Allocated blocks and resident bytes after one decision for each name."""
        for start in range(names.start, names.stop, 500):
            kept.use(*(f"t{number}" for number in range(start, start + 500)))
            assert kept.flush()
            kept.run(kept.registry.tick(paused=False))
            files.append(sum(one.stat().st_size for one in tmp_path.iterdir()))
        gc.collect()
        return sys.getallocatedblocks(), psutil.Process().memory_info().rss

    blocks, rss = use_some(range(first))
    assert database.stat().st_size > bound / 2  # the rest cannot pass for want of data
    blocks_after, rss_after = use_some(range(first, first + more))
    assert blocks_after - blocks < 0.05 * more  # no object of a name stays
    assert rss_after - rss < 24 << 20
    assert database.stat().st_size < 1.1 * bound
    assert max(files) < 1.1 * bound + (20 << 20)  # with the write-ahead log
    assert len(list(kept.registry)) == 100 + 1  # and the default one
    known = kept.known()
    assert 1000 < known < first  # on disk, and counted right
    with sqlite3.connect(database) as reader:
        names = {name for (name,) in reader.execute("select name from tenants")}
    assert len(names) == known
    assert DEFAULT_TENANT in names
    assert kept.get(DEFAULT_TENANT).recorder.monitor.total == 1
    assert kept.get("t0").recorder.monitor.total == 0  # the oldest were deleted
    assert kept.get(f"t{first + more - 200}").recorder.monitor.total == 1


def test_a_tenant_takes_little_memory(registries: Registries) -> None:
    kept = registries()
    kept.use("first", now=0.0)
    tracemalloc.start()
    kept.use(*(f"t{number}" for number in range(200)), now=0.0)
    kept.flush()
    gc.collect()
    each = tracemalloc.get_traced_memory()[0] / 200
    tracemalloc.stop()
    assert each < 12_000
    assert each < kept.get("t7").memory_bytes < 3 * each  # the estimate


def test_records_are_saved_a_few_at_a_time(registries: Registries) -> None:
    kept = registries()
    kept.use(*(f"t{number}" for number in range(3 * tenant_registry.SAVED_AT_ONCE)), now=0.0)
    store: Any = kept.registry.parts.store
    put = store.put_record = MagicMock(wraps=store.put_record)
    kept.run(kept.registry.tick(paused=False))
    assert put.call_count == tenant_registry.SAVED_AT_ONCE
