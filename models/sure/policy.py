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
from loadmaster.models.sure.compiled_decision import CompiledDecision, Decision, JobDecision
from loadmaster.models.sure.compiled_weights import is_supported
from loadmaster.models.sure.graph import pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import Prior, recommend_one
from loadmaster.models.sure.settings import training_settings


class Subgraphs(NamedTuple):
    """What each of N tasks read: k1 snapshots, and k2 neighbours in each, or NONE.

    A weight is the probability that the snapshot is the first one drawn of these.
    """

    snapshot: NDArray[np.int64]  # (N, k1) minutes ago
    weight: NDArray[np.float32]  # (N, k1)
    neighbour: NDArray[np.int64]  # (N, k1, k2) tasks

    @property
    def numbers(self) -> int:
        return self.snapshot.size + self.weight.size + self.neighbour.size


class ScalingDecision(NamedTuple):
    """Whether to restart the job with other instances, and the change of each task.

    A task with p instances gets p * max_factor^change of them, rounded.
    """

    gate_logit: float
    change: NDArray[np.float32]  # (N,) means, limited to [-1, 1]
    std: float
    read: Subgraphs | None  # None: all snapshots

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
        self._compiled = CompiledDecision(self.network)
        self.fixed_settings = {
            field: getattr(trained_in, field) for field in ("history", "decide_every_min")
        }

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> SurePolicy:
        network = bundle.build("sure")
        assert isinstance(network, SureNetwork)
        return cls(network, training_settings(bundle), bundle.name, bundle.version)

    def decide(
        self, observation: Mapping[str, Any], settings: StreamScalingSettings
    ) -> ScalingDecision:
        """Decide on an observation; its window may be shorter than that of the training.

        `settings` have the objective and the limits of the job. Not for two threads at once.
        Raises FloatingPointError if the network's output is not finite.
        """
        prior = recommend_one(observation, self.network.settings.prior, settings)
        if not is_supported(self.network.settings):
            return self._checked(*self._in_torch(observation, prior), None)
        return self._of(self._compiled.decide(observation, prior.change, float(prior.gate)))

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
        own = settings.model_copy(update=self.fixed_settings).at_published_pace()
        return EpisodeRunner(own, workload, seed, record)

    def steps(self, runner: EpisodeRunner) -> Iterator[Step]:
        """The decisions that are left; the caller carries each out. Several threads may run it.

        Features of snapshots are computed once, when they arrive.
        """
        network, view = self.network, runner.view
        job, new = None, len(view.times)
        if is_supported(network.settings):
            job = JobDecision(network, view.tasks, view.edges, len(view.times))
        while not runner.over:
            minute = runner.minute
            prior = recommend_one(view._asdict(), network.settings.prior, runner.settings)
            if job is None:
                found = self._checked(*self._in_torch(view._asdict(), prior), None)
            else:
                job.add(view.snapshots[-new:], view.times[-new:])
                found = self._of(job.decide(view.restart, prior.change, float(prior.gate)))
            yield Step(runner, found)
            new = min(runner.minute - minute, len(view.times))

    @torch.no_grad()
    def _in_torch(
        self, observation: Mapping[str, Any], prior: Prior
    ) -> tuple[float, NDArray[np.float32], float]:
        """Log-odds, means and log standard deviation of networks that draw nothing."""
        network = self.network
        batch = network.window(
            pack([observation], network.settings.hops, [prior.change], [float(prior.gate)])
        )
        embedding = network.embed(network.node_features(batch), batch, None)
        found = network.distribution(embedding, batch)
        mean = found.mean[batch.decision] if network.settings.actions == "job" else found.mean
        return float(found.gate_logit), mean.numpy(), float(found.log_std)

    def _of(self, found: Decision) -> ScalingDecision:
        read, drawn = None, found.drawn
        if drawn.snapshot.size:
            real = drawn.snapshot >= 0
            score = np.where(real, drawn.snapshot_score, -np.inf)
            if not self.network.settings.scored:
                score = np.where(real, 0.0, -np.inf)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            read = Subgraphs(drawn.snapshot, weight.astype(np.float32), drawn.neighbour)
        return self._checked(found.gate_logit, found.mean, found.log_std, read)

    def _checked(
        self, logit: float, mean: NDArray[np.float32], log_std: float, read: Subgraphs | None
    ) -> ScalingDecision:
        if not np.isfinite(mean).all() or not np.isfinite(logit):
            raise FloatingPointError(f"policy {self.name!r} returned NaN or infinity")
        return ScalingDecision(logit, mean.clip(-1, 1), float(np.exp(log_std)), read)
