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
    is_supported,
    weights_of,
    workspace_for,
)
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
    if is_supported(network.settings):
        return CompiledDecider(network, observations)
    return TorchDecider(network)


class CompiledDecider:
    """Keeps the features of the window."""

    def __init__(self, network: SureNetwork, observations: Observations) -> None:
        episodes, window, tasks = observations["snapshots"].shape[:3]
        settings = network.settings
        self._weights = weights_of(network, window)
        self._job = compiled_job(
            observations["tasks"][0], observations["edges"][0], settings.hops
        )
        self._kept = empty_features(self._weights, episodes, tasks)
        self._work = workspace_for(settings, self._weights, self._job)
        self.follow(observations, window)

    def decide(
        self, observations: Observations, prior: Prior, keys: Ints, greedy: bool, out: Decisions
    ) -> None:
        decide(
            self._weights, self._job, self._kept, np.ascontiguousarray(observations["restart"]),
            np.ascontiguousarray(prior.change), prior.gate, keys, greedy, self._work, out,
        )  # fmt: skip

    def follow(self, observations: Observations, new: int) -> None:
        snapshots, times = (
            np.ascontiguousarray(observations[name][:, -new:]) for name in ("snapshots", "times")
        )
        keep_snapshots(self._weights, self._job, self._kept, snapshots, times, self._work)


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
