"""Retraining of a policy on a changed workload: its configuration and its folder.

FOLDER/request.json    the request; the same request continues where it was stopped
       run/            a training run
       bundle/         the policy that validated best
       verdict.json    its comparison with the serving policy; written last
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.models.manifest import Manifest
from loadmaster.platform.training.config import Recipe, merged
from loadmaster.platform.training.request_folder import RequestFolder
from loadmaster.serving.policies.comparison import (
    BUNDLE_FOLDER,
    COMPARISON_FILE,
    ComparisonResult,
    read_comparison,
)

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
    if given.get("environment"):  # the changed workload, instead of a mixture
        own.pop("mixture", None)
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


class RetrainingFolder(RequestFolder):
    """The folder of one retraining."""

    kind, command = "retraining", "loadmaster retrain"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.bundle = path / BUNDLE_FOLDER

    @property
    def comparison(self) -> ComparisonResult | None:
        return read_comparison(self.path) if (self.path / COMPARISON_FILE).exists() else None

    def close(self, comparison: ComparisonResult) -> None:
        """Write the comparison and remove checkpoints."""
        self.write_json(COMPARISON_FILE, comparison.model_dump(mode="json"))
        self.remove_checkpoints()
