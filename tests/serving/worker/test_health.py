"""Readiness: /readyz follows whether the worker answers, with and without requests."""

import asyncio
import time
from typing import Any

import pytest

from loadmaster.serving.worker import health
from loadmaster.serving.worker.pool import CircuitBreaker
from loadmaster.serving.worker.rpc import LostError
from tests.serving.conftest import LocalService, Start


class Worker:
    """Answers unless it is down."""

    def __init__(self) -> None:
        self.is_up, self.calls, self.now = True, 0, 0.0

    async def call(self) -> None:
        self.calls += 1
        if not self.is_up:
            raise LostError("gone")


def test_worker_counts_as_down_after_the_grace_time_only() -> None:
    worker, grace_s = Worker(), health.GRACE_S
    watched = health.WorkerHealth("toy", CircuitBreaker(), worker.call, lambda: worker.now)

    def fault_at(now: float, is_up: bool) -> bool:
        worker.now, worker.is_up = now, is_up
        asyncio.run(watched.check())
        return watched.fault is not None

    assert [fault_at(now, is_up=False) for now in (0.0, grace_s - 1, grace_s)] == [0, 0, 1]
    assert f"{grace_s:.0f} s" in str(watched.fault)
    assert not fault_at(grace_s + 1, is_up=True)
    assert not fault_at(grace_s + 2, is_up=False)  # the time starts anew
    assert worker.calls == 5


def test_worker_that_answers_requests_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PERIOD_S", 0.02)
    worker, breaker = Worker(), CircuitBreaker()
    watched = health.WorkerHealth("toy", breaker, worker.call)

    async def work() -> None:
        task = asyncio.ensure_future(watched.watch())
        for _ in range(40):
            breaker.succeeded()
            await asyncio.sleep(0.005)
        task.cancel()

    asyncio.run(work())
    assert worker.calls <= 1  # on a busy machine one period may pass without a decision


def ready(here: LocalService) -> int:
    return here.request("GET", "/readyz").status


def until_ready_is(here: LocalService, status: int) -> Any:
    limit = time.monotonic() + 20
    while (answer := here.request("GET", "/readyz")).status != status:
        assert time.monotonic() < limit
        here.run(asyncio.sleep(0.02))
    return answer


@pytest.mark.parametrize("hangs", [False, True])
def test_readyz_fails_while_the_worker_is_silent_and_recovers(
    start: Start, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    for name, value in {"PERIOD_S": 0.02, "TIMEOUT_S": 0.1, "GRACE_S": 0.3}.items():
        monkeypatch.setattr(health, name, value)

    async def fail(*_: object) -> bytes:
        if hangs:
            await asyncio.sleep(60)
        raise LostError("gone")

    here = start(toy={"deadline_ms": 50})
    assert ready(here) == 200
    with monkeypatch.context() as patch:
        patch.setattr(here.worker, "decide", fail)
        assert ready(here) == 200  # within the grace time
        answer = until_ready_is(here, 503)
        assert "toy" in answer.json["error"]
        assert answer.headers["retry-after"] == "1"
        assert here.decide()["source"] == "fallback"  # decisions go on
        assert here.request("GET", "/healthz").status == 200
    until_ready_is(here, 200)  # without a single request


@pytest.mark.slow
def test_starting_system_is_not_ready(start: Start) -> None:
    here = start(wait=False)
    answer = here.request("GET", "/readyz")
    assert (answer.status, "is starting" in answer.json["error"]) == (503, True)
