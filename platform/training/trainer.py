"""One RLlib algorithm, driven an iteration at a time."""

from __future__ import annotations

import logging
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import Recipe, TrainingConfig
from loadmaster.platform.training.warm_start import starting_weights

LEARNT = {  # our names for a learner's results
    "entropy": "entropy",
    "kl": "kl",
    "gradient_norm": "gradients_default_optimizer_global_norm",
}
NETWORK = "network."  # how a module calls the part of it that a bundle holds


class Trainer:
    """A run's learning, without its bookkeeping: what the training loop and a sweep both drive."""

    def __init__(self, recipe: Recipe, config: TrainingConfig, resumed: bool = False) -> None:
        """`resumed`: a checkpoint follows, so nobody needs the policy in training.start."""
        self.recipe, self.config = recipe, config
        recipe.compile(config)
        start = None if resumed else starting_weights(recipe, config)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        with quiet_rllib():
            self.algorithm: Any = recipe.algorithm(config).build_algo()
        if start is not None:
            self._set_weights(start)
        self.decisions = 0  # in all, over the whole run
        first = config.validation.first_seed
        self.validation_seeds = range(first, first + config.validation.sequences)

    @property
    def iteration(self) -> int:
        """How many are done."""
        return int(self.algorithm.iteration)

    def step(self) -> dict[str, float]:
        """One iteration; its figures by name."""
        began = time.perf_counter()
        with quiet_rllib():
            result = self.algorithm.train()
        seconds = time.perf_counter() - began
        rolled: dict[str, float] = result["rollouts"]
        learnt = result.get("learners", {}).get("default_policy", {})
        self.decisions += int(rolled["decisions"])
        figures = {
            "iteration": float(self.iteration),
            "seconds": seconds,
            "decisions_in_all": float(self.decisions),
            "decisions_per_s": rolled["decisions"] / seconds,
            **{name: float(learnt[key]) for name, key in LEARNT.items() if key in learnt},
            **{name: float(value) for name, value in rolled.items()},
        }
        if self.iteration % self.config.validation.every == 0:
            figures["validation"] = self.validate()
        return figures

    def validate(self) -> float:
        """The greedy policy's metric, as a mean over sequences it never learns from."""
        return float(np.mean(self.algorithm.judge(self.validation_seeds)))

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the policy to keep: the network's, by its own names."""
        return {
            name.removeprefix(NETWORK): torch.as_tensor(np.array(value))
            for name, value in self.algorithm.policy_weights().items()
        }

    def _set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        named = dict(self.algorithm.module_weights())
        named.update({f"{NETWORK}{name}": table.numpy() for name, table in weights.items()})
        self.algorithm.set_module_weights(named)

    def save(self, folder: Path) -> None:
        """A checkpoint that is there whole or not at all."""
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with quiet_rllib():
            self.algorithm.save_to_path(str(partial.resolve()))
        (partial / "decisions").write_text(str(self.decisions))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def restore(self, folder: Path) -> None:
        try:
            with quiet_rllib():
                self.algorithm.restore_from_path(str(folder.resolve()))
            self.decisions = int((folder / "decisions").read_text())
        except Exception as fault:  # a pickle that was cut can fail in any way
            reason = f"{type(fault).__name__}: {fault}"[:200]
            raise InputError(
                f"the checkpoint {folder} cannot be restored ({reason}); "
                "expected a whole one: without this folder the one before it is taken"
            ) from fault

    def stop(self) -> None:
        with quiet_rllib():
            self.algorithm.stop()


class quiet_rllib(warnings.catch_warnings):  # noqa: N801 (used as a statement)
    """RLlib warns of its own future and of settings nobody set; a user can do nothing with it."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("ray.rllib").setLevel(logging.ERROR)
        logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.ERROR)
