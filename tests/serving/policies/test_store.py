"""Store and StateWriter: copies of bundles, the record, faults, writes beside the event loop."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.policies import store as module
from loadmaster.serving.policies.store import StateWriter, Store, Version
from tests.serving import toy


def disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kept", "toy")


def kept_by(tmp_path: Path) -> set[str]:
    return {folder.name for folder in (tmp_path / "kept" / "bundles" / "toy").iterdir()}


def test_bundle_is_copied(store: Store, tmp_path: Path) -> None:
    source = toy.make_bundle(tmp_path / "source", "mine")
    (source / "README.md").write_text("about it")
    (source / "notes.txt").write_text("not a part of it")
    version = store.accept(source, "now")
    assert (version.name, version.since) == ("mine", "now")
    folder = Path(version.folder)
    files = sorted(file.name for file in folder.iterdir())
    assert files == ["README.md", "manifest.json", "weights.safetensors"]
    assert toy.ENDPOINT.policy(folder).version == version.version == folder.name
    assert kept_by(tmp_path) == {version.version}
    # A complete copy is reused, a damaged one replaced.
    inode = folder.stat().st_ino
    assert store.accept(source, "later").folder == version.folder
    assert folder.stat().st_ino == inode
    (folder / "weights.safetensors").write_bytes(b"x")
    store.accept(source, "later")
    shutil.rmtree(source)
    assert toy.ENDPOINT.policy(folder).name == "mine"


def test_refused_bundle_leaves_no_copy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, short = (toy.make_bundle(tmp_path / name, name) for name in ("good", "short"))
    (short / "weights.safetensors").write_bytes(b"x")

    def refused(source: Path, store: Store = store) -> str:
        with pytest.raises(InputError) as fault:
            store.accept(source, "now")
        return str(fault.value)

    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "damaged" in refused(short)
    assert "another" in refused(good, Store(tmp_path / "kept", "another"))
    monkeypatch.setattr(module.shutil, "copyfileobj", disk_full)
    assert "No space left" in refused(good)
    monkeypatch.setattr(module, "MAX_BUNDLE_FILE", 5)
    assert "damaged" in refused(good)  # too large
    assert kept_by(tmp_path) == set()


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors", "README.md"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_bundle_of_other_than_plain_files_is_refused(
    store: Store, tmp_path: Path, name: str, kind: str
) -> None:
    """A link could refer to any file that the service may read."""
    source = toy.make_bundle(tmp_path / "source")
    (source / name).touch()
    moved = (source / name).rename(tmp_path / "moved")
    match kind:
        case "link":
            (source / name).symlink_to(moved)
        case "dangling link":
            (source / name).symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(source / name)
        case "folder":
            (source / name).mkdir()
    with pytest.raises(InputError) as fault:
        store.accept(source, "now")
    assert name in str(fault.value)
    assert "expected a plain file" in str(fault.value)
    assert kept_by(tmp_path) == set()


def test_link_to_a_folder_of_plain_files_is_accepted(store: Store, tmp_path: Path) -> None:
    source = toy.make_bundle(tmp_path / "source")
    (tmp_path / "latest").symlink_to(source)
    assert Path(store.accept(tmp_path / "latest", "now").folder).is_dir()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000, b'"x"'])
def test_damaged_record_is_renamed(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kept" / "toy.json").write_bytes(content)
    assert store.load() == {}
    assert (tmp_path / "kept" / "toy.damaged").read_bytes() == content
    store.save({"a": 1})
    assert store.load() == {"a": 1}


def test_record_is_saved_and_stays_if_the_disk_is_full(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.load() == {}
    store.save({"a": [1, None, "é"]})
    store.save({"a": 1})
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        store.save({"a": 2})
    assert store.load() == {"a": 1}
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["bundles", "toy.json"]


def test_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="writable"):
        Store(tmp_path / "file", "toy")


@pytest.mark.anyio
async def test_writes_do_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, disk = Store(tmp_path, "toy"), threading.Event()
    save = store.save

    def slow(record: Any) -> None:
        assert disk.wait(10)
        save(record)

    monkeypatch.setattr(store, "save", slow)
    writer = StateWriter(store)
    for number in range(20):
        writer.write({"number": number})  # does not wait for the disk
    disk.set()
    await writer.close()
    assert writer.fault is None
    assert store.load() == {"number": 19}


@pytest.mark.anyio
async def test_bundle_under_check_is_not_discarded(tmp_path: Path) -> None:
    good, bad = (toy.make_bundle(tmp_path / name, name) for name in ("good", "bad"))
    writer = StateWriter(Store(tmp_path / "kept", "toy"))

    async def discard_meanwhile(version: Version) -> None:
        writer.discard_all_but(set())
        await writer.flush()

    async def refuse(version: Version) -> None:
        raise InputError("no")

    version = await writer.accept(good, "now", discard_meanwhile)
    assert Path(version.folder).is_dir()
    with pytest.raises(InputError, match="no"):
        await writer.accept(bad, "now", refuse)
    writer.discard_all_but({version.version})
    await writer.close()
    assert kept_by(tmp_path) == {version.version}
