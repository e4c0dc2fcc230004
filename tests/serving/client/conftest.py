"""A fixture that makes either client, and a clock that only advances while sleeping."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadmaster.serving.client import AsyncClient, Client


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


class BlockingAdapter:
    """An AsyncClient with blocking methods, so that one test covers both clients."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client, self._runner = client, runner

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **settings: Any) -> Any:
            return await getattr(self.client, name)(*arguments, **settings)

        return lambda *arguments, **settings: self._runner.run(call(*arguments, **settings))

    def __repr__(self) -> str:
        return repr(self.client)


MakeClient = Callable[..., Any]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["blocking", "asyncio"])
def make_client(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeClient]:
    """Make a Client or an AsyncClient, on a given clock or the real one."""
    monkeypatch.delenv("LOADMASTER_TOKEN", raising=False)
    made: list[Any] = []
    with asyncio.Runner() as runner:

        def make(url: str, *, clock: Clock | None = None, **settings: Any) -> Any:
            settings.setdefault("rng", random.Random(3))
            settings.setdefault("deadline_s", 5.0)
            if clock is not None:
                sleep = clock.sleep if request.param == "blocking" else clock.sleep_async
                settings.update(clock=clock, sleep=sleep)
            if request.param == "blocking":
                made.append(Client(url, **settings))
            else:
                made.append(BlockingAdapter(AsyncClient(url, **settings), runner))
            return made[-1]

        yield make
        for client in made:
            client.close()
