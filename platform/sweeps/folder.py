"""A sweep's folder.

SWEEP/sweep.yaml    a copy of the sweep file
    sweep.json      command, --set, versions, machine
    tune/           Tune's state, and the trials' checkpoints and curves
    trials.csv      a row a trial
    best.yaml       the best configuration; `loadmaster train SYSTEM --config` takes it
    ray.log         what Ray printed
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import missing_folders, remove_empty_folders
from loadmaster.platform.evaluation.files import output_folder
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep

FILE, MANIFEST = "sweep.yaml", "sweep.json"


class SweepFolder:
    """A sweep's files."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], made: Sequence[Path] = ()) -> None:
        self.path, self.manifest = path, manifest
        self._made = list(made)  # parent folders that were created for it, innermost first

    @classmethod
    def create(cls, path: Path, sweep: Sweep, provenance: Mapping[str, Any]) -> SweepFolder:
        check_is_new(path)
        made = missing_folders(path.parent)
        manifest = {
            "name": sweep.name,
            "set": list(sweep.assignments),
            "trials": sweep.settings.trials,
            **provenance,
        }
        with output_folder(path) as scratch:
            (scratch / FILE).write_text(sweep.text, encoding="utf-8")
            (scratch / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        return cls(path, manifest, made)

    def discard(self) -> None:
        """Remove a sweep that failed or was stopped before its first trial."""
        if not self.begun and not self.trials_made:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty_folders(self._made)

    @classmethod
    def open(cls, path: Path) -> tuple[SweepFolder, Sweep]:
        """An interrupted sweep and its settings."""
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            name, assignments, trials = manifest["name"], manifest["set"], manifest["trials"]
        except OSError:
            raise InputError(
                f"--resume {str(path)!r} is not a sweep; expected a folder that "
                f"`loadmaster tune` made, with {MANIFEST}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path / MANIFEST} is damaged; expected the file that `loadmaster tune` wrote"
            ) from None
        return cls(path, manifest), load_sweep(path / FILE, assignments, trials, name)

    @property
    def command(self) -> str:
        return str(self.manifest.get("command", "loadmaster tune"))

    @property
    def tune(self) -> Path:
        return self.path / "tune"

    @property
    def begun(self) -> bool:
        """Whether Tune has saved a state to resume from."""
        return any(self.tune.glob("experiment_state-*.json"))

    @property
    def trials_made(self) -> int:
        """The highest number of a trial so far."""
        found = (re.fullmatch(r"trial-(\d+)", folder.name) for folder in self.tune.glob("trial-*"))
        return max((int(match[1]) for match in found if match), default=0)


def check_is_new(path: Path) -> None:
    if path.exists():
        raise InputError(
            f"--output {str(path)!r} exists already; expected a new folder, or --resume {path}"
        )
