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
from loadmaster.envs.registry import resolve
from loadmaster.platform.sweeps.settings import TrialResources
from loadmaster.platform.sweeps.space import Space
from loadmaster.platform.systems.registry import System

TRAINER = "loadmaster.platform.training.trainer:Trainer"


@dataclass(frozen=True)
class TrialPlan:
    """What all trials of a sweep have in common; it travels to their processes."""

    system: System
    space: Space
    metric: str
    mode: str  # "min" or "max"
    resources: TrialResources
    trainer_at: str = TRAINER  # "module:class", imported where the trial runs

    def bundles(self, drawn: Mapping[str, Any]) -> list[dict[str, float]]:
        """What Ray sets aside: first for the learner's process, then one each rollout worker."""
        config = self.space.config(drawn)
        workers = config.rollouts.workers
        cpus, gpus = self.resources.cpus_per_trial, self.resources.gpus_per_trial
        learner = {"CPU": 1.0 if cpus is None else cpus - workers}
        if given := config.resources.gpus if gpus is None else gpus:
            learner["GPU"] = float(given)
        return [learner, *({"CPU": 1.0} for _ in range(workers))]


class Trial(tune.Trainable):
    """Drives a Trainer from one judgement to the next, and reports each.

    A report is not an iteration: the metric comes with every validation only, and schedulers and
    searchers can do nothing with a report that lacks it.
    """

    def setup(self, config: dict[str, Any], plan: TrialPlan) -> None:
        self.plan = plan
        self._build(config)

    def _build(self, drawn: Mapping[str, Any]) -> None:
        self.settings = self.plan.space.config(drawn)
        self.trainer = resolve(self.plan.trainer_at)(self.plan.system.recipe, self.settings)
        # The learner would use every core of the machine, but other trials run beside it.
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
        if not math.isfinite(figures[metric]):  # it has diverged, and will not come back
            worst = math.inf if self.plan.mode == "min" else -math.inf
            figures |= {metric: worst, "done": True}
        return figures

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self.trainer.save(Path(checkpoint_dir) / "trainer")

    def restore(self, saved: Any) -> None:
        """From the checkpoint that Tune has on record, or the next that is left.

        A sweep that was killed, or a trial that copies another, may be behind the checkpoints:
        those on record have then given way to newer ones.
        """
        on_record = Path(saved.checkpoint.path)
        if not on_record.exists() and (left := sorted(on_record.parent.glob("checkpoint_*"))):
            saved.checkpoint = tune.Checkpoint.from_directory(str(left[0]))
        super().restore(saved)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.trainer.restore(Path(checkpoint_dir) / "trainer")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """A new trial in the same process, which has everything imported and compiled."""
        self.trainer.stop()
        self._build(new_config)
        return True

    def cleanup(self) -> None:
        self.trainer.stop()
