"""A sweep's folder.

SWEEP/sweep.yaml    a copy of the sweep file
    sweep.json      command, --set, versions, machine
    tune/           Tune's state, and the trials' checkpoints and curves
    trials.csv      a row a trial
    best.yaml       the best configuration; `loadmaster train SYSTEM --config` takes it
    report.html     charts and a table of the trials
    ray.log         what Ray printed
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import missing_folders, remove_empty_folders
from loadmaster.models.storage import Location, Place, StorageError
from loadmaster.platform.evaluation.files import output_folder
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.training.mirror import Mirror

FILE, MANIFEST, TUNE = "sweep.yaml", "sweep.json", "tune"


class SweepFolder:
    """A sweep's files. Of a sweep at a URL, those other than Tune's are a local copy."""

    def __init__(
        self,
        path: Path,
        manifest: Mapping[str, Any],
        made: Sequence[Path] = (),
        mirror: Mirror | None = None,
    ) -> None:
        self.path, self.manifest, self._mirror = path, manifest, mirror
        self._made = list(made)  # parent folders that were created for it, innermost first

    @classmethod
    def create(cls, place: Place, sweep: Sweep, provenance: Mapping[str, Any]) -> SweepFolder:
        check_is_new(place)
        manifest = {
            "name": sweep.name,
            "set": list(sweep.assignments),
            "trials": sweep.settings.trials,
            **provenance,
        }
        files = {FILE: sweep.text, MANIFEST: json.dumps(manifest, indent=2) + "\n"}
        if isinstance(place, Location):
            mirror = Mirror(place, MANIFEST)
            for name, text in files.items():
                (mirror.folder / name).write_text(text, encoding="utf-8")
            mirror.publish_first()
            return cls(mirror.folder, manifest, mirror=mirror)
        made = missing_folders(place.parent)
        with output_folder(place) as scratch:
            for name, text in files.items():
                (scratch / name).write_text(text, encoding="utf-8")
        return cls(place, manifest, made)

    @property
    def place(self) -> Place:
        """The path or URL that the user gave."""
        return self.path if self._mirror is None else self._mirror.location

    def publish(self) -> None:
        """Make the files that changed visible at the sweep's URL, if it has one."""
        if self._mirror is not None:
            self._mirror.publish()

    @contextmanager
    def storage_checked(self, save: Callable[[], None]) -> Iterator[None]:
        """Replace a fault of Tune by that of the storage, if there is one, after `save`."""
        try:
            yield
        except Exception:
            if self._mirror is not None:
                save()
                self._mirror.publish()
            raise

    def close(self) -> None:
        """Remove the local copy of a sweep at a URL that was only read."""
        if self._mirror is not None:
            self._mirror.remove_local()

    def released(self) -> AbstractContextManager[None]:
        """Publish at the end and remove the local copy of a sweep at a URL."""
        return nullcontext() if self._mirror is None else self._mirror.released()

    def discard(self) -> None:
        """Remove a sweep that failed or was stopped before its first trial."""
        if self.begun or self.trials_made:
            return
        if self._mirror is not None:
            with suppress(StorageError):
                (self._mirror.location / TUNE).remove()
            self._mirror.discard()
        else:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty_folders(self._made)

    @classmethod
    def open(cls, place: Place, option: str = "--resume") -> tuple[SweepFolder, Sweep]:
        """An existing sweep, given by `option`, and its settings."""
        if isinstance(place, Location):
            mirror = Mirror(place, MANIFEST)
            try:
                mirror.fetch_files()
                return cls._read(mirror.folder, place, option, mirror)
            except InputError:
                mirror.remove_local()
                raise
        return cls._read(place, place, option)

    @classmethod
    def _read(
        cls, path: Path, place: Place, option: str, mirror: Mirror | None = None
    ) -> tuple[SweepFolder, Sweep]:
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            name, assignments, trials = manifest["name"], manifest["set"], manifest["trials"]
        except OSError:
            raise InputError(
                f"{option} {str(place)!r} is not a sweep; expected a folder that "
                f"`loadmaster tune` made, with {MANIFEST}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{place / MANIFEST} is damaged; expected the file that `loadmaster tune` wrote"
            ) from None
        sweep = load_sweep(path / FILE, assignments, trials, name)
        return cls(path, manifest, mirror=mirror), sweep

    @property
    def command(self) -> str:
        return str(self.manifest.get("command", "loadmaster tune"))

    @property
    def tune(self) -> Path:
        return self.path / TUNE

    @property
    def tune_storage(self) -> dict[str, Any]:
        """Arguments of Tune for the folder that has `TUNE` in it."""
        if self._mirror is None:
            return {"storage_path": str(self.path.resolve())}
        location = self._mirror.location
        return {"storage_path": location.path, "storage_filesystem": location.filesystem}

    @property
    def begun(self) -> bool:
        """Whether Tune has saved a state to resume from."""
        return any(re.fullmatch(r"experiment_state-.*\.json", name) for name in self._tune_names())

    @property
    def trials_made(self) -> int:
        """The highest number of a trial so far."""
        found = (re.fullmatch(r"trial-(\d+)", name) for name in self._tune_names())
        return max((int(match[1]) for match in found if match), default=0)

    def _tune_names(self) -> set[str]:
        if self._mirror is not None:
            return (self._mirror.location / TUNE).entries()
        return {entry.name for entry in self.tune.glob("*")}


def check_is_new(place: Place) -> None:
    """Raise InputError if something is there; a killed start leaves FILE alone at a URL."""
    is_used = bool(place.entries() - {FILE}) if isinstance(place, Location) else place.exists()
    if is_used:
        raise InputError(
            f"--output {str(place)!r} exists already; expected a new folder, or --resume {place}"
        )
