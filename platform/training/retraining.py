"""A policy trained further on a workload that has changed: its settings, and its folder.

FOLDER/request.json    what was asked for; the same request goes on where it was stopped
       run/            a training run like any other
       bundle/         the policy that validated best
       verdict.json    it beside the one that serves; written last
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file
from loadmaster.models.manifest import Manifest
from loadmaster.platform.training.run_folder import MANIFEST, RunFolder, merged
from loadmaster.serving.policies.comparison import BUNDLE, FILE, ComparisonResult, read_comparison

REQUEST = "request.json"
ITERATIONS, MINUTES = 200, 20.0  # at most, unless told
SURROUNDINGS = ("checkpoints", "resources")  # of the run that made it, on another machine


def finetune_config(manifest: Manifest, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The policy's own way of training, from where it stands; `given` goes over it."""
    trained = manifest.trained.get("config")
    if isinstance(trained, Mapping):
        own = dict(trained)
    else:  # a bundle that somebody else made
        own = {"environment": manifest.trained.get("environment") or {}}
    for name in SURROUNDINGS:
        own.pop(name, None)
    own["network"] = manifest.network
    changed = {
        "rollouts": {"workers": 0},  # asks for no CPU that the service may hold
        "training": {
            "start": str(folder.absolute()),
            "take": [],
            "iterations": ITERATIONS,
            "minutes": MINUTES,
            # It has learnt already: rates and entropy begin where they ended.
            "learning_rate": {"iterations": 0},
            "entropy": {"iterations": 0},
        },
    }
    return merged(merged(own, changed), given)


class RetrainingFolder:
    """Of one retraining, begun or to begin."""

    def __init__(self, path: Path) -> None:
        self.path, self.run, self.bundle = path, path / "run", path / BUNDLE

    def open(self, request: Mapping[str, Any]) -> None:
        """Make it, or find that this very request was made before."""
        known = self._read(REQUEST)
        if known is None:
            if self.path.exists() and any(self.path.iterdir()):
                raise InputError(
                    f"--output {str(self.path)!r} holds something else; expected a new folder, or "
                    "that of the same retraining"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._write(REQUEST, request)
        elif known != (asked := json.loads(json.dumps(request))):
            both = known.keys() | asked.keys()
            changed = sorted(key for key in both if known.get(key) != asked.get(key))
            raise InputError(
                f"--output {str(self.path)!r} is another retraining, with other "
                f"{', '.join(changed)}; expected the same request, or a new folder"
            )

    @property
    def is_trained(self) -> bool:
        known = (self.run / MANIFEST).is_file()
        return known and RunFolder(self.run).manifest.get("status") == "finished"

    @property
    def can_resume(self) -> bool:
        """A run that was killed before its first checkpoint cannot."""
        return self.run.exists() and bool(RunFolder(self.run).checkpoints())

    @property
    def verdict(self) -> ComparisonResult | None:
        return read_comparison(self.path) if (self.path / FILE).exists() else None

    def close(self, verdict: ComparisonResult) -> None:
        """Nobody resumes it any more: its checkpoints, most of its size, can go."""
        self._write(FILE, verdict.model_dump(mode="json"))
        shutil.rmtree(self.run / "checkpoints", ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{file} is damaged; expected JSON that `loadmaster retrain` wrote")
        return found

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        with atomic_text_file(self.path / name) as file:
            file.write(json.dumps(record, indent=2) + "\n")
