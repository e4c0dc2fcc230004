"""One RLlib algorithm, driven an iteration at a time, and the policy it starts from."""

import fnmatch
import logging
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.models.bundle import build_network, save_bundle
from loadmaster.models.files import atomic_folder
from loadmaster.platform.rl.base import EngineAlgorithm
from loadmaster.platform.rl.learner import TERM
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.training.config import BaseConfig, Recipe

LEARNER_METRICS = (
    *("entropy", "kl", "gradient_norm", "gradient_seconds", "exchange_seconds"),
    *("critic_loss", "actor_loss", "q_mean"),  # off-policy
)
NETWORK = "network."  # prefix, in a module, of the weights that a bundle holds


class Trainer:
    """Training without files: driven by the training loop and by sweeps."""

    def __init__(
        self,
        recipe: Recipe,
        config: BaseConfig,
        resumed: bool = False,
        run_folder: Path | None = None,
    ) -> None:
        """`resumed`: a checkpoint follows, so training.warm_start is not read.

        A replay lives in `run_folder`; without one, checkpoints hold a copy.
        """
        self.recipe, self.config = recipe, config
        recipe.compile(config)
        start = None if resumed else starting_weights(recipe, config)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        with quiet_rllib():
            built = recipe.algorithm(config)
            built.run_folder = None if run_folder is None else str(run_folder.resolve())
            self.algorithm: EngineAlgorithm = built.build_algo()
        if start is not None:
            own = {f"{NETWORK}{name}": table.numpy() for name, table in start.items()}
            self.algorithm.set_module_weights({**self.algorithm.module_weights(), **own})
        self.decisions = 0  # over the whole run
        first = config.validation.first_seed
        self.validation_seeds = range(first, first + config.validation.sequences)

    @property
    def iteration(self) -> int:
        """Number of iterations done."""
        return int(self.algorithm.iteration)

    def step(self) -> dict[str, float]:
        """Run one iteration and return its metrics."""
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
            **{
                name: float(value)
                for name, value in learnt.items()
                if name in LEARNER_METRICS or name.startswith(TERM)
            },
            **{name: float(value) for name, value in rolled.items()},
        }
        if self.iteration % self.config.validation.every == 0:
            figures["validation"] = self.validate()
        return figures

    def validate(self) -> float:
        """The greedy policy's mean metric on the validation sequences."""
        return float(np.mean(self.algorithm.episode_values(self.validation_seeds)))

    def weights(self) -> dict[str, torch.Tensor]:
        """The network's weights to save, by its own names."""
        return {
            name.removeprefix(NETWORK): torch.as_tensor(np.array(value))
            for name, value in self.algorithm.policy_weights().items()
            if name.startswith(NETWORK)
        }

    def save_policy(
        self,
        folder: Path,
        name: str,
        provenance: Mapping[str, Any],
        trained: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the policy as a bundle, with the command, machine and revision of `provenance`.

        `trained` is added to what the bundle has on its training.
        """
        config = self.config
        environment = getattr(config, "environment", None)
        changed: dict[str, Any] = {}  # beside the environment's own defaults
        if isinstance(environment, Settings):
            changed = environment.model_dump(mode="json", exclude_defaults=True)
        save_bundle(
            folder,
            name=name,
            system=self.recipe.system,
            network=self.recipe.network(config),
            weights=self.weights(),
            trained={
                "environment": changed,
                "config": config.model_dump(mode="json"),
                "seed": config.seed,
                "iterations": self.iteration,
                "decisions": self.decisions,
                **{key: provenance.get(key) for key in ("command", "machine", "revision")},
                "date": provenance.get("started"),
                **(trained or {}),
            },
            results=results,
            replace=True,
        )

    def save(self, folder: Path) -> None:
        """Write a checkpoint atomically."""
        with quiet_rllib(), atomic_folder(folder, replace=True) as scratch:
            self.algorithm.save_to_path(str(scratch.resolve()))
            (scratch / "decisions").write_text(str(self.decisions))

    def restore(self, folder: Path) -> None:
        try:
            with quiet_rllib():
                self.algorithm.restore_from_path(str(folder.resolve()))
            self.decisions = int((folder / "decisions").read_text())
        except InputError:
            raise
        except Exception as fault:  # a truncated pickle can raise anything
            reason = f"{type(fault).__name__}: {fault}"[:200]
            raise InputError(
                f"the checkpoint {folder} cannot be restored ({reason}); "
                "expected a whole one; remove this folder to use the one before it"
            ) from fault

    def stop(self) -> None:
        with quiet_rllib():
            self.algorithm.stop()


class quiet_rllib(warnings.catch_warnings):  # noqa: N801 (used as a statement)
    """Silence RLlib's warnings of deprecations and defaults, which a user cannot act on."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        for name in ("ray.rllib", "ray._common.deprecation", "ray.tune"):
            logging.getLogger(name).setLevel(logging.ERROR)


def starting_weights(recipe: Recipe, config: BaseConfig) -> dict[str, torch.Tensor] | None:
    """Weights of the policy in training.warm_start that training.weight_filter lets pass."""
    start, patterns = config.training.warm_start, config.training.weight_filter
    if start is None:
        if patterns:
            raise InputError("training.weight_filter: there is no training.warm_start to filter")
        return None
    bundle = find_policy(start).bundle
    if bundle.system != recipe.system:
        raise InputError(
            f"training.warm_start {start!r} is a policy of {bundle.system!r}; "
            f"expected one of {recipe.system!r}"
        )
    if patterns:
        taken = _matching(bundle.weights, patterns)
        _check_shapes(taken, build_network(recipe.system, recipe.network(config)).state_dict())
        return taken
    network = {**recipe.network(recipe.config_class()), **bundle.network}
    if network != recipe.network(config):
        raise InputError(
            f"training.warm_start {start!r} has the network {network}; "
            f"expected the configured one, {recipe.network(config)}"
        )
    return dict(bundle.weights)


def _matching(
    weights: Mapping[str, torch.Tensor], patterns: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Tables whose names match a pattern, sorted by name."""
    for pattern in patterns:
        if not fnmatch.filter(weights, pattern):
            known = ", ".join(sorted(weights))
            raise InputError(
                f"training.weight_filter: no table is called {pattern}; expected {known}"
            )
    chosen = {name for pattern in patterns for name in fnmatch.filter(weights, pattern)}
    return {name: weights[name] for name in sorted(chosen)}


def _check_shapes(taken: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    for name, table in taken.items():
        if name not in own:
            raise InputError(
                f"training.weight_filter: the network to train has no table {name}; "
                "expected tables of both networks"
            )
        if own[name].shape != table.shape:
            raise InputError(
                f"training.weight_filter: {name} has the shape {tuple(table.shape)}; "
                f"expected {tuple(own[name].shape)}, as in the network to train"
            )
