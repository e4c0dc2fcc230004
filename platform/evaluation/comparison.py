"""Compare policies that ran the same seeds: figures, ranking and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings
from loadmaster.platform.evaluation.adapters import (
    EnvironmentAdapter,
    EvaluationSetup,
    Learned,
    choose_learned,
    find_adapter,
    learned_notes,
)
from loadmaster.platform.evaluation.run import Episodes, run_episodes
from loadmaster.platform.evaluation.statistics import (
    FEW_SEEDS,
    Difference,
    Interval,
    Summary,
    paired_difference,
    summarise,
)
from loadmaster.platform.systems.bundle_ref import BundleRef
from loadmaster.platform.systems.policies import ExplainedDecision
from loadmaster.serving.policies.comparison import ComparisonResult, PolicyScore

OPTIMUM = "optimal"
MOST_LINES = 12  # in one chart


@dataclass(frozen=True)
class Comparison:
    """Results of all policies, best first by the primary metric."""

    adapter: EnvironmentAdapter
    setup: EvaluationSetup
    seeds: tuple[int, ...]
    values: dict[str, NDArray[np.float64]]  # policy -> (metrics, seeds)
    summaries: dict[str, tuple[Summary, ...]]  # policy -> one per metric
    best_baseline: str | None  # oracles excluded; None: no baseline took part
    differences: dict[str, Difference]  # policy -> from the best baseline, primary metric
    gaps: dict[str, Summary]  # policy -> percent above the optimum; empty if it did not run
    notes: tuple[str, ...] = ()  # on the workload, on learned policies, warnings
    learned: Learned = field(default_factory=dict)  # the bundles among the policies
    explanations: Mapping[str, Sequence[ExplainedDecision]] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.setup.metrics

    @property
    def primary(self) -> Metric:
        return self.setup.metrics[0]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def oracles(self) -> tuple[str, ...]:
        return tuple(policy for policy in self.values if policy in self.setup.oracles)

    @property
    def few_seeds(self) -> bool:
        """Whether intervals rest on too few seeds to be reliable."""
        return len(self.seeds) < FEW_SEEDS

    @property
    def representatives(self) -> tuple[str, ...]:
        """The best policy of each family, where there are too many to draw a line for each."""
        if len(self.values) <= MOST_LINES:
            return self.policies
        first: dict[str, str] = {}
        for policy in self.values:
            first.setdefault(self.adapter.families.get(policy, policy), policy)
        return tuple(first.values())

    def difference(self, policy: str, reference: str, metric: Metric) -> Difference:
        """Difference of any two policies in any metric, paired by seed."""
        row = self.metrics.index(metric)
        return paired_difference(self.values[policy][row], self.values[reference][row])


def compare(
    adapter: EnvironmentAdapter,
    setup: EvaluationSetup,
    seeds: Sequence[int],
    episodes: Episodes,
    *,
    learned: Learned | None = None,
    warnings: Sequence[str] = (),
    explanations: Mapping[str, Sequence[ExplainedDecision]] | None = None,
) -> Comparison:
    """Rank the policies and compute their differences from the best baseline."""
    sign = -1.0 if setup.metrics[0].better == "higher" else 1.0
    measured = {
        policy: np.array([[metric.of(result) for result in results] for metric in setup.metrics])
        for policy, results in episodes.items()
    }
    summaries = {
        policy: tuple(summarise(row) for row in values) for policy, values in measured.items()
    }

    def rank(policy: str) -> float:
        mean = summaries[policy][0].mean
        return math.inf if math.isnan(mean) else sign * mean

    order = sorted(measured, key=rank)
    rivals = set(adapter.baselines) - setup.oracles
    best = next((policy for policy in order if policy in rivals), None)
    differences, gaps = {}, {}
    for policy in order:
        if best is not None and policy != best:
            differences[policy] = paired_difference(measured[policy][0], measured[best][0])
        if OPTIMUM in measured and policy != OPTIMUM:
            optimum = measured[OPTIMUM][0]
            gaps[policy] = summarise(100 * sign * (measured[policy][0] - optimum) / np.abs(optimum))
    return Comparison(
        adapter=adapter,
        setup=setup,
        seeds=tuple(seeds),
        values={policy: measured[policy] for policy in order},
        summaries={policy: summaries[policy] for policy in order},
        best_baseline=best,
        differences=differences,
        gaps=gaps,
        notes=(*setup.notes, *learned_notes(learned or {}), *warnings),
        learned=learned or {},
        explanations=explanations or {},
    )


def compare_bundles(
    candidate: BundleRef, serving: BundleRef, environment: Settings, seeds: Sequence[int]
) -> ComparisonResult:
    """Run two bundles on the same seeds of an environment; the result goes to verdict.json.

    `better` requires that the 95% interval of the difference excludes 0.
    """
    adapter = find_adapter(serving.system.name)
    settings = adapter.settings(environment.model_dump(mode="json"))
    wanted = [str(bundle.folder.absolute()) for bundle in (candidate, serving)]
    names, learned = choose_learned(adapter, wanted, serving.system, settings)
    setup = adapter.prepare(settings)
    episodes = run_episodes(setup, learned, names, seeds)
    comparison = compare(adapter, setup, seeds, episodes, learned=learned)
    ours, theirs = names
    metric = comparison.primary
    difference = comparison.difference(ours, theirs, metric)
    lower = metric.better == "lower"
    return ComparisonResult(
        system=serving.system.name,
        metric=metric.name,
        unit=metric.unit,
        lower_is_better=lower,
        sequences=len(seeds),
        first_seed=seeds[0],
        environment=settings.model_dump(mode="json", exclude_defaults=True),
        candidate=_policy_score(comparison.summaries[ours][0], candidate),
        serving=_policy_score(comparison.summaries[theirs][0], serving),
        difference_percent=rounded(difference.percent),
        ci95=interval_ends(difference.percent_interval),
        better=difference.interval.high < 0 if lower else difference.interval.low > 0,
    )


def _policy_score(summary: Summary, bundle: BundleRef) -> PolicyScore:
    return PolicyScore(
        name=bundle.manifest.name,
        version=bundle.manifest.version,
        folder=str(bundle.folder.absolute()),
        mean=rounded(summary.mean),
        ci95=interval_ends(summary.interval),
    )


def interval_ends(interval: Interval) -> tuple[float | None, float | None]:
    return rounded(interval.low), rounded(interval.high)


def rounded(value: float) -> float | None:
    """Six decimals; None for nan and infinity, which JSON cannot hold."""
    return round(value, 6) if math.isfinite(value) else None
