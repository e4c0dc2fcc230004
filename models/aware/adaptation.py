"""Adaptation to an application: episodes whose trajectories make its embedding.

Nothing is trained: the encoder is fixed, and estimates and embedding follow each episode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import SimConstants
from loadmaster.models.aware.choice import Remembered, Singles, nothing_known, trajectory_of
from loadmaster.models.aware.encoder import Trajectory
from loadmaster.models.aware.features import FEATURES
from loadmaster.models.aware.logged import LoggedEpisode, logged_estimates
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.policy import Learned

FIRST_SEED = 500_000_000  # of episodes to adapt in; those of evaluations and training are others


class BestTrajectory(NamedTuple):
    """Embedding of one of the best trajectories, which itself is not needed any more."""

    reward: float  # mean of a step
    embedding: Singles


@dataclass
class Adaptation:
    """What is known of one application, and its best trajectories so far, the best first."""

    policy: AwarePolicy
    known: Remembered
    best: list[BestTrajectory] = field(default_factory=list)

    @classmethod
    def new(cls, policy: AwarePolicy) -> "Adaptation":
        return cls(policy, nothing_known(policy.settings.context))

    @classmethod
    def of_log(
        cls, policy: AwarePolicy, episodes: Sequence[LoggedEpisode], constants: SimConstants
    ) -> "Adaptation":
        """What the logged episodes of an application, the newest last, say of it."""
        found = cls.new(policy)
        for episode in episodes:
            found.add(episode.reward, episode.trajectory(policy.mask))
        estimates = logged_estimates(episodes[-1].features, constants)
        return cls(policy, found.known._replace(estimates=estimates), found.best)

    def add(self, reward: float, trajectory: Trajectory) -> None:
        """Take an episode, whoever acted in it; the embedding is that of the best ones."""
        most = self.policy.settings.encoder.trajectories
        if len(self.best) >= most and reward <= self.best[-1].reward:
            return
        added = BestTrajectory(reward, self.policy.embed([trajectory]))
        self.best = sorted([*self.best, added], key=lambda each: -each.reward)[:most]
        embedding = np.mean([each.embedding for each in self.best], 0)  # as `policy.embed` of all
        self.known = self.known._replace(embedding=embedding)

    def run_episode(self, settings: PodScalingSettings, setup: Setup, seed: int) -> EpisodeResult:
        """Run an episode of the application, and learn from it."""
        result, trajectory = self.policy.record(settings, seed, setup, self.known)
        self.add(result.reward, trajectory)
        return result

    def copy(self) -> Remembered:
        """What is known, for an episode that may change it."""
        return self.known.copied()

    def learned(self) -> Learned:
        """Embedding, and rewards and embeddings of the best trajectories, for the service."""
        rows = [np.array([each.reward, *each.embedding], np.float32) for each in self.best]
        return Learned(self.known.embedding, np.concatenate(rows))


def learn_episode(
    policy: AwarePolicy, rows: Singles, rewards: Singles, best: Singles | None
) -> Learned:
    """Add an episode to the best ones of an application, from `Learned.episodes`; None: none yet.

    `rows` (steps, features and actions) are of `Served.step`, `rewards` (steps,) the environment's.
    """
    found, width = Adaptation.new(policy), 1 + policy.settings.context
    if best is not None and len(best) % width == 0:
        found.best = [BestTrajectory(float(row[0]), row[1:]) for row in best.reshape(-1, width)]
    earned = rewards.astype(np.float64)
    trajectory = trajectory_of(rows[:, :FEATURES], rows[:, FEATURES:], earned)
    found.add(float(earned.mean()), trajectory)
    return found.learned()


def adapt_to(
    policy: AwarePolicy, settings: PodScalingSettings, setup: Setup, seeds: Iterable[int]
) -> tuple[Adaptation, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Adapt to the only application of `setup` in the episodes of `seeds`, and their rewards."""
    found = Adaptation.new(policy)
    rewards = [found.run_episode(settings, setup, seed).reward for seed in seeds]
    return found, np.array(rewards)
