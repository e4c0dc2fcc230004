"""One RLlib algorithm, driven an iteration at a time."""

from __future__ import annotations

import fnmatch
import logging
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.envs.errors import InputError
from loadmaster.platform.policies.find import find_policy
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.recipe import Recipe

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
        for name, value in weights.items():
            own = named.get(f"{NETWORK}{name}")
            if own is None or own.shape != value.shape:
                raise InputError(
                    f"training.start has {name} of shape {tuple(value.shape)}; expected "
                    f"{'no such table' if own is None else tuple(own.shape)}: see training.take"
                )
            named[f"{NETWORK}{name}"] = value.numpy()
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


def starting_weights(recipe: Recipe, config: TrainingConfig) -> dict[str, torch.Tensor] | None:
    """Those of the policy in training.start, which must be of the same kind, or some of them."""
    if config.training.start is None:
        if config.training.take:
            raise InputError("training.take: there is no training.start to take weights from")
        return None
    bundle = find_policy(config.training.start).bundle
    if bundle.system != recipe.system:
        raise InputError(
            f"training.start {config.training.start!r} is a policy of {bundle.system!r}; "
            f"expected one of {recipe.system!r}"
        )
    if config.training.take:
        return _matching(bundle.weights, config.training.take)
    network = {**recipe.network(recipe.config_class()), **bundle.network}
    if network != recipe.network(config):
        raise InputError(
            f"training.start {config.training.start!r} has the network {network}; "
            f"expected the configured one, {recipe.network(config)}"
        )
    return dict(bundle.weights)


def _matching(
    weights: Mapping[str, torch.Tensor], patterns: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Those tables whose names match."""
    for pattern in patterns:
        if not fnmatch.filter(weights, pattern):
            known = ", ".join(weights)
            raise InputError(f"training.take: no table is called {pattern}; expected of {known}")
    chosen = {name for pattern in patterns for name in fnmatch.filter(weights, pattern)}
    return {name: table for name, table in weights.items() if name in chosen}


class quiet_rllib(warnings.catch_warnings):  # noqa: N801 (used as a statement)
    """RLlib warns of its own future and of settings nobody set; a user can do nothing with it."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("ray.rllib").setLevel(logging.ERROR)
        logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.ERROR)
