"""The asyncio client: concurrent tasks, cancellation, several event loops."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings

import pytest

from loadmaster.serving.client import AsyncClient
from tests.serving.client.fake_service import echo, fake_service, silence


def test_concurrent_tasks_get_their_own_responses() -> None:
    async def call(url: str) -> list[object]:
        async with AsyncClient(url, deadline_s=20) as client:
            states = [{"count": count} for count in range(100)]
            decisions = await asyncio.gather(*(client.decide("das", state) for state in states))
            await client.decide("das", {})  # on a reused connection
            return [
                (state, decision.decision)
                for state, decision in zip(states, decisions, strict=True)
                if state != decision.decision
            ]

    with fake_service(echo) as service:
        assert asyncio.run(call(service.url)) == []
        assert service.connections <= 100


def test_cancelled_call_drops_its_connection() -> None:
    async def call(url: str) -> object:
        async with AsyncClient(url, deadline_s=20) as client:
            await client.decide("das", {"count": 0})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.decide("das", {"count": 1}), 0.05)
            return (await client.decide("das", {"count": 2})).decision

    with fake_service(echo, silence, echo) as service:
        assert asyncio.run(call(service.url)) == {"count": 2}
        assert [seen.connection for seen in service.seen] == [0, 0, 1]


def test_client_reconnects_in_another_event_loop() -> None:
    with fake_service(echo) as service:
        client = AsyncClient(service.url, deadline_s=20)
        for count in range(2):
            decision = asyncio.run(client.decide("das", {"count": count}))
            assert decision.decision == {"count": count}
        assert service.connections == 2
        del client
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # asyncio warns about connections that outlive their event loop


def test_event_loop_is_not_blocked() -> None:
    async def call(url: str) -> int:
        ticks = 0
        async with AsyncClient(url, deadline_s=0.2, fallback=lambda *_: {}) as client:
            task = asyncio.create_task(client.decide("das", {}))
            while not task.done():
                await asyncio.sleep(0.01)
                ticks += 1
            assert task.result().cause == "deadline"
        return ticks

    with fake_service(silence) as service:
        began = time.monotonic()
        assert asyncio.run(call(service.url)) >= 5
        assert time.monotonic() - began < 2
