"""What is kept on disk is written in order, beside the event loop, and tells its faults."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.policies.store import StateWriter, Store, Version
from tests.serving import toy


async def approve(version: Version) -> None:
    assert Path(version.folder).is_dir()


def test_the_last_record_stays_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = Store(tmp_path, "toy"), threading.Event()
    honest = store.remember

    def slow(record: Any) -> None:
        assert disk.wait(10)
        honest(record)

    monkeypatch.setattr(store, "remember", slow)

    async def write() -> None:
        books = StateWriter(store)
        for number in range(20):
            books.write({"number": number})  # would not come back if it waited for the disk
        disk.set()
        await books.close()
        assert books.fault is None

    asyncio.run(write())
    assert json.loads((tmp_path / "toy.json").read_text()) == {"number": 19}


def test_a_fault_is_told_until_it_is_over(tmp_path: Path) -> None:
    async def write() -> None:
        books = StateWriter(Store(tmp_path, "toy"))
        (tmp_path / "toy.json").mkdir()
        books.write({})
        await books.written()
        assert books.fault == "Is a directory"
        (tmp_path / "toy.json").rmdir()
        books.write({})
        await books.written()
        assert books.fault is None
        await books.close()

    asyncio.run(write())


def test_a_bundle_on_trial_is_not_discarded(tmp_path: Path) -> None:
    """Whoever tidies up meanwhile does not know yet that it will have a place."""
    bundle = toy.make_bundle(tmp_path / "bundle")
    refused = toy.make_bundle(tmp_path / "refused", does="raises")

    async def accept() -> None:
        books = StateWriter(Store(tmp_path / "kept", "toy"))

        async def tidy_up(version: Version) -> None:
            books.discard_all_but(set())
            await books.written()
            await approve(version)

        version = await books.accept(bundle, "now", tidy_up)
        assert Path(version.folder).is_dir()

        async def refuse(version: Version) -> None:
            raise InputError("no")

        with pytest.raises(InputError, match="no"):
            await books.accept(refused, "now", refuse)
        books.discard_all_but({version.version})
        await books.close()
        assert [kept.name for kept in (tmp_path / "kept/bundles/toy").iterdir()] == [
            version.version
        ]

    asyncio.run(accept())
