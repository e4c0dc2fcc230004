"""Decisions for the episodes of one job that step together: compiled, or in torch."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints
from loadmaster.models.sure.compiled import decide
from loadmaster.models.sure.compiled_encoder import keep_snapshots
from loadmaster.models.sure.compiled_tables import (
    Decisions,
    compiled_job,
    empty_features,
    workspace_for,
)
from loadmaster.models.sure.compiled_weights import Weights, is_supported, weights_of
from loadmaster.models.sure.graph import pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import Prior

Observations = Mapping[str, NDArray[Any]]  # tables (E, ..) of the environment


class Decider(Protocol):
    """Decides for E episodes; what it keeps of the snapshots follows the episodes."""

    def decide(
        self, observations: Observations, prior: Prior, keys: Ints, greedy: bool, out: Decisions
    ) -> None:
        """Write the decisions by keys (E,)."""

    def follow(self, observations: Observations, new: int) -> None:
        """Take the next observations, whose last `new` snapshots are new."""


def decider_for(network: SureNetwork, observations: Observations) -> Decider:
    """The compiled one where it has the configuration. `observations` are the first."""
    if not is_supported(network.settings):
        return TorchDecider(network)
    episodes, window = observations["snapshots"].shape[:2]
    tasks, edges = observations["tasks"][0], observations["edges"][0]
    found = CompiledDecider(network, tasks, edges, episodes, window)
    found.follow(observations, window)
    return found


class CompiledDecider:
    """Keeps the features of the window, which is empty at first."""

    def __init__(
        self,
        network: SureNetwork,
        tasks: NDArray[Any],
        edges: NDArray[Any],
        episodes: int,
        window: int,
        weights: Weights | None = None,
    ) -> None:
        """`weights`: those of the network for this window, if another decider has them."""
        settings = network.settings
        self.weights = weights or weights_of(network, window)
        self.job = compiled_job(tasks, edges, settings.hops)
        self.kept = empty_features(self.weights, episodes, len(tasks))
        self.work = workspace_for(settings, self.weights, self.job)

    def decide(
        self, observations: Observations, prior: Prior, keys: Ints, greedy: bool, out: Decisions
    ) -> None:
        decide(
            self.weights, self.job, self.kept, np.ascontiguousarray(observations["restart"]),
            np.ascontiguousarray(prior.change), prior.gate, keys, greedy, self.work, out,
        )  # fmt: skip

    def follow(self, observations: Observations, new: int) -> None:
        snapshots, times = (
            np.ascontiguousarray(observations[name][:, -new:]) for name in ("snapshots", "times")
        )
        keep_snapshots(self.weights, self.job, self.kept, snapshots, times, self.work)


class TorchDecider:
    """Reads the whole window at each decision; for settings that are not compiled."""

    def __init__(self, network: SureNetwork) -> None:
        self._network = network

    def decide(
        self, observations: Observations, prior: Prior, keys: Ints, greedy: bool, out: Decisions
    ) -> None:
        rows = [
            {name: table[number] for name, table in observations.items()}
            for number in range(len(keys))
        ]
        batch = pack(rows, self._network.settings.hops, list(prior.change), prior.gate.tolist())
        action = self._network.act(batch, torch.from_numpy(keys), greedy)
        out.gate[:] = action.gate
        out.change[:] = action.change.view(out.change.shape)
        if action.draw is not None:
            out.snapshot[:] = action.draw.snapshot.view(out.snapshot.shape)
            out.neighbour[:] = action.draw.neighbour.flatten(1).view(out.neighbour.shape)
        if action.log_prob is not None:
            gate, task, sampler = (part.view(len(keys), -1) for part in action.log_prob)
            out.log_prob[:] = torch.cat([gate, task, sampler], dim=1)

    def follow(self, observations: Observations, new: int) -> None:
        """Nothing is kept."""
