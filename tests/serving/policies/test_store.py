"""Copies of bundles and the record of a system: atomic, bounded, robust to damage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.policies import store as module
from loadmaster.serving.policies.store import (
    Store,
    Version,
    restore_version,
    version_record,
)
from tests.serving import toy


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
    shutil.rmtree(source)
    folder = Path(version.folder)
    assert {file.name for file in folder.iterdir()} == {
        "manifest.json", "weights.safetensors", "README.md",
    }  # fmt: skip
    assert toy.ENDPOINT.policy(folder).version == version.version == folder.name
    assert kept_by(tmp_path) == {version.version}


def test_complete_copy_is_reused(store: Store, tmp_path: Path) -> None:
    source = toy.make_bundle(tmp_path / "source")
    first = Path(store.accept(source, "now").folder)
    inode = first.stat().st_ino
    assert Path(store.accept(source, "later").folder).stat().st_ino == inode
    (first / "weights.safetensors").write_bytes(b"x")
    again = Path(store.accept(source, "later").folder)
    assert toy.ENDPOINT.policy(again).name == "toy"


def test_refused_bundle_leaves_no_copy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = toy.make_bundle(tmp_path / "other", "other")
    short = toy.make_bundle(tmp_path / "short", "short")
    (short / "weights.safetensors").write_bytes(b"x")
    for folder, part in [(tmp_path / "nowhere", "does not exist"), (short, "damaged")]:
        with pytest.raises(InputError, match=part):
            store.accept(folder, "now")
    with pytest.raises(InputError, match="another"):
        Store(tmp_path / "kept", "another").accept(other, "now")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.shutil, "copyfile", full)
    with pytest.raises(InputError, match="No space left"):
        store.accept(other, "now")
    assert kept_by(tmp_path) == set()


def test_large_bundle_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = toy.make_bundle(tmp_path / "source")
    monkeypatch.setattr(module, "MAX_BUNDLE_FILE", 5)
    with pytest.raises(InputError, match="damaged"):
        store.accept(source, "now")


def test_other_versions_are_discarded(store: Store, tmp_path: Path) -> None:
    versions = [
        store.accept(toy.make_bundle(tmp_path / name, name), "now").version for name in "abc"
    ]
    store.discard_all_but(set(versions[:1]))
    assert kept_by(tmp_path) == set(versions[:1])


def test_record_is_saved_and_loaded(store: Store, tmp_path: Path) -> None:
    assert store.remembered() == {}
    store.save({"a": [1, None, "é"]})
    store.save({"a": 2})
    assert Store(tmp_path / "kept", "toy").remembered() == {"a": 2}
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["bundles", "toy.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000, b'"x"'])
def test_damaged_record_is_renamed(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kept" / "toy.json").write_bytes(content)
    assert store.remembered() == {}
    assert (tmp_path / "kept" / "toy.damaged").read_bytes() == content
    store.save({"a": 1})
    assert store.remembered() == {"a": 1}


def test_full_disk_leaves_the_old_record(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save({"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.save({"a": 2})
    assert store.remembered() == {"a": 1}
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["bundles", "toy.json"]


def test_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="writable"):
        Store(tmp_path / "file", "toy")


def test_version_is_restored_while_its_folder_exists(tmp_path: Path) -> None:
    version = Version("a", "1", str(tmp_path), "now")
    assert restore_version(json.loads(json.dumps(version_record(version)))) == version
    assert version_record(None) is None
    assert restore_version(None) is None
    tmp_path.rmdir()
    assert restore_version(version_record(version)) is None
