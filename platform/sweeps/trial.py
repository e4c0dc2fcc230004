"""One trial of a sweep: a training run that Tune may stop, save, copy and resume."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray import tune

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import resolve
from loadmaster.platform.sweeps.settings import Sweep

POLICY = "policy"  # the bundle in a trial's checkpoint
TRAINER = "loadmaster.platform.training.trainer:Trainer"


class Trial(tune.Trainable):
    """Runs a Trainer from one validation to the next, and reports each.

    Schedulers and searchers need the metric in every report, and only validations have it.
    The trainer is built with the first step or checkpoint, not in `setup`: Tune counts a trial as
    running from then on, and only a running trial can be ended as hung.
    """

    def setup(
        self,
        config: dict[str, Any],
        sweep: Sweep,
        provenance: Mapping[str, Any],
        trainer_at: str = TRAINER,
    ) -> None:
        """`trainer_at`: "module:class", imported here, where the trial runs.

        `provenance`: the sweep's manifest, for the policies.
        """
        self.provenance = provenance
        self.sweep, self.trainer_class, self.drawn = sweep, resolve(trainer_at), config
        self.built: Any = None  # the trainer
        self.diverged = False  # whether its last report was
        self.outdated = False  # whether it is that of an earlier trial in this process

    @property
    def trainer(self) -> Any:
        if self.built is None or self.outdated:
            self.cleanup()
            self.settings = self.sweep.config(self.drawn)
            recipe = self.sweep.system.load("training")
            self.built, self.outdated = self.trainer_class(recipe, self.settings), False
            # By default the learner uses all cores, which other trials share.
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(max(1, int(self.sweep.bundles(self.drawn)[0]["CPU"])))
        return self.built

    def step(self) -> dict[str, Any]:
        metric = self.sweep.metric
        trainer, figures = self.trainer, {}
        for _ in range(self.settings.validation.every):
            figures = trainer.step()
            if metric in figures:
                break
        else:
            known = ", ".join(sorted(figures))
            raise InputError(f"metric {metric!r} is never reported; expected one of: {known}")
        figures = {**figures, "iteration": int(figures["iteration"])}
        self.diverged = not math.isfinite(figures[metric])
        if self.diverged:
            worst = math.inf if self.sweep.settings.mode == "min" else -math.inf
            figures |= {metric: worst, "done": True}
        return figures

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        folder = Path(checkpoint_dir)
        self.trainer.save(folder / "trainer")
        if self.diverged:  # a bundle refuses weights that are not finite
            return
        self.trainer.save_policy(
            folder / POLICY,
            self.sweep.name,
            self.provenance,
            {"searched": self.sweep.space.settle(self.drawn)},
        )

    def restore(self, saved: Any) -> None:
        """Restore the checkpoint that Tune has on record, or the oldest that still exists.

        After a kill, or when a trial copies another, the one on record may have been replaced.
        """
        storage, on_record = saved.checkpoint.filesystem, saved.checkpoint.path
        if not _exists(storage, on_record) and (left := _checkpoints(storage, on_record)):
            saved.checkpoint = tune.Checkpoint(left[0], storage)
        super().restore(saved)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.trainer.restore(Path(checkpoint_dir) / "trainer")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reuse the process, which has everything imported and compiled, for a new trial."""
        self.drawn, self.outdated, self.diverged = new_config, True, False
        return True

    def cleanup(self) -> None:
        if self.built is not None:
            self.built.stop()
            self.built = None


def _exists(storage: pyarrow.fs.FileSystem, path: str) -> bool:
    return bool(storage.get_file_info(path).type != pyarrow.fs.FileType.NotFound)


def _checkpoints(storage: pyarrow.fs.FileSystem, path: str) -> list[str]:
    """The checkpoints of the trial whose checkpoint `path` was, oldest first."""
    trial = pyarrow.fs.FileSelector(path.rpartition("/")[0], allow_not_found=True)
    found = (each for each in storage.get_file_info(trial) if not each.is_file)
    return sorted(each.path for each in found if each.base_name.startswith("checkpoint_"))
