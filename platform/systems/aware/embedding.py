"""Measurements of AWARE's embedding and novelty: unseen applications, after a few episodes.

Embeddings of one application under two loads should be near each other, and those of applications
with common segments nearer than others. Unknown applications have more segments than any of the
training and several times the CPU time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from loadmaster.envs.pod_scaling.applications import (
    MOST_SEGMENTS,
    SEGMENTS,
    TEST,
    Application,
    compose,
    generated_split,
)
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.metrics import violated_steps
from loadmaster.envs.pod_scaling.rollout import run_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import Floats
from loadmaster.models.aware.adaptation import FIRST_SEED, adapt_to
from loadmaster.models.aware.choice import nothing_known
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out

LOADS = ("diurnal-like", "bursty-like")
SEEDS_BETWEEN = 100  # first seeds of two loads
NOVELTY_SEED = FIRST_SEED + 10_000  # of the first episode in which novelty is measured
UNKNOWN_SEED = 4  # of the draw of unknown applications
CPU_FACTOR = 5.0
RULE = "hpa"  # which the service has act by default

Segments = tuple[str, ...]


class Embedded(NamedTuple):
    """Applications with their embeddings under each of two loads, centred by their mean."""

    segments: tuple[Segments, ...]
    embeddings: Floats  # (2, N, embedding)

    @property
    def cosines(self) -> Floats:
        """(N, N) similarity of an application under the first load and one under the second."""
        first, second = map(_unit, self.embeddings)
        found: Floats = first @ second.T
        return found

    @property
    def nearest(self) -> list[int]:
        """The most similar other application of each, under the first load."""
        unit = _unit(self.embeddings[0])
        similar = unit @ unit.T
        np.fill_diagonal(similar, -np.inf)
        return [int(place) for place in similar.argmax(1)]

    @property
    def overlaps(self) -> Floats:
        """(N, N) Jaccard overlap of the segments of two applications."""
        sets = [set(each) for each in self.segments]
        return np.array([[len(one & two) / len(one | two) for two in sets] for one in sets])


@dataclass(frozen=True)
class Similarity:
    """How similarity of embeddings follows that of applications."""

    nearest_overlap: float  # mean Jaccard overlap of segments with the nearest neighbour
    chance_overlap: float  # with any other application
    same_cosine: float  # mean of one application under two loads
    other_cosine: float  # of two applications under two loads
    same_nearest: float  # share of applications that are the nearest to themselves
    first_component: float  # share of the variance; near 1, a cosine is hardly more than a sign


def embed_applications(
    policy: AwarePolicy,
    segments: Sequence[Segments],
    episodes: int,
    settings: PodScalingSettings,
    on_application: Callable[[int], None] = lambda number: None,
) -> Embedded:
    """Adapt to each application in some episodes under each load."""
    found = np.zeros((len(LOADS), len(segments), policy.settings.context))
    conditions = [settings.model_copy(update={"workload": load}) for load in LOADS]
    setups = [build_setup(condition) for condition in conditions]
    for number, each in enumerate(segments):
        on_application(number)
        for place, (condition, setup) in enumerate(zip(conditions, setups, strict=True)):
            first = FIRST_SEED + SEEDS_BETWEEN * place
            alone = setup._replace(applications=(compose(each),))
            adapted, _ = adapt_to(policy, condition, alone, range(first, first + episodes))
            found[place, number] = adapted.known.embedding
    return Embedded(tuple(segments), found - found.mean((0, 1)))


def similarity_of(embedded: Embedded) -> Similarity:
    cosines, overlaps, count = embedded.cosines, embedded.overlaps, len(embedded.segments)
    others, variance = ~np.eye(count, dtype=bool), np.square(embedded.embeddings).sum()
    return Similarity(
        nearest_overlap=float(overlaps[range(count), embedded.nearest].mean()),
        chance_overlap=float(overlaps[others].mean()),
        same_cosine=float(np.diag(cosines).mean()),
        other_cosine=float(cosines[others].mean()),
        same_nearest=float((cosines.argmax(1) == np.arange(count)).mean()),
        first_component=float(np.square(project(embedded)[..., 0]).sum() / variance),
    )


def project(embedded: Embedded) -> Floats:
    """(2, N, 2) the embeddings on their first two principal components."""
    rows = embedded.embeddings.reshape(-1, embedded.embeddings.shape[-1])
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    found: Floats = (rows @ axes[:2].T).reshape(len(LOADS), -1, 2)
    return found


def _unit(rows: Floats) -> Floats:
    found: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found


@dataclass(frozen=True)
class NoveltyRow:
    """An application in its first episode, in which the policy acts throughout."""

    kind: str
    application: str
    distance: float  # at the end
    flagged: bool  # as unknown, at the end
    decisions_flagged: float  # share of all decisions
    reward: float  # mean of a step
    rule_reward: float  # of RULE in the same episode
    violated: float  # steps whose p99 is above the SLO, in percent
    rule_violated: float


def known_applications(count: int) -> list[Application]:
    """The first ones of the test set."""
    return [compose(each) for each in generated_split(TEST)[:count]]


def unknown_applications(count: int, longer_slo: bool = False) -> list[Application]:
    """Of one segment more than any generated one, with CPU_FACTOR the CPU time of these.

    `longer_slo`: the SLO is as many times as long; else it is that of the segments.
    """
    rng, names = np.random.default_rng(UNKNOWN_SEED), list(SEGMENTS)
    found = []
    for _ in range(count):
        one = compose([names[place] for place in rng.integers(len(names), size=MOST_SEGMENTS + 1)])
        slo_s = one.slo_s * (CPU_FACTOR if longer_slo else 1.0)
        found.append(replace(one, cpu_s=CPU_FACTOR * one.cpu_s, slo_s=slo_s))
    return found


def measure_novelty(
    policy: AwarePolicy,
    kind: str,
    applications: Iterable[Application],
    settings: PodScalingSettings,
) -> list[NoveltyRow]:
    """Novelty in the first episode of each application; loads alternate."""
    conditions = [settings.model_copy(update={"workload": load}) for load in LOADS]
    setups, rows = [build_setup(condition) for condition in conditions], []
    for number, application in enumerate(applications):
        place, seed = number % len(LOADS), NOVELTY_SEED + number
        condition, alone = conditions[place], setups[place]._replace(applications=(application,))
        runner, known = (
            EpisodeRunner(condition, alone, seed),
            nothing_known(policy.settings.context),
        )
        distance, flags = 0.0, []
        for step in policy.steps(runner, known):
            novelty = policy.novelty(step.decision.app, known)
            flags.append(novelty is not None and novelty.is_unknown)
            distance = distance if novelty is None else novelty.distance
            carry_out(alone.constants, runner.episode.state, step.decision.plan)
        own, rule = runner.result(policy.name), run_episode(RULE, condition, seed, alone)
        rows.append(
            NoveltyRow(
                kind,
                application.name,
                distance,
                flags[-1],
                float(np.mean(flags)),
                own.reward,
                rule.reward,
                violated_steps(own),
                violated_steps(rule),
            )
        )
    return rows
