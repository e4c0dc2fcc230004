"""`loadmaster adapt aware`: estimates and embedding of one application, from episodes or a log."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loadmaster.envs.errors import InputError, counted, unknown_name
from loadmaster.envs.pod_scaling.baselines import BASELINES, RANDOM
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup, build_setup, constants_of
from loadmaster.envs.pod_scaling.metrics import EPISODE_METRICS
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import CPU_S, IO_S, MEMORY_MIB, REQUEST_MIB
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.estimates import blank_application, write_application
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule_policy import RULE
from loadmaster.models.bundle import Bundle, save_bundle
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.evaluation.adapters import folder_name_of
from loadmaster.platform.evaluation.statistics import interval_ends
from loadmaster.platform.systems.aware.evaluation import run
from loadmaster.platform.systems.aware.logs import read_log, write_log
from loadmaster.serving.decisions.tenant_names import tenant_of

if TYPE_CHECKING:  # imports Ray
    from loadmaster.platform.systems.aware.fine_tuning import FineTuned

APPLICATION_FILE, BUNDLE_FOLDER = "application.json", "bundle"
RULES = tuple(name for name, rule in BASELINES.items() if rule.rule != RANDOM)
MOST_EPISODES = 1000
JUDGED = 30  # episodes that fine-tuned weights are compared in
_SHOWN = ("reward", "violations", "cpu_use", "memory_use", "ooms")  # metrics in the table


class Source(NamedTuple):
    """A trajectory: the seed of its episode, or its number in a log; and its reward."""

    episode: int
    reward: float
    steps: int


@dataclass(frozen=True)
class Adapted:
    """What is known of an application, and the episodes that it is known from."""

    application: str
    settings: PodScalingSettings
    bundle: Bundle
    found: Adaptation
    sources: tuple[Source, ...]
    episodes: dict[str, tuple[EpisodeResult, ...]]  # of AWARE and of rules, on the same seeds
    tuned: FineTuned | None = None

    @property
    def parameters(self) -> dict[str, float]:
        """Of a request, and of a pod."""
        app = blank_application()
        write_application(self.found.known.estimates, math.inf, app)
        return {
            "cpu_ms": round(1000 * app[CPU_S], 4),
            "io_ms": round(1000 * app[IO_S], 4),
            "idle_mib": round(app[MEMORY_MIB], 3),
            "request_mib": round(app[REQUEST_MIB], 4),
        }

    @property
    def lines(self) -> list[str]:
        """Sentences on the application and on the fine-tuning."""
        own = self.parameters
        found = [
            f"{self.application}: a request takes {own['cpu_ms']:.3g} ms of CPU and "
            f"{own['io_ms']:.3g} ms of I/O, a pod {own['idle_mib']:.0f} MiB and "
            f"{own['request_mib']:.2g} MiB a request; known from "
            f"{counted(len(self.found.best), 'episode')}"
        ]
        if self.tuned is not None:
            difference = self.tuned.difference
            low, high = difference.interval.low, difference.interval.high
            found.append(
                f"fine-tuned in {counted(len(self.tuned.explored), 'episode')}: reward "
                f"{difference.mean:+.4f} ({low:+.4f} to {high:+.4f}) in "
                f"{counted(len(self.tuned.after), 'further episode')}; "
                f"{'kept' if self.tuned.kept else 'not kept'}"
            )
        return found

    def episode_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and the rewards of each episode."""
        rewards = [[result.reward for result in own] for own in self.episodes.values()]
        rows = [
            [str(number), *(f"{reward:.4f}" for reward in row)]
            for number, row in enumerate(zip(*rewards, strict=True), 1)
        ]
        return ["episode", *self.episodes], rows

    def policy_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and mean metrics of each policy."""
        shown = [metric for metric in EPISODE_METRICS if metric.name in _SHOWN]
        rows = [
            [name, *(f"{own[metric.name]:.4g}" for metric in shown)]
            for name, own in self.means().items()
        ]
        return ["policy", *(metric.title for metric in shown)], rows

    def means(self) -> dict[str, dict[str, float]]:
        """Mean metrics by policy."""
        return {
            name: {
                metric.name: sum(map(metric.of, own)) / len(own)
                for metric in EPISODE_METRICS
                if metric.name in _SHOWN
            }
            for name, own in self.episodes.items()
        }

    def service_request(self) -> dict[str, Any]:
        """Body of POST /v1/aware/memory, which gives the service what is known.

        A fine-tuned bundle has the same estimates and encoder, so either version may serve it.
        """
        policy, learned = self.found.policy, self.found.learned()
        memory, episodes = {policy.memory_format: self.found.known.packed().tolist()}, None
        if kind := policy.embedding_format:
            memory[kind] = learned.memory.tolist()
            episodes = {"format": kind, "numbers": learned.episodes.tolist()}
        is_tuned = self.tuned is not None and self.tuned.kept
        return {
            "tenant": tenant_of(self.application),
            "version": None if is_tuned else self.bundle.version,
            "memory": memory,
            "episodes": episodes,
        }

    def record(self) -> dict[str, Any]:
        """What `application.json` has."""
        known = self.found.known
        return {
            "system": "aware",
            "application": self.application,
            "bundle": {"name": self.bundle.name, "version": self.bundle.version},
            "memory_format": self.found.policy.memory_format,
            "parameters": self.parameters,
            "estimates": known.estimates.tolist(),
            "embedding": known.embedding.tolist(),
            "trajectories": [source._asdict() for source in self.sources],
            "policies": self.means(),
            "fine_tuning": None if self.tuned is None else _tuning_record(self.tuned),
            "service": self.service_request(),
        }


def _tuning_record(tuned: FineTuned) -> dict[str, Any]:
    difference = tuned.difference
    return {
        "episodes": len(tuned.explored),
        "judged": len(tuned.after),
        "difference": difference.mean,
        "difference_ci95": interval_ends(difference.interval),
        "kept": tuned.kept,
    }


def by_episodes(bundle: Bundle, settings: PodScalingSettings, episodes: int) -> Adapted:
    """Get to know the application of `settings`, and run rules on the same seeds."""
    if not 1 <= episodes <= MOST_EPISODES:
        raise InputError(f"--episodes is {episodes}; expected 1 to {MOST_EPISODES:,}")
    setup = single_application(settings)
    found = Adaptation.new(AwarePolicy.from_bundle(bundle))
    seeds = range(FIRST_SEED, FIRST_SEED + episodes)
    own = tuple(found.run_episode(settings, setup, seed) for seed in seeds)
    rivals = {
        name: tuple(run(name, settings, setup, seed) for seed in seeds) for name in (RULE, *RULES)
    }
    return Adapted(
        setup.applications[0].name,
        settings,
        bundle,
        found,
        _best_sources(found, [Source(e.seed, e.reward, len(e.rewards)) for e in own]),
        {bundle.name: own, **rivals},
    )


def by_log(
    bundle: Bundle, settings: PodScalingSettings, path: Path, application: str | None
) -> Adapted:
    """Take estimates and embedding from a log alone; nothing is simulated."""
    name, episodes = read_log(path, settings)
    if application not in (None, name):
        raise InputError(f"{path} is a log of {name!r}; expected {application!r}")
    policy = AwarePolicy.from_bundle(bundle)
    found = Adaptation.of_log(policy, episodes, constants_of(settings))
    sources = [Source(n, each.reward, len(each.rewards)) for n, each in enumerate(episodes)]
    return Adapted(name, settings, bundle, found, _best_sources(found, sources), {})


def _best_sources(found: Adaptation, sources: Sequence[Source]) -> tuple[Source, ...]:
    """Those whose trajectories are used, the best first."""
    ordered = sorted(sources, key=lambda source: -source.reward)
    return tuple(ordered[: len(found.best)])


def tune(adapted: Adapted) -> Adapted:
    """The same with weights that were fine-tuned on the application."""
    from loadmaster.platform.systems.aware.fine_tuning import FineTuning, fine_tune

    settings, setup = adapted.settings, single_application(adapted.settings)
    return replace(adapted, tuned=fine_tune(adapted.found, settings, setup, FineTuning(), JUDGED))


def record_log(settings: PodScalingSettings, rule: str, episodes: int, path: Path) -> list[float]:
    """Write episodes under a rule as transitions; returns their rewards."""
    if rule not in BASELINES:
        raise unknown_name("rule", rule, BASELINES)
    if not 1 <= episodes <= MOST_EPISODES:
        raise InputError(f"--episodes is {episodes}; expected 1 to {MOST_EPISODES:,}")
    seeds = range(FIRST_SEED, FIRST_SEED + episodes)
    return write_log(path, settings, single_application(settings), rule, seeds)


def single_application(settings: PodScalingSettings) -> Setup:
    setup = build_setup(settings)
    if (count := len(setup.applications)) != 1:
        raise InputError(
            f"--application {settings.application} is {count:,} applications; expected one, as "
            "test:7 or webServe+S3Read"
        )
    return setup


def write_adapted(adapted: Adapted, folder: Path) -> list[str]:
    """Write `application.json`, and a bundle of weights that were kept; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / APPLICATION_FILE) as file:
        file.write(json.dumps(adapted.record(), indent=2) + "\n")
    if adapted.tuned is None or not adapted.tuned.kept:
        return [APPLICATION_FILE]
    source, policy = adapted.bundle, adapted.tuned.policy
    save_bundle(
        folder / BUNDLE_FOLDER,
        name=folder_name_of([source.name, adapted.application]),
        system=source.system,
        network=source.network,
        weights=policy.network.state_dict(),
        trained={
            **source.trained,
            "fine_tuned": {
                "application": adapted.application,
                "from": source.version,
                "episodes": len(adapted.tuned.explored),
            },
        },
        results={"fine_tuning": _tuning_record(adapted.tuned)},
        replace=True,
    )
    return [APPLICATION_FILE, BUNDLE_FOLDER]


class AdaptationCommand(NamedTuple):
    """What `loadmaster adapt` calls."""

    by_episodes: Callable[[Bundle, PodScalingSettings, int], Adapted]
    by_log: Callable[[Bundle, PodScalingSettings, Path, str | None], Adapted]
    tune: Callable[[Adapted], Adapted]
    record_log: Callable[[PodScalingSettings, str, int, Path], list[float]]
    write: Callable[[Adapted, Path], list[str]]


ADAPTATION = AdaptationCommand(by_episodes, by_log, tune, record_log, write_adapted)
