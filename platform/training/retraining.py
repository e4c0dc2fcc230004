"""Retraining of a policy on a changed workload: its configuration and its folder.

FOLDER/request.json    the request; the same request continues where it was stopped
       run/            a training run
       bundle/         the policy that validated best
       verdict.json    its comparison with the serving policy; written last
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file
from loadmaster.models.manifest import Manifest
from loadmaster.platform.training.config import Recipe, merged
from loadmaster.platform.training.run_folder import MANIFEST, RunFolder
from loadmaster.serving.policies.comparison import (
    BUNDLE_FOLDER,
    COMPARISON_FILE,
    ComparisonResult,
    read_comparison,
)

REQUEST = "request.json"
ITERATIONS, MINUTES = 200, 20.0  # limits unless given
SURROUNDINGS = ("checkpoints", "resources")  # settings of the machine it was trained on


def finetune_config(
    recipe: Recipe, manifest: Manifest, folder: Path, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration the policy was trained with, starting from it; `given` overrides."""
    trained = manifest.trained.get("config")
    if isinstance(trained, Mapping):
        own = dict(trained)
        learning = own.get("training")
        if isinstance(learning, Mapping):  # bundles of earlier versions have the former names
            own["training"] = {recipe.learning.renamed.get(k, k): v for k, v in learning.items()}
    else:  # a bundle made by other software
        own = {"environment": manifest.trained.get("environment") or {}}
    for name in SURROUNDINGS:
        own.pop(name, None)
    own["network"] = manifest.network
    changed = {
        "rollouts": {"workers": 0},  # the service may hold all CPUs
        "training": {
            "warm_start": str(folder.absolute()),
            "weight_filter": [],
            "iterations": ITERATIONS,
            "minutes": MINUTES,
            **recipe.learning.finetuning,
        },
    }
    return merged(merged(own, changed), given)


class RetrainingFolder:
    """The folder of one retraining."""

    def __init__(self, path: Path) -> None:
        self.path, self.run, self.bundle = path, path / "run", path / BUNDLE_FOLDER

    def open(self, request: Mapping[str, Any]) -> None:
        """Create it, or check that it is of the same request."""
        known = self._read(REQUEST)
        if known is None:
            if self.path.exists() and any(self.path.iterdir()):
                raise InputError(
                    f"--output {str(self.path)!r} holds something else; expected a new folder, or "
                    "that of the same retraining"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._write(REQUEST, request)
        elif known != (wanted := json.loads(json.dumps(request))):
            both = known.keys() | wanted.keys()
            changed = sorted(key for key in both if known.get(key) != wanted.get(key))
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
        """Whether the run has a checkpoint."""
        return self.run.exists() and bool(RunFolder(self.run).checkpoints())

    @property
    def comparison(self) -> ComparisonResult | None:
        return read_comparison(self.path) if (self.path / COMPARISON_FILE).exists() else None

    def close(self, comparison: ComparisonResult) -> None:
        """Write the comparison and remove checkpoints and replay, most of the folder's size."""
        self._write(COMPARISON_FILE, comparison.model_dump(mode="json"))
        for name in ("checkpoints", "replay"):
            shutil.rmtree(self.run / name, ignore_errors=True)

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
