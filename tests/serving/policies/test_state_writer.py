"""StateWriter: ordered writes beside the event loop, faults, trials of bundles."""

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


async def check_copied(version: Version) -> None:
    assert Path(version.folder).is_dir()


def test_writes_are_ordered_and_do_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = Store(tmp_path, "toy"), threading.Event()
    save = store.save

    def slow(record: Any) -> None:
        assert disk.wait(10)
        save(record)

    monkeypatch.setattr(store, "save", slow)

    async def write() -> None:
        writer = StateWriter(store)
        for number in range(20):
            writer.write({"number": number})  # does not wait for the disk
        disk.set()
        await writer.close()
        assert writer.fault is None

    asyncio.run(write())
    assert json.loads((tmp_path / "toy.json").read_text()) == {"number": 19}


def test_fault_is_shown_until_a_write_succeeds(tmp_path: Path) -> None:
    async def write() -> None:
        writer = StateWriter(Store(tmp_path, "toy"))
        (tmp_path / "toy.json").mkdir()
        writer.write({})
        await writer.flush()
        assert "folder" in (writer.fault or "")
        (tmp_path / "toy.json").rmdir()
        writer.write({})
        await writer.flush()
        assert writer.fault is None
        await writer.close()

    asyncio.run(write())


def test_bundle_under_check_is_not_discarded(tmp_path: Path) -> None:
    bundle = toy.make_bundle(tmp_path / "bundle")
    refused = toy.make_bundle(tmp_path / "refused", does="raises")

    async def accept() -> None:
        writer = StateWriter(Store(tmp_path / "kept", "toy"))

        async def discard_meanwhile(version: Version) -> None:
            writer.discard_all_but(set())
            await writer.flush()
            await check_copied(version)

        version = await writer.accept(bundle, "now", discard_meanwhile)
        assert Path(version.folder).is_dir()

        async def refuse(version: Version) -> None:
            raise InputError("no")

        with pytest.raises(InputError, match="no"):
            await writer.accept(refused, "now", refuse)
        writer.discard_all_but({version.version})
        await writer.close()
        assert [kept.name for kept in (tmp_path / "kept/bundles/toy").iterdir()] == [
            version.version
        ]

    asyncio.run(accept())
