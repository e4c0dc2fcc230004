"""Evaluation of a sweep: the last policy of every trial on the same seeds, by searched settings.

Trials that differ in their training seed alone are one group. Its figures are means over training
seeds and episodes; its intervals account for both.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Measure
from loadmaster.models.manifest import MANIFEST_FILE
from loadmaster.models.remote_bundle import fetch_bundle
from loadmaster.models.storage import Location, Place
from loadmaster.platform.evaluation.adapters import EvaluationSetup, find_adapter
from loadmaster.platform.evaluation.statistics import Interval, crossed_mean
from loadmaster.platform.sweeps.folder import TUNE, SweepFolder
from loadmaster.platform.sweeps.records import TRIALS
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.space import Dimension, in_words, nested
from loadmaster.platform.sweeps.trial import POLICY
from loadmaster.platform.systems.bundle_ref import BundleRef, find_policy
from loadmaster.platform.systems.policies import TimedPolicy
from loadmaster.platform.training.config import merged

SEED = "seed"  # the setting in which the trials of a group differ
TIMED = 50  # decisions
TRAINING_S = Measure("training_s", "training", "s")
DECISION_MS = Measure("decision_ms", "processor time of a decision", "ms")

Values = NDArray[np.float64]  # (trials, seeds); figures of a trial: (trials, 1)


@dataclass(frozen=True)
class TrialPolicy:
    """The last policy of a trial."""

    trial: str
    searched: Mapping[str, Any]  # drawn values, by setting
    bundle: BundleRef
    environment: str  # in which it is evaluated: settings as JSON
    training_s: float  # nan if unknown


@dataclass(frozen=True)
class Figure:
    """Mean of a group in one measure, and its difference from the first group."""

    mean: float
    interval: Interval
    difference: float
    difference_interval: Interval


@dataclass(frozen=True)
class Group:
    """Trials that differ in their training seed alone."""

    searched: Mapping[str, Any]  # without the training seed
    trials: tuple[str, ...]
    seeds: tuple[Any, ...]  # of the trainings
    values: Mapping[str, Values]  # by measure

    @property
    def label(self) -> str:
        return ", ".join(in_words(value) for value in self.searched.values())


@dataclass(frozen=True)
class SweepEvaluation:
    """Results of all groups, in the order of the sweep file."""

    sweep: Sweep
    seeds: tuple[int, ...]  # of the episodes
    measures: tuple[Measure, ...]  # the primary one first
    groups: tuple[Group, ...]

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The searched settings but the training seed."""
        return tuple(d for d in self.sweep.space.dimensions if d.name != SEED)

    def figure(self, group: Group, measure: Measure) -> Figure:
        """Differences are paired by training seed and episode."""
        first, own = self.groups[0], group.values[measure.name]
        mean, interval = crossed_mean(own)
        both = [seed for seed in group.seeds if seed in first.seeds]
        if not both:
            return Figure(mean, interval, math.nan, Interval(math.nan, math.nan))
        ours = own[[group.seeds.index(seed) for seed in both]]
        theirs = first.values[measure.name][[first.seeds.index(seed) for seed in both]]
        return Figure(mean, interval, *crossed_mean(ours - theirs))


def policies_of(
    folder: SweepFolder, sweep: Sweep, given: Mapping[str, Any]
) -> tuple[TrialPolicy, ...]:
    """The last policy of each trial of a sweep.

    Environment settings that the sweep searches hold in the trial's evaluation too; `given` ones go
    before.
    """
    seconds, adapter = _training_seconds(folder.path), find_adapter(sweep.system.name)
    found = []
    for trial in sorted(_entries(folder.place / TUNE, r"trial-\d+")):
        place = _last_policy(folder.place / TUNE / trial)
        if place is None:
            continue
        bundle = find_policy(str(fetch_bundle(place) if isinstance(place, Location) else place))
        searched = bundle.manifest.trained.get("searched")
        if not isinstance(searched, dict) or set(searched) != {
            dimension.name for dimension in sweep.space.dimensions
        }:
            raise InputError(f"{place} has no searched settings; expected a trial of this sweep")
        own = nested(sweep.space.assignments(searched)).get("environment", {})
        environment = adapter.settings(merged(own, given)).model_dump(mode="json")
        found.append(
            TrialPolicy(
                trial, searched, bundle, json.dumps(environment), seconds.get(trial, math.nan)
            )
        )
    if not found:
        raise InputError(
            f"the sweep {str(folder.place)!r} has no policies yet; expected a validated trial"
        )
    return tuple(found)


def _last_policy(trial: Place) -> Place | None:
    """The bundle in the last checkpoint that has one."""
    for name in sorted(_entries(trial, r"checkpoint_\d+"), reverse=True):
        if MANIFEST_FILE in _entries(trial / name / POLICY, ".*"):
            return trial / name / POLICY
    return None


def _entries(place: Place, pattern: str) -> set[str]:
    if isinstance(place, Location):
        names = place.entries()
    else:
        names = {entry.name for entry in place.glob("*")}
    return {name for name in names if re.fullmatch(pattern, name)}


def _training_seconds(folder: Path) -> dict[str, float]:
    """Seconds of each trial, as far as the sweep has ended."""
    if not (folder / TRIALS).is_file():
        return {}
    with (folder / TRIALS).open(encoding="utf-8", newline="") as file:
        return {row["trial"]: float(row["seconds"]) for row in csv.DictReader(file)}


@cache
def _setup(system: str, environment: str) -> EvaluationSetup:
    adapter = find_adapter(system)
    return adapter.prepare(adapter.settings(json.loads(environment)))


@cache
def _policy(folder: str) -> Any:
    """The policy of a bundle; each process decides with one thread."""
    import torch

    torch.set_num_threads(1)
    return find_policy(folder).policy


def _run(system: str, environment: str, folder: str, seed: int) -> dict[str, float]:
    """Metrics of an episode, by name."""
    setup = _setup(system, environment)
    result = _policy(folder).run(setup.settings, seed, setup.bank)
    return {metric.name: metric.of(result) for metric in setup.metrics}


def evaluate_trials(
    sweep: Sweep,
    policies: Sequence[TrialPolicy],
    seeds: Sequence[int],
    workers: int,
    on_episode: Callable[[], None] = lambda: None,
) -> SweepEvaluation:
    """Run every policy on every seed in processes, since networks in torch hold the GIL."""
    work = [
        (sweep.system.name, own.environment, str(own.bundle.folder), seed)
        for own in policies
        for seed in seeds
    ]
    episodes: list[dict[str, float]] = [{}] * len(work)
    # The first episode runs alone: it compiles, and invalid input fails before the rest starts.
    alone = len(work) if workers == 1 else 1
    for place in range(alone):
        episodes[place] = _run(*work[place])
        on_episode()
    if len(work) > alone:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            running = {
                processes.submit(_run, *work[place]): place for place in range(alone, len(work))
            }
            try:
                for done in as_completed(running):
                    episodes[running[done]] = done.result()
                    on_episode()
            except BaseException:
                processes.shutdown(wait=False, cancel_futures=True)
                raise
    first = _setup(sweep.system.name, policies[0].environment)
    metrics = [m for m in first.metrics if all(m.name in episode for episode in episodes)]
    values = {
        metric.name: np.array([episode[metric.name] for episode in episodes]).reshape(
            len(policies), len(seeds)
        )
        for metric in metrics
    }
    more = {
        DECISION_MS: [1000 * _decision_s(sweep, own, seeds[0]) for own in policies],
        TRAINING_S: [own.training_s for own in policies],
    }
    known = [measure for measure in more if np.isfinite(more[measure]).all()]
    values |= {measure.name: np.array(more[measure])[:, None] for measure in known}
    groups = _grouped(sweep, policies, values)
    return SweepEvaluation(sweep, tuple(seeds), (*metrics, *known), groups)


def _decision_s(sweep: Sweep, own: TrialPolicy, seed: int) -> float:
    """Processor time of a decision, measured alone; nan for policies that are not timed."""
    policy = _policy(str(own.bundle.folder))
    if not isinstance(policy, TimedPolicy):
        return math.nan
    setup = _setup(sweep.system.name, own.environment)
    return policy.decision_s(setup.settings, seed, setup.bank, TIMED)


def _grouped(
    sweep: Sweep, policies: Sequence[TrialPolicy], values: Mapping[str, Values]
) -> tuple[Group, ...]:
    """Groups in the order of the file's values."""
    places: dict[str, list[int]] = {}
    for place, own in enumerate(policies):
        places.setdefault(json.dumps(_without_seed(own.searched)), []).append(place)

    def order(members: Iterable[int]) -> tuple[Any, ...]:
        searched = policies[min(members)].searched
        return tuple(
            searched[d.name] if d.numeric else d.arguments.index(searched[d.name])
            for d in sweep.space.dimensions
            if d.name != SEED
        )

    return tuple(
        Group(
            searched=_without_seed(policies[members[0]].searched),
            trials=tuple(policies[place].trial for place in members),
            seeds=tuple(
                policies[place].searched.get(SEED, number) for number, place in enumerate(members)
            ),
            values={name: table[members] for name, table in values.items()},
        )
        for members in sorted(places.values(), key=order)
    )


def _without_seed(searched: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in searched.items() if name != SEED}
