"""A sweep's folder.

SWEEP/sweep.yaml    the file it was started from
    sweep.json      the command, what it set on top, versions, machine
    tune/           Tune's state, and the trials' checkpoints and curves
    trials.csv      a row a trial
    best.yaml       the best configuration; `loadmaster train SYSTEM --config` takes it
    ray.log         what Ray printed meanwhile
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
from loadmaster.platform.evaluation.files import written_at_once
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep

FILE, MANIFEST = "sweep.yaml", "sweep.json"


class SweepFolder:
    """Where a sweep keeps everything."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], made: Sequence[Path] = ()) -> None:
        self.path, self.manifest = path, manifest
        self._made = made  # folders above it that were not there before, innermost first

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
        with written_at_once(path) as scratch:
            (scratch / FILE).write_text(sweep.text, encoding="utf-8")
            (scratch / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        return cls(path, manifest, made)

    def discard(self) -> None:
        """Of a sweep that was refused, or stopped, before it began: as if it had not been asked."""
        if self.begun or self.trials_made:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        remove_empty_folders(list(self._made))

    @classmethod
    def open(cls, path: Path) -> tuple[SweepFolder, Sweep]:
        """An interrupted sweep, as it was started."""
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            name, assignments, trials = manifest["name"], manifest["set"], manifest["trials"]
        except OSError:
            raise InputError(
                f"--resume {str(path)!r} is not a sweep; expected a folder that "
                f"`loadmaster tune` made, with {MANIFEST}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path / MANIFEST} is damaged; expected it as it was made") from None
        return cls(path, manifest), load_sweep(path / FILE, assignments, trials, name)

    @property
    def command(self) -> str:
        return str(self.manifest.get("command", "loadmaster tune"))

    @property
    def tune(self) -> Path:
        return self.path / "tune"

    @property
    def begun(self) -> bool:
        """Whether Tune has left a state to go on from."""
        return any(self.tune.glob("experiment_state-*.json"))

    @property
    def trials_made(self) -> int:
        """The highest number that a trial has had."""
        found = (re.fullmatch(r"trial-(\d+)", folder.name) for folder in self.tune.glob("trial-*"))
        return max((int(match[1]) for match in found if match), default=0)


def check_is_new(path: Path) -> None:
    if path.exists():
        raise InputError(
            f"--output {str(path)!r} exists already; expected a new folder, or --resume {path}"
        )
