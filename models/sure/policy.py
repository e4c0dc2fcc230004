"""SURE's policy: greedy decisions, single ones or those of an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.actions import ACT, HOLD
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.bundle import Bundle
from loadmaster.models.sure.graph import Draw, pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import recommend_one
from loadmaster.models.sure.sampler import SELF
from loadmaster.models.sure.settings import training_settings


class ScalingDecision(NamedTuple):
    """Whether to restart the job with other instances, and the change of each task.

    A task with p instances gets p * max_factor^change of them, rounded.
    """

    gate_logit: float
    change: NDArray[np.float32]  # (N,) means, limited to [-1, 1]
    std: float
    draw: Draw | None  # what the network read; None: everything
    weight: NDArray[np.float32] | None  # (N, k1) probability of each drawn snapshot to be first

    @property
    def act(self) -> bool:
        return self.gate_logit > 0

    @property
    def probability(self) -> float:
        """Of acting, in a sampled decision."""
        return float(1 / (1 + np.exp(-self.gate_logit)))

    @property
    def action(self) -> NDArray[np.float32]:
        """As the environment takes it."""
        return np.concatenate([[ACT if self.act else HOLD], self.change]).astype(np.float32)


class Step(NamedTuple):
    """A decision of an episode, before it is carried out; valid until the next one."""

    runner: EpisodeRunner
    decision: ScalingDecision


class SurePolicy:
    """Takes the likelier gate, the mean of every change, and the subgraphs with the best scores.

    The history it reads and the time between its decisions are those of its training.
    """

    def __init__(
        self,
        network: SureNetwork,
        trained_in: StreamScalingSettings,
        name: str = "sure",
        version: str = "",
    ) -> None:
        self.network, self.trained_in = network.eval(), trained_in
        self.name, self.version = name, version
        self.fixed_settings = {
            field: getattr(trained_in, field) for field in ("history", "decide_every_min")
        }

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> SurePolicy:
        network = bundle.build("sure")
        assert isinstance(network, SureNetwork)
        return cls(network, training_settings(bundle), bundle.name, bundle.version)

    @torch.no_grad()
    def decide(
        self, observation: Mapping[str, Any], settings: StreamScalingSettings
    ) -> ScalingDecision:
        """Decide on an observation; its window may be shorter than that of the training.

        `settings` have the objective and the limits of the job.

        Raises FloatingPointError if the network's output is not finite.
        """
        network = self.network
        prior = recommend_one(observation, network.settings.prior, settings)
        batch = network.window(
            pack([observation], network.settings.hops, [prior.change], [float(prior.gate)])
        )
        features = network.node_features(batch)
        scores = network.score(features, batch)
        draw = network.draw(scores, batch, torch.zeros(1, dtype=torch.int64), greedy=True)
        found = network.distribution(network.embed(features, batch, draw), batch)
        change = found.mean[batch.decision] if network.settings.actions == "job" else found.mean
        if not torch.isfinite(change).all() or not torch.isfinite(found.gate_logit).all():
            raise FloatingPointError(f"policy {self.name!r} returned NaN or infinity")
        weight = None
        if draw is not None and scores is not None:
            shown = torch.where(batch.present, scores.mean[..., SELF], -torch.inf).softmax(1)
            weight = shown.gather(1, draw.snapshot.clamp(min=0)).numpy()
        return ScalingDecision(
            float(found.gate_logit),
            change.clamp(-1, 1).numpy(),
            float(found.log_std.exp()),
            draw,
            weight,
        )

    def run(
        self, settings: StreamScalingSettings, seed: int, workload: Setup, record: bool = False
    ) -> EpisodeResult:
        """Result of the episode of `seed`; with `record`, with the parallelism by minute."""
        runner = self.start_episode(settings, seed, workload, record)
        for step in self.steps(runner):
            runner.decide(step.decision.action)
        return runner.result(self.name)

    def start_episode(
        self, settings: StreamScalingSettings, seed: int, workload: Setup, record: bool = False
    ) -> EpisodeRunner:
        """The episode before its first decision, with the policy's own settings."""
        return EpisodeRunner(
            settings.model_copy(update=self.fixed_settings), workload, seed, record
        )

    def steps(self, runner: EpisodeRunner) -> Iterator[Step]:
        """The decisions that are left; the caller carries each out."""
        while not runner.over:
            decision = self.decide(runner.view._asdict(), runner.settings)
            yield Step(runner, decision)
