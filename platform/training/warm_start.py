"""The policy a run begins with: all of its weights, or some tables of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import torch

from loadmaster.envs.errors import InputError
from loadmaster.models.registry import find_network
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.training.config import Recipe, TrainingConfig


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
        taken = _matching(bundle.weights, config.training.take)
        _must_fit(taken, find_network(recipe.system).build(recipe.network(config)).state_dict())
        return taken
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
    """Those tables whose names match, by name: a bundle's come in any order."""
    for pattern in patterns:
        if not fnmatch.filter(weights, pattern):
            known = ", ".join(sorted(weights))
            raise InputError(f"training.take: no table is called {pattern}; expected {known}")
    chosen = {name for pattern in patterns for name in fnmatch.filter(weights, pattern)}
    return {name: weights[name] for name in sorted(chosen)}


def _must_fit(taken: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """An InputError for a table that the network to train has not, or has in another shape."""
    for name, table in taken.items():
        if name not in own:
            raise InputError(
                f"training.take: the network to train has no table {name}; "
                "expected tables of both networks"
            )
        if own[name].shape != table.shape:
            raise InputError(
                f"training.take: {name} of training.start has the shape {tuple(table.shape)}; "
                f"expected {tuple(own[name].shape)}, as in the network to train"
            )
