"""What must survive a restart: the bundles that were accepted, and what is known of a system.

Bundles are copied, each into a folder named after its version: whatever becomes of the folder that
somebody exported to, a version that serves stays what it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import DIGEST, Manifest, read_bounded, read_manifest
from loadmaster.serving.decisions.request import to_json

log = logging.getLogger(__name__)

LARGEST = 64 << 20  # bytes that are read of what was written down
FILES = ("manifest.json", "weights.safetensors", "README.md")
LARGEST_FILE = 256 << 20  # bytes that are copied of any of them


@dataclass(frozen=True)
class Version:
    """A bundle that was accepted."""

    name: str
    version: str
    folder: str
    since: str  # when it took its present place: ISO, UTC

    def told(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "since": self.since}


class Store:
    """A folder for one system."""

    def __init__(self, folder: Path, system: str) -> None:
        self.system = system
        self._bundles = folder / "bundles" / system
        self._file = folder / f"{system}.json"
        try:
            self._bundles.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise InputError(
                f"folder {folder}: {fault.strerror}; expected one to write to"
            ) from None

    def accept(self, source: Path, now: str) -> Version:
        """Copy a bundle, whole or not at all; what the weights are, who loads them will check."""
        manifest = read_manifest(source)
        if manifest.system != self.system:
            raise InputError(
                f"{source} holds a policy of {manifest.system}; expected one of {self.system}"
            )
        version = manifest.version
        assert DIGEST.fullmatch(manifest.sha256)  # it becomes a folder's name
        kept = self._bundles / version
        if not self._is_whole(kept, manifest):
            if not self._is_whole(source, manifest):
                raise InputError(
                    f"{source} is damaged; expected {FILES[1]} with {manifest.size:,} bytes"
                )
            self._copy(source, kept)
        return Version(manifest.name, version, str(kept), now)

    def remembered(self) -> dict[str, Any]:
        """What was written down last; nothing where there is nothing, or nothing that can be read.

        A file that is damaged is put aside, not deleted: the service must start.
        """
        if not self._file.exists():
            return {}
        try:
            record = json.loads(read_bounded(self._file, LARGEST))
            if isinstance(record, dict):
                return record
            fault: Exception | str = "no record"
        except (InputError, ValueError, RecursionError) as found:
            fault = found
        aside = self._file.with_suffix(".damaged")
        log.warning("%s cannot be read (%s); it is kept as %s", self._file, fault, aside)
        self._file.replace(aside)
        return {}

    def remember(self, record: Mapping[str, Any]) -> None:
        """Whole or not at all; an OSError is the caller's to count."""
        scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            with scratch.open("wb") as file:
                file.write(to_json(record))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._file)
        finally:
            scratch.unlink(missing_ok=True)

    def discard_all_but(self, kept: set[str]) -> None:
        """Bundles of versions that have no place any more."""
        for folder in self._bundles.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, kept: Path, manifest: Manifest) -> bool:
        try:
            if read_manifest(kept).sha256 != manifest.sha256:
                return False
            weights = (kept / FILES[1]).stat()
            return stat.S_ISREG(weights.st_mode) and (
                weights.st_size == manifest.size <= LARGEST_FILE
            )
        except (InputError, OSError):
            return False

    def _copy(self, source: Path, kept: Path) -> None:
        scratch = kept.with_name(f".{kept.name}.{os.getpid()}")
        try:
            scratch.mkdir()
            for name in FILES:
                file = source / name
                if file.is_file() and file.stat().st_size <= LARGEST_FILE:
                    shutil.copyfile(file, scratch / name)
            shutil.rmtree(kept, ignore_errors=True)
            scratch.rename(kept)
        except OSError as fault:
            raise InputError(f"cannot keep the bundle {source}: {fault.strerror}") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def as_record(version: Version | None) -> dict[str, str] | None:
    return None if version is None else asdict(version)


def from_record(record: Any) -> Version | None:
    """None where it is none, or not one that can be used any more."""
    try:
        version = Version(**record)
        there = Path(version.folder).is_dir()
    except (TypeError, OSError):
        return None
    return version if there else None


# A system's store behind a thread of its own: requests never wait for the disk.
#
# A hundred kilobytes that are made durable take tens of milliseconds where the disk is busy, a
# bundle that is copied takes longer, and meanwhile the event loop would answer nobody.


class StateWriter:
    """Everything is done in the order it was asked for. Only the event loop calls it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="books")
        self._under_trial = 0
        self.fault: str | None = None  # why the last record could not be written

    def remembered(self) -> dict[str, Any]:
        return self._store.remembered()

    def write(self, record: Mapping[str, Any]) -> None:
        """Begin to write it down; nobody may change it any more."""
        self._thread.submit(self._write, record)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._store.remember(record)
        except OSError as fault:
            self.fault = fault.strerror or str(fault)
        else:
            self.fault = None

    async def written(self) -> None:
        """When all that was asked for is done."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    async def accept(
        self, folder: Path, now: str, try_out: Callable[[Version], Awaitable[None]]
    ) -> Version:
        """A copy of a bundle that passed `try_out`; an InputError says what is wrong with it."""
        loop = asyncio.get_running_loop()
        self._under_trial += 1
        try:
            version = await loop.run_in_executor(self._thread, self._store.accept, folder, now)
            await try_out(version)
        finally:
            self._under_trial -= 1
        return version

    def discard_all_but(self, kept: set[str]) -> None:
        """Later, where a bundle is on trial: it has no place among those kept yet."""
        if not self._under_trial:
            self._thread.submit(self._store.discard_all_but, kept)

    async def close(self) -> None:
        await self.written()
        self._thread.shutdown()
