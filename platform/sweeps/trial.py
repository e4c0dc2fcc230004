"""One trial of a sweep: a training run that Tune may stop, save, copy and resume."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import resolve
from loadmaster.platform.sweeps.settings import Sweep

TRAINER = "loadmaster.platform.training.trainer:Trainer"


class Trial(tune.Trainable):
    """Runs a Trainer from one validation to the next, and reports each.

    Schedulers and searchers need the metric in every report, and only validations have it.
    """

    def setup(self, config: dict[str, Any], sweep: Sweep, trainer_at: str = TRAINER) -> None:
        """`trainer_at`: "module:class", imported here, where the trial runs."""
        self.sweep, self.trainer_class = sweep, resolve(trainer_at)
        self._build(config)

    def _build(self, drawn: Mapping[str, Any]) -> None:
        self.settings = self.sweep.space.config(drawn)
        self.trainer = self.trainer_class(self.sweep.system.load("training"), self.settings)
        # By default the learner uses all cores, which other trials share.
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(max(1, int(self.sweep.bundles(drawn)[0]["CPU"])))

    def step(self) -> dict[str, Any]:
        metric = self.sweep.metric
        figures: dict[str, Any] = {}
        for _ in range(self.settings.validation.every):
            figures = self.trainer.step()
            if metric in figures:
                break
        else:
            known = ", ".join(sorted(figures))
            raise InputError(f"metric {metric!r} is never reported; expected one of: {known}")
        figures = {**figures, "iteration": int(figures["iteration"])}
        if not math.isfinite(figures[metric]):  # diverged
            worst = math.inf if self.sweep.settings.mode == "min" else -math.inf
            figures |= {metric: worst, "done": True}
        return figures

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self.trainer.save(Path(checkpoint_dir) / "trainer")

    def restore(self, saved: Any) -> None:
        """Restore the checkpoint that Tune has on record, or the oldest that still exists.

        After a kill, or when a trial copies another, the one on record may have been replaced.
        """
        on_record = Path(saved.checkpoint.path)
        if not on_record.exists() and (left := sorted(on_record.parent.glob("checkpoint_*"))):
            saved.checkpoint = tune.Checkpoint.from_directory(str(left[0]))
        super().restore(saved)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.trainer.restore(Path(checkpoint_dir) / "trainer")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reuse the process, which has everything imported and compiled, for a new trial."""
        self.trainer.stop()
        self._build(new_config)
        return True

    def cleanup(self) -> None:
        self.trainer.stop()
