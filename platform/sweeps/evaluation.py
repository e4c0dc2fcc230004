"""Evaluation of a sweep: the last policy of every trial on the same seeds, by searched settings.

Trials that differ in their training seed alone are one group. Its figures are means over training
seeds and episodes; its intervals account for both. Trials that were trained on a mixture are
evaluated in it: episodes take turns through its settings, in % of a rule on the same episode.
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
from loadmaster.envs.metrics import Measure, Metric
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
from loadmaster.platform.training.mixture import mixed_settings

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
    environments: tuple[str, ...]  # through which its episodes take turns: settings as JSON
    training_s: float  # nan if unknown

    def environment(self, seed: int) -> str:
        return self.environments[seed % len(self.environments)]


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
    settings: tuple[str, ...] = ()  # of a mixture, in words

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The searched settings but the training seed."""
        return tuple(d for d in self.sweep.space.dimensions if d.name != SEED)

    def figure(self, group: Group, measure: Measure, setting: str = "") -> Figure:
        """Differences are paired by training seed and episode; `setting`: its episodes alone."""
        first = self.groups[0]
        own = self._units(group.values[measure.name], setting)
        mean, interval = crossed_mean(own)
        both = [seed for seed in group.seeds if seed in first.seeds]
        if not both:
            return Figure(mean, interval, math.nan, Interval(math.nan, math.nan))
        ours = own[[group.seeds.index(seed) for seed in both]]
        reference = self._units(first.values[measure.name], setting)
        theirs = reference[[first.seeds.index(seed) for seed in both]]
        return Figure(mean, interval, *crossed_mean(ours - theirs))

    def setting(self, seed: int) -> str:
        """The setting of a mixture in which the episode of the seed is."""
        return self.settings[seed % len(self.settings)]

    def _units(self, table: Values, setting: str) -> Values:
        """(trials, units): the units over which intervals are taken.

        A unit of a mixture is the mean of an episode of each setting: settings are given, episodes
        are drawn.
        """
        if not self.settings or table.shape[1] == 1:
            return table
        if setting:
            return table[:, [self.setting(seed) == setting for seed in self.seeds]]
        turns: Values = table.reshape(len(table), -1, len(self.settings)).mean(axis=2)
        return turns


def policies_of(
    folder: SweepFolder, sweep: Sweep, given: Mapping[str, Any]
) -> tuple[TrialPolicy, ...]:
    """The last policy of each trial of a sweep.

    Environment settings that the sweep searches hold in the trial's evaluation too, and so does a
    mixture; `given` ones go before, and replace a mixture.
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
        config: Any = sweep.config(searched)
        if (mixture := getattr(config, "mixture", ())) and not given:
            members = mixed_settings(config.environment, mixture)
        else:
            own = nested(sweep.space.assignments(searched)).get("environment", {})
            members = (adapter.settings(merged(own, given)),)
        environments = tuple(json.dumps(one.model_dump(mode="json")) for one in members)
        found.append(
            TrialPolicy(trial, searched, bundle, environments, seconds.get(trial, math.nan))
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


def _run(
    system: str, environment: str, folder: str, seed: int, rule: str | None
) -> dict[str, float]:
    """Metrics of an episode, by name; with a rule those that have percentages, in % of its own."""
    setup = _setup(system, environment)
    result = _policy(folder).run(setup.settings, seed, setup.bank)
    found = {metric.name: metric.of(result) for metric in setup.metrics}
    if rule is None:
        return found
    whole = _rule_figures(system, environment, rule, seed)
    return {name: 100 * found[name] / whole[name] if whole[name] else math.nan for name in whole}


@cache
def _rule_figures(system: str, environment: str, rule: str, seed: int) -> dict[str, float]:
    """Metrics of a rule's episode, as far as percentages of them mean something."""
    setup = _setup(system, environment)
    result = setup.run(rule, seed)
    return {metric.name: metric.of(result) for metric in setup.metrics if metric.relative}


def evaluate_trials(
    sweep: Sweep,
    policies: Sequence[TrialPolicy],
    seeds: Sequence[int],
    workers: int,
    on_episode: Callable[[], None] = lambda: None,
    rule: str | None = None,
) -> SweepEvaluation:
    """Run every policy on every seed in processes, since networks in torch hold the GIL.

    With a `rule`, metrics are in % of those of the rule on the same seed.
    """
    members = policies[0].environments
    if len(members) > 1 and rule is None:
        raise InputError(
            f"the trials were trained on a mixture of {len(members)} settings, whose scales "
            "differ; expected --against RULE, or --set with one setting"
        )
    if len(seeds) % len(members):
        raise InputError(
            f"--seeds is {len(seeds)}; expected a multiple of {len(members)}, the settings of the "
            "mixture"
        )
    work = [
        (sweep.system.name, own.environment(seed), str(own.bundle.folder), seed, rule)
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
    first = _setup(sweep.system.name, members[0])
    metrics = [
        _measure(m, rule) for m in first.metrics if all(m.name in episode for episode in episodes)
    ]
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
    setups = [_setup(sweep.system.name, one) for one in members]
    words = tuple(f"{setup.workload}, {setup.conditions}" for setup in setups)
    settings = words if len(words) > 1 else ()
    return SweepEvaluation(sweep, tuple(seeds), (*metrics, *known), groups, settings)


def _measure(metric: Metric, rule: str | None) -> Measure:
    if rule is None:
        return metric
    return Measure(metric.name, f"{metric.label} in % of {rule}", "%", better=metric.better)


def _decision_s(sweep: Sweep, own: TrialPolicy, seed: int) -> float:
    """Processor time of a decision, measured alone; nan for policies that are not timed."""
    policy = _policy(str(own.bundle.folder))
    if not isinstance(policy, TimedPolicy):
        return math.nan
    setup = _setup(sweep.system.name, own.environment(seed))
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
