"""What may change when a run goes on."""

from __future__ import annotations

from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.tracking import flattened

# Its network and its task are what a run is. With other sequences to validate on, its curve would
# break in two and its best policy could no longer be told.
MAY_CHANGE = ("training.", "rollouts.", "checkpoints.", "resources.", "validation.every")
START, TAKE = "training.start", "training.take"  # how it began cannot change


def check_same_run(before: TrainingConfig, after: TrainingConfig, run: Path) -> None:
    """An InputError for a setting that makes it another run."""
    old, new = flattened(before.model_dump(mode="json")), flattened(after.model_dump(mode="json"))
    for name in new | old:
        if old.get(name) == new.get(name):
            continue
        if name in (START, TAKE) or not name.startswith(MAY_CHANGE):
            raise InputError(
                f"setting {name} is {old.get(name)!r} in {str(run)!r} and cannot become "
                f"{new.get(name)!r}; expected a new run, which may begin with this one's policy: "
                f"--set {START}={run}"
            )
