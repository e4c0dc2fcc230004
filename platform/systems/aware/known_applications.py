"""Nearest known applications: training applications whose embeddings are near that of another."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, adapt_to
from loadmaster.models.aware.choice import Singles
from loadmaster.models.aware.policy import AwarePolicy

COMPARED = 24  # training applications at most
ADAPTATION_EPISODES = 2  # episodes of each
SEED = 24  # of the draw


class KnownApplication(NamedTuple):
    """A training application, and the cosine similarity of its embedding."""

    application: Application
    similarity: float  # -1 to 1


def draw_applications(policy: AwarePolicy, count: int = COMPARED) -> tuple[Application, ...]:
    """Up to `count` of the applications that the policy was trained on; always the same ones."""
    trained = load_applications(policy.trained_in.application, policy.trained_in.data)
    if len(trained) <= count:
        return trained
    drawn = np.random.default_rng(SEED).choice(len(trained), count, replace=False)
    return tuple(trained[number] for number in drawn)


def known_applications(
    policy: AwarePolicy,
    settings: PodScalingSettings,
    workload: Setup,
    embedding: Singles,
    applications: Sequence[Application] | None = None,
    adaptation_episodes: int = ADAPTATION_EPISODES,
) -> tuple[KnownApplication, ...]:
    """Training applications by similarity to `embedding`, the nearest first.

    The policy adapts to each in a few episodes under `settings`, so that load and cluster are those
    of the application that `embedding` is of. Similarities are those of differences from the mean
    of the compared ones, which all embeddings have in common. Empty if the policy has no encoder.
    """
    if not policy.settings.context:
        return ()
    calm = settings.model_copy(update={"shift": ()})
    chosen = draw_applications(policy) if applications is None else applications
    seeds, others = range(FIRST_SEED, FIRST_SEED + adaptation_episodes), []
    for application in chosen:
        alone = workload._replace(applications=(application,))
        adapted, _ = adapt_to(policy, calm, alone, seeds)
        others.append(adapted.known.embedding)
    centre = np.mean(others, axis=0)
    found = [
        KnownApplication(application, cosine_similarity(embedding - centre, other - centre))
        for application, other in zip(chosen, others, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: (-each.similarity, each.application.name)))


def cosine_similarity(one: Singles, other: Singles) -> float:
    """0 if an embedding is zero: nothing is known."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.clip(np.dot(one, other) / lengths, -1, 1)) if lengths else 0.0
