"""Folders of runs and sweeps at a URL: a local copy, published at fixed points.

A folder that is replaced gets a new name at the URL: RUN/best is best/iteration-000120-0123456789ab
there. `manifest.json` is written last and lists these names under `published`: what it lists is
complete. What a killed writer left is not listed, and is removed when the run is resumed.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_manifest
from loadmaster.models.storage import Location, StorageError

PUBLISHED = "published"  # in manifest.json: local folder -> its name at the URL
BUNDLES, CHECKPOINTS = ("best", "last"), "checkpoints"
VERSIONED = (*BUNDLES, CHECKPOINTS)  # folders at the URL whose subfolders never change
VERSION = re.compile(r"(best|last|checkpoints)/iteration-\d+(-[0-9a-f]+)?")
LARGEST_MANIFEST = 16 << 20  # bytes


class Mirror:
    """A local folder whose files are published at a location, `index` last."""

    def __init__(self, location: Location, index: str) -> None:
        self.location, self.index = location, index
        try:
            scratch = Path(tempfile.mkdtemp(prefix="loadmaster-"))
        except OSError as fault:
            raise InputError(f"cannot make a folder for {location}: {fault.strerror}") from None
        # Its own name is that of the URL: bundles are named after it.
        self.folder = scratch / location.name
        self.folder.mkdir()
        self._sent: dict[str, tuple[int, int]] = {}  # file -> size and time of change
        self._failed = False  # whether something could not be published

    @contextmanager
    def released(self) -> Iterator[None]:
        """Publish at the end and remove the local folder; it stays if it may hold more."""
        try:
            yield
            self.publish()
        except StorageError:
            raise
        except (InputError, KeyboardInterrupt):
            self.remove_local()
            raise
        self.remove_local()

    def publish(self) -> None:
        """Write what changed since the last call; a fault leaves the local folder and names it."""
        try:
            self._publish()
        except StorageError as fault:
            self._failed = True
            raise StorageError(f"{fault}; everything is kept in {self.folder}") from fault

    def publish_first(self) -> None:
        """Publish something new; if that fails, nothing is left here or there."""
        try:
            self._publish()
        except StorageError:
            self.discard()
            raise

    def fetch_files(self) -> None:
        """Copy the files directly at the location to the local folder."""
        names = [name for name in self.location.files() if "/" not in name]
        self.location.download(self.folder, names)

    def remove_local(self) -> None:
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was published and the local folder, unless it is the only copy."""
        if self._failed:
            return
        with suppress(StorageError):
            for name in (self.index, *self._sent):  # without its index it is no run
                (self.location / name).remove()
        self.remove_local()

    def _publish(self) -> None:
        self._send_changed()
        (self.location / self.index).write((self.folder / self.index).read_bytes())

    def _send_changed(self) -> None:
        """Upload changed files other than the index and those in versioned folders."""
        states = {}
        for file in self.folder.rglob("*"):
            name = file.relative_to(self.folder).as_posix()
            is_content = name != self.index and name.partition("/")[0] not in VERSIONED
            if is_content and file.is_file() and not file.name.startswith("."):
                state = file.stat()
                states[name] = (state.st_size, state.st_mtime_ns)
        changed = [name for name, state in states.items() if self._sent.get(name) != state]
        self.location.upload(self.folder, changed)
        self._sent |= states


class RunMirror(Mirror):
    """The mirror of a run: its bundles and checkpoints are versioned."""

    def __init__(self, location: Location, index: str) -> None:
        super().__init__(location, index)
        self._published: set[str] = set()  # versioned folders at the URL
        self._left: set[str] = set()  # by a killed writer

    def fetch(self) -> None:
        """Copy the published run to the local folder."""
        record = read_run_manifest(self.location)
        if record is None or PUBLISHED not in record:
            raise InputError(
                f"{str(self.location)!r} is not a run; expected one that `loadmaster train "
                f"--output {self.location}` made, with {self.index}"
            )
        published = record.pop(PUBLISHED)
        files = self.location.files()
        self._published = set(published.values())
        versions = (name.split("/") for name in files if name.startswith(VERSIONED))
        self._left = {"/".join(parts[:2]) for parts in versions if len(parts) > 2} - self._published
        content = [name for name in files if name.partition("/")[0] not in VERSIONED]
        self.location.download(self.folder, content)
        for name, version in published.items():
            inside = [file[len(version) + 1 :] for file in files if file.startswith(f"{version}/")]
            (self.location / version).download(self.folder / name, inside)
        (self.folder / self.index).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def _publish(self) -> None:
        for left in self._left:
            (self.location / left).remove()
        self._left = set()
        published = self._versions()
        for name, version in published.items():
            if version not in self._published:
                local = self.folder / name
                inside = [f.relative_to(local).as_posix() for f in local.rglob("*") if f.is_file()]
                (self.location / version).upload(local, inside)
        self._send_changed()
        record = json.loads((self.folder / self.index).read_text(encoding="utf-8"))
        record[PUBLISHED] = published
        (self.location / self.index).write((json.dumps(record, indent=2) + "\n").encode())
        old, self._published = self._published, set(published.values())
        for version in old - self._published:
            (self.location / version).remove()

    def _versions(self) -> dict[str, str]:
        """Names at the URL of the complete bundles and checkpoints."""
        found = {}
        for name in BUNDLES:
            if (self.folder / name).is_dir():
                bundle = read_manifest(self.folder / name)
                iteration = int(bundle.trained.get("iterations") or 0)
                found[name] = f"{name}/iteration-{iteration:06d}-{bundle.version}"
        for folder in sorted((self.folder / CHECKPOINTS).glob("iteration-*")):
            found[f"{CHECKPOINTS}/{folder.name}"] = f"{CHECKPOINTS}/{folder.name}"
        return found


def read_run_manifest(location: Location) -> dict[str, Any] | None:
    """The manifest of a run at a URL; None if there is none."""
    content = (location / "manifest.json").read(LARGEST_MANIFEST)
    if content is None:
        return None
    try:
        record = json.loads(content)
    except ValueError:
        record = None
    published = record.get(PUBLISHED, {}) if isinstance(record, dict) else None
    if not isinstance(published, dict) or not all(
        VERSION.fullmatch(str(version)) and (name in BUNDLES or name == version)
        for name, version in published.items()
    ):
        raise InputError(f"{location / 'manifest.json'} is not that of a run; the run is damaged")
    found: dict[str, Any] = record
    return found
