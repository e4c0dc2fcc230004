"""One trial of a sweep: a training run that Tune may stop, save, copy and resume."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import System, resolve
from loadmaster.platform.sweeps.settings import TrialResources
from loadmaster.platform.sweeps.space import Space

TRAINER = "loadmaster.platform.training.trainer:Trainer"


@dataclass(frozen=True)
class TrialPlan:
    """What all trials of a sweep share; sent to their processes."""

    system: System
    space: Space
    metric: str
    mode: str  # "min" or "max"
    resources: TrialResources
    trainer_at: str = TRAINER  # "module:class", imported where the trial runs

    def bundles(self, drawn: Mapping[str, Any]) -> list[dict[str, float]]:
        """Resources to reserve: the learner's process first, then each rollout worker."""
        config = self.space.config(drawn)
        workers = config.rollouts.workers
        cpus, gpus = self.resources.cpus_per_trial, self.resources.gpus_per_trial
        learner = {"CPU": 1.0 if cpus is None else cpus - workers}
        if given := config.resources.gpus if gpus is None else gpus:
            learner["GPU"] = float(given)
        return [learner, *({"CPU": 1.0} for _ in range(workers))]


class Trial(tune.Trainable):
    """Runs a Trainer from one validation to the next, and reports each.

    Schedulers and searchers need the metric in every report, and only validations have it.
    """

    def setup(self, config: dict[str, Any], plan: TrialPlan) -> None:
        self.plan = plan
        self._build(config)

    def _build(self, drawn: Mapping[str, Any]) -> None:
        self.settings = self.plan.space.config(drawn)
        self.trainer = resolve(self.plan.trainer_at)(
            self.plan.system.load("training"), self.settings
        )
        # By default the learner uses all cores, which other trials share.
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(max(1, int(self.plan.bundles(drawn)[0]["CPU"])))

    def step(self) -> dict[str, Any]:
        metric = self.plan.metric
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
            worst = math.inf if self.plan.mode == "min" else -math.inf
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
