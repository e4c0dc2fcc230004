"""Faults of policies, processes and the disk: every request gets a decision in time."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.client import Client, Decision, ServiceError, calls
from tests.serving.live import CONTROLLER, FLAPS, GATEWAY, TOY, Live, Pressure

pytestmark = pytest.mark.slow

CLIENTS = 4


@pytest.fixture(autouse=True)
def follows(live: Live) -> str:
    """Version of the correct toy bundle, which serves before every test."""
    live.admin.resume("toy")
    version = live.serve()
    live.by_policy()
    return version


def test_the_rule_decides_while_the_policy_fails(live: Live, follows: str) -> None:
    with Pressure(live) as load:
        live.serve("returns nan")
        load.until_chiefly("not finite")
        live.admin.rollback("toy")
        load.until_chiefly(None)
    load.check({follows: 0})


def test_occasional_timeouts_keep_the_breaker_closed(live: Live) -> None:
    version = live.serve("is slow now and then")
    with Pressure(live) as load:
        live.until(lambda: load.causes()["timeout"] and load.causes()[None] > 60)
    load.check({version: 0})
    live.by_policy()
    assert live.admin.status("toy").breaker == "closed"


def test_a_worker_whose_policy_hangs_is_replaced(live: Live, follows: str) -> None:
    hung = live.process(TOY).pid
    with Pressure(live) as load:
        live.serve("hangs")
        live.until(lambda: load.causes()["timeout"])
        live.until(lambda: live.admin.status("toy").breaker == "open")
        live.admin.rollback("toy")
        took_s = live.until(lambda: live.has_new(TOY, hung) and live.decide().source == "policy")
        load.until_chiefly(None)
    assert took_s < 60
    assert set(load.causes()) <= {None, "timeout", "breaker open", "worker down"}
    assert load.causes()["breaker open"] > load.causes()["timeout"]
    live.by_policy()
    assert live.admin.status("toy").breaker == "closed"
    load.check({follows: 0})


def test_a_killed_worker_is_replaced_and_loads_the_copied_bundle(live: Live, follows: str) -> None:
    original = Path(live.bundle())
    gone = original.rename(original.with_name("gone"))
    try:
        with Pressure(live) as load:
            time.sleep(0.5)
            killed = live.kill(TOY)
            live.until(lambda: live.has_new(TOY, killed) and live.decide().source == "policy")
            load.until_chiefly(None)
    finally:
        gone.rename(original)
    assert set(load.causes()) <= {None, "timeout", "breaker open", "worker down"}
    assert load.causes()["worker down"] + load.causes()["timeout"] > 0
    load.check({follows: 0})


def test_decisions_go_on_while_the_controller_is_replaced(live: Live, follows: str) -> None:
    with Pressure(live) as load:
        time.sleep(0.5)
        killed = live.kill(CONTROLLER)
        extra = live.serve("follows", extra=2)
        live.until(lambda: live.has_new(CONTROLLER, killed))
        live.until(lambda: live.decide().decision == {"replicas": 7})
        live.admin.rollback("toy")
        load.until_chiefly(None)
    load.check_chiefly(None)
    load.check({follows: 0, extra: 2})


def test_a_killed_gateway_is_replaced_with_its_state(live: Live, follows: str) -> None:
    version = live.serve("follows", extra=3)
    live.admin.pause("toy", "for the test")
    back = threading.Event()

    def decide_until_it_is_back() -> list[Decision]:
        found = []
        with Client(live.url, deadline_s=60.0, retries=200) as patient:
            while not (found and back.wait(0.02)):
                found.append(patient.decide("toy", {"load": 42, "replicas": 3}))
        return found

    with ThreadPoolExecutor(CLIENTS) as threads:
        futures = [threads.submit(decide_until_it_is_back) for _ in range(CLIENTS)]
        time.sleep(0.5)
        killed = live.kill(GATEWAY)
        live.until(lambda: live.has_new(GATEWAY, killed))
        status = live.admin.status("toy")
        back.set()
        found = [decision for one in futures for decision in one.result()]
    assert {(one.decision["replicas"], one.cause) for one in found} == {(3, "paused")}
    assert status.acting_because == "paused: for the test"
    policies = (status.policies.serving, status.policies.previous)
    assert [one and one.version for one in policies] == [version, follows]
    live.admin.resume("toy")
    assert live.by_policy().decision == {"replicas": 8}


def test_a_killed_gateway_restores_guard_windows_and_responses(live: Live) -> None:
    def turn(step: int, tenant: str = "killed") -> Decision:
        """Alternately more and fewer replicas of the same service."""
        load = 10 if step % 2 else 90
        return live.admin.decide("toy", {"load": load, "replicas": 5}, tenant=tenant)

    assert [turn(step).guard for step in range(FLAPS + 1)] == [()] * (FLAPS + 1)
    call = calls.decide("toy", {"load": 60, "replicas": 5}, "active", None, "r-1", "killed")
    first = live.admin.ask(calls.with_original(call))[1]
    live.admin.pause("toy", "for the test", tenant="paused")
    time.sleep(0.2)
    killed = live.kill(GATEWAY)
    live.until(lambda: live.has_new(GATEWAY, killed))
    live.by_policy()
    assert live.admin.ask(calls.with_original(call))[1] == first  # its latency too
    assert [turn(step).guard[0].partition(":")[0] for step in (1,)] == ["flap"]
    assert turn(1, tenant="other").guard == ()
    assert turn(1, tenant="paused").cause == "paused"
    live.admin.resume("toy", tenant="paused")


def test_an_unwritable_log_folder_costs_no_decision(live: Live, follows: str) -> None:
    """The folder is replaced by a file, so that nothing can be written into it."""
    folder = live.folder / "log" / "toy"

    def log(field: str) -> Any:
        return live.admin.status("toy").log[field]

    with Pressure(live) as load:
        live.until(lambda: log("rows") > 0)
        aside = folder.rename(folder.with_name("aside"))
        folder.touch()
        live.until(lambda: log("fault"))
        assert str(folder) in log("fault")
        before = log("rows")
        load.until_chiefly(None)
        assert log("rows") == before
        folder.unlink()
        aside.rename(folder)
        live.until(lambda: log("fault") is None)
    live.until(lambda: log("rows") >= len(load.samples()))
    assert log("dropped") == 0
    load.check_chiefly(None)
    load.check({follows: 0})


def test_promotions_and_rollbacks_under_load(live: Live, follows: str, tmp_path: Path) -> None:
    """Valid bundles serve at once, damaged ones never, and no request fails."""
    damaged = tmp_path / "damaged"
    shutil.copytree(live.bundle("follows", extra=9), damaged)
    weights = damaged / "weights.safetensors"
    weights.write_bytes(b"x" * weights.stat().st_size)
    versions, at_once, turns = {follows: 0}, 0, 6
    with Pressure(live, rate=100) as load:
        for turn in range(turns):
            served = live.serve("follows", extra=1 + turn % 3)
            versions[served] = 1 + turn % 3
            with pytest.raises(ServiceError, match="damaged"):
                live.admin.promote("toy", str(damaged), to="serving")
            at_once += live.decide().source == "policy"
            assert live.by_policy().policy.version == served
            back = live.admin.rollback("toy").policies.serving
            at_once += live.decide().source == "policy"
            assert live.by_policy().policy.version == (back and back.version)
            time.sleep(0.1)
    assert len(versions) == 4
    assert at_once >= 2 * turns - 2  # a change is not an outage
    load.check_chiefly(None)
    answers = [sample.answer for sample in load.samples() if sample.answer is not None]
    assert {one.policy.version for one in answers if one.source == "policy"} == set(versions)
    load.check(versions)
