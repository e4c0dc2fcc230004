"""The wire between gateway and worker: what crosses it, and what happens when an end is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.worker import rpc as hotline
from loadmaster.serving.worker.rpc import (
    DECIDE,
    DONE,
    PROPOSE,
    ConnectionPool,
    LostError,
    RpcClient,
    RpcServer,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """In either of the loops that a replica may have."""
    loop = None
    if request.param == "uvloop":
        loop = pytest.importorskip("uvloop").new_event_loop

    def runs(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(work)

    return runs


def echo(version: str, folder: str, raw: list[bytes]) -> list[bytes]:
    return [f"{version} in {folder}: ".encode() + one for one in raw]


async def line_to(door: RpcServer) -> RpcClient:
    return await RpcClient.to(door.open([])[1])


@given(st.lists(st.binary(max_size=50)), st.integers(0, 2**32 - 1))
def test_frames_hold_any_parts(parts: list[bytes], number: int) -> None:
    whole = hotline.frame(DONE, number, parts)
    heard: list[tuple[int, int, list[bytes]]] = []
    line = RpcClient()
    line._answered = lambda *told: heard.append(told)  # type: ignore[method-assign]
    for place in range(len(whole)):  # however it is cut
        line.data_received(whole[place : place + 1])
    line.data_received(whole + whole)
    assert heard == [(DONE, number, parts)] * 3


def test_questions_are_answered_each_by_its_own(run: Run) -> None:
    async def work() -> None:
        line = await line_to(RpcServer({DECIDE: echo}))
        large = b"x" * 3_000_000
        asked = [line.ask(DECIDE, "v", "f", [str(n).encode(), large]) for n in range(20)]
        for number, answers in enumerate(await asyncio.gather(*asked)):
            assert answers == [f"v in f: {number}".encode(), b"v in f: " + large]
        assert await line.ask(DECIDE, "v", "f", []) == []
        assert line.waiting == 0
        line.hang_up()

    run(work())


def test_a_fault_is_told_and_the_line_stays(run: Run) -> None:
    def refuse(*_: Any) -> list[bytes]:
        raise ValueError("not today")

    async def work() -> None:
        line = await line_to(RpcServer({DECIDE: echo, PROPOSE: refuse}))
        with pytest.raises(RuntimeError, match="ValueError: not today"):
            await line.ask(PROPOSE, "", "", [b""])
        assert await line.ask(DECIDE, "v", "f", [b"!"]) == [b"v in f: !"]
        line.hang_up()

    run(work())


def test_who_gives_up_leaves_the_line_to_others(run: Run) -> None:
    goes_on = threading.Event()

    def wait(version: str, folder: str, raw: list[bytes]) -> list[bytes]:
        goes_on.wait(10)
        return raw

    async def work() -> None:
        line = await line_to(RpcServer({DECIDE: wait}))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await line.ask(DECIDE, "", "", [b"first"])
        goes_on.set()
        assert await line.ask(DECIDE, "", "", [b"second"]) == [b"second"]
        line.hang_up()

    run(work())


def test_a_worker_that_dies_is_noticed_at_once(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(10)
            writer.close()

        async with await asyncio.start_unix_server(die, tmp_path / "s"):
            line = await RpcClient.to(str(tmp_path / "s"))
            with pytest.raises(LostError):
                await line.ask(DECIDE, "", "", [b"over which it dies"])
        assert not line.is_up
        with pytest.raises(LostError):
            await line.ask(DECIDE, "", "", [])

    run(work())


def test_a_door_leaves_no_file(run: Run) -> None:
    async def work() -> None:
        door = RpcServer({DECIDE: echo})
        name, address = door.open([])
        assert Path(address).parent.stat().st_mode & 0o777 == 0o700
        line = await RpcClient.to(address)
        await line.ask(DECIDE, "v", "f", [b""])
        assert not Path(address).parent.exists()
        assert door.open([name]) == (name, ""), "he knows the way"
        line.hang_up()

    run(work())


def test_a_door_waits_for_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hotline, "VISIT_S", 0.05)
    _, address = RpcServer({}).open([])
    for thread in threading.enumerate():
        if thread.name == "hotline":
            thread.join(5)
    assert not Path(address).exists()


def test_lines_are_laid_to_every_worker_and_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hotline, "AGAIN_S", 0.01)
    doors = [RpcServer({DECIDE: lambda *_, n=n: [str(n).encode()]}) for n in range(2)]
    calls = [0]

    async def way(known: list[str]) -> Sequence[str]:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("the worker is starting")
        return doors[calls[0] // 3 % 2].open(known)

    async def until(board: ConnectionPool, many: int) -> None:
        async with asyncio.timeout(5):
            while board.line() is None or len(board._lines) < many:
                await asyncio.sleep(0.005)

    async def work() -> None:
        board = ConnectionPool(way, workers=2)
        assert board.line() is None
        await until(board, 2)
        lines = list(board._lines.values())
        told = [await line.ask(DECIDE, "", "", []) for line in lines]
        assert sorted(told) == [[b"0"], [b"1"]]
        lines[0].hang_up()
        await asyncio.sleep(0.02)
        assert board.line() is lines[1]
        await until(board, 2)
        for line in board._lines.values():
            line.hang_up()

    run(work())
