"""Persistent state of a system: copies of accepted bundles, and a JSON record.

Bundles are copied into folders named after their version, so that a serving version does not depend
on the folder it was exported to.
"""

import asyncio
import json
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.models.files import (
    atomic_folder,
    atomic_write,
    private_folder,
    private_opener,
)
from loadmaster.models.manifest import (
    DIGEST,
    MANIFEST_FILE,
    Manifest,
    pretrained_folder,
    pretrained_policies,
    read_bounded,
    read_manifest,
)
from loadmaster.models.remote_bundle import fetch_bundle
from loadmaster.models.storage import Location, parse_place
from loadmaster.serving.decisions.request import to_json

log = logging.getLogger(__name__)

MAX_RECORD = 64 << 20  # bytes
WEIGHTS_FILE = "weights.safetensors"
BUNDLE_FILES = (MANIFEST_FILE, WEIGHTS_FILE, "README.md")
MAX_BUNDLE_FILE = 256 << 20  # bytes
COPY_BYTES = 1 << 20
STATE_FOLDERS = ("bundles", "log", "retraining")  # in the folder of the service
STATE_SUFFIXES = (
    *(".json", ".damaged", ".partial", ".key", ".lock"),
    *(".sqlite", ".sqlite-wal", ".sqlite-shm"),
)


def resolve_bundle(spec: str) -> Path:
    """Return the folder of a bundle, given as a pretrained bundle's name, a path or a URL."""
    known = pretrained_policies()
    if spec in known:
        return pretrained_folder() / spec
    folder = parse_place(spec)
    if isinstance(folder, Location):
        return fetch_bundle(folder)
    try:
        if os.sep not in spec and not folder.exists():
            raise unknown_name("bundle", spec[:200], known)
        if (folder / MANIFEST_FILE).is_file():
            return folder
    except OSError as fault:  # name too long, or no permission
        raise InputError(f"cannot read {spec[:200]!r}: {fault.strerror}") from None
    raise InputError(f"{spec[:200]!r} is no policy bundle; expected a folder with {MANIFEST_FILE}")


def check_bundle_files(folder: Path) -> None:
    """Raise InputError if a file of the bundle is a link, a device or anything but a plain file.

    A copy of what a link refers to would let a bundle's author read files of the service's user.
    """
    for name in BUNDLE_FILES:
        file = folder / name
        try:
            mode = file.lstat().st_mode
        except OSError:  # missing ones are found when the bundle is read
            continue
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
            raise InputError(f"{file} is {kind}; expected a plain file, as `cp -rL` makes")


def open_state_folder(folder: Path) -> None:
    """Create the folder of the service, closed to other users.

    An existing one is closed too, unless it also holds what the service did not write there: then
    only the folders and files of the service are. Raises OSError if it cannot be created.
    """
    if folder.is_dir() and not all(
        entry.name in STATE_FOLDERS or entry.suffix in STATE_SUFFIXES for entry in folder.iterdir()
    ):
        return
    private_folder(folder)


@dataclass(frozen=True)
class Version:
    """An accepted bundle."""

    name: str
    version: str
    folder: str
    since: str  # start of its time in its slot: ISO, UTC

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "since": self.since}


class Store:
    """Bundles and record of one system in a folder. Calls block."""

    def __init__(self, folder: Path, system: str) -> None:
        self.system = system
        self._bundles = folder / "bundles" / system
        self._file = folder / f"{system}.json"
        try:
            open_state_folder(folder)
            private_folder(self._bundles)
        except OSError as fault:
            line = f"folder {folder}: {fault.strerror}; expected a writable one"
            raise InputError(line) from None

    def accept(self, source: Path, now: str) -> Version:
        """Copy a bundle atomically. The weights themselves are checked when they are loaded."""
        check_bundle_files(source)
        manifest = read_manifest(source)
        if manifest.system != self.system:
            expected = f"a bundle of {manifest.system}; expected one of {self.system}"
            raise InputError(f"{source} is {expected}")
        assert DIGEST.fullmatch(manifest.sha256)  # it is used as a folder's name
        kept = self._bundles / manifest.version
        if not self._is_whole(kept, manifest):
            if not self._is_whole(source, manifest):
                raise InputError(
                    f"{source} is damaged; expected {WEIGHTS_FILE} with {manifest.size:,} bytes"
                )
            self._copy(source, kept)
        return Version(manifest.name, manifest.version, str(kept), now)

    def load(self) -> dict[str, Any]:
        """Load the record; an empty one if there is none or it is damaged.

        A damaged file is renamed, so that the service can start.
        """
        if not self._file.exists():
            return {}
        try:
            record = json.loads(read_bounded(self._file, MAX_RECORD))
            if isinstance(record, dict):
                return record
            fault: Exception | str = "not a JSON object"
        except (InputError, ValueError, RecursionError) as found:
            fault = found
        aside = self._file.with_suffix(".damaged")
        log.warning("%s cannot be read (%s); renamed to %s", self._file, fault, aside)
        self._file.replace(aside)
        return {}

    def save(self, record: Mapping[str, Any]) -> None:
        """Write the record atomically and durably; raise OSError if that fails."""
        with atomic_write(self._file, sync=True, private=True) as file:
            file.write(to_json(record))

    def discard_all_but(self, kept: set[str]) -> None:
        """Delete the copies of all other versions."""
        for folder in self._bundles.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, kept: Path, manifest: Manifest) -> bool:
        try:
            if read_manifest(kept).sha256 != manifest.sha256:
                return False
            weights = (kept / WEIGHTS_FILE).stat()
            return stat.S_ISREG(weights.st_mode) and (
                weights.st_size == manifest.size <= MAX_BUNDLE_FILE
            )
        except (InputError, OSError):
            return False

    def _copy(self, source: Path, kept: Path) -> None:
        try:
            with atomic_folder(kept, replace=True, private=True) as scratch:
                for name in BUNDLE_FILES:
                    file = source / name
                    if file.is_file() and file.stat().st_size <= MAX_BUNDLE_FILE:
                        _copy_plain(file, scratch / name)
        except OSError as fault:
            raise InputError(f"cannot copy the bundle {source}: {fault.strerror}") from None


def _copy_plain(source: Path, target: Path) -> None:
    """Copy a file that was a plain one before; if it is a link by now, opening it fails."""
    with (
        open(source, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as old,
        open(target, "wb", opener=private_opener) as new,
    ):
        shutil.copyfileobj(old, new, COPY_BYTES)


class StateWriter:
    """Runs the calls of a Store in a thread, in order. Only the event loop calls it.

    Syncing a record to a busy disk takes tens of milliseconds and copying a bundle takes longer:
    the event loop must not wait for either.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state-writer")
        self._trials = 0  # bundles being accepted
        self.fault: str | None = None  # why the latest record could not be written

    def load(self) -> dict[str, Any]:
        return self._store.load()

    def write(self, record: Mapping[str, Any]) -> None:
        """Start writing a record, which must not be changed afterwards."""
        self._thread.submit(self._write, record)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._store.save(record)
        except OSError as fault:
            self.fault = fault.strerror or str(fault)
        else:
            self.fault = None

    async def flush(self) -> None:
        """Wait until all calls so far are done."""
        await asyncio.wrap_future(self._thread.submit(lambda: None))

    async def accept(
        self, folder: Path, now: str, check: Callable[[Version], Awaitable[None]]
    ) -> Version:
        """Copy a bundle and run `check` on the copy; raise InputError for a bad bundle."""
        self._trials += 1
        try:
            copying = self._thread.submit(self._store.accept, folder, now)
            version = await asyncio.wrap_future(copying)
            await check(version)
        finally:
            self._trials -= 1
        return version

    def discard_all_but(self, kept: set[str]) -> None:
        """Delete other versions; not while a bundle is being accepted, as it has no slot yet."""
        if not self._trials:
            self._thread.submit(self._store.discard_all_but, kept)

    async def close(self) -> None:
        await self.flush()
        self._thread.shutdown()
