"""Compare policies that ran the same seeds: figures, ranking and paired differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings
from loadmaster.models.policy import ExplainedDecision
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup, Learned
from loadmaster.platform.evaluation.statistics import (
    Difference,
    Share,
    Summary,
    interval_ends,
    paired_difference,
    rounded,
    share_closed,
    summarise,
)
from loadmaster.platform.systems.bundle_ref import BundleRef
from loadmaster.serving.policies.comparison import ComparisonResult, PolicyScore

OPTIMUM = "optimal"
MOST_LINES = 12  # in one chart
FEW_SEEDS = 5  # below it, intervals are flagged: 95% intervals hold less often than they should


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
    closed: dict[str, Share]  # policy -> of the gap to the best reference; where gaps mean nothing
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
    episodes: adapters.Episodes,
    *,
    learned: Learned | None = None,
    warnings: Sequence[str] = (),
    explanations: Mapping[str, Sequence[ExplainedDecision]] | None = None,
) -> Comparison:
    """Measure the episodes of every policy and compare the figures."""
    measured = {
        policy: np.array([[metric.of(result) for result in results] for metric in setup.metrics])
        for policy, results in episodes.items()
    }
    return compare_values(
        adapter, setup, seeds, measured,
        learned=learned, warnings=warnings, explanations=explanations,
    )  # fmt: skip


def compare_values(
    adapter: EnvironmentAdapter,
    setup: EvaluationSetup,
    seeds: Sequence[int],
    measured: Mapping[str, NDArray[np.float64]],
    *,
    learned: Learned | None = None,
    warnings: Sequence[str] = (),
    explanations: Mapping[str, Sequence[ExplainedDecision]] | None = None,
) -> Comparison:
    """Rank the policies and compute their differences from the best baseline.

    `measured`: policy -> (metrics, seeds).
    """
    primary = setup.metrics[0]
    summaries = {
        policy: tuple(summarise(row) for row in values) for policy, values in measured.items()
    }
    order = sorted(measured, key=lambda policy: primary.rank(summaries[policy][0].mean))
    rivals, bounds = set(adapter.baselines) - setup.oracles, setup.oracles | {OPTIMUM}
    best = next((policy for policy in order if policy in rivals), None)
    bound = next((p for p in order if p in bounds and p in adapter.references), None)
    differences, gaps, closed = {}, {}, {}
    for policy in order:
        own = measured[policy][0]
        if best is not None and policy != best:
            differences[policy] = paired_difference(own, measured[best][0])
            if bound is not None and policy not in bounds and not primary.relative:
                closed[policy] = share_closed(bound, own, measured[best][0], measured[bound][0])
        if OPTIMUM in measured and policy != OPTIMUM and primary.relative:
            optimum = measured[OPTIMUM][0]
            gaps[policy] = summarise(100 * primary.sign * (own - optimum) / np.abs(optimum))
    return Comparison(
        adapter=adapter,
        setup=setup,
        seeds=tuple(seeds),
        values={policy: measured[policy] for policy in order},
        summaries={policy: summaries[policy] for policy in order},
        best_baseline=best,
        differences=differences,
        gaps=gaps,
        closed=closed,
        notes=(*setup.notes, *adapters.learned_notes(learned or {}), *warnings),
        learned=learned or {},
        explanations=explanations or {},
    )


def compare_bundles(
    candidate: BundleRef, serving: BundleRef, environment: Settings, seeds: Sequence[int]
) -> ComparisonResult:
    """Run two bundles on the same seeds of an environment; the result goes to verdict.json.

    `better` requires that the 95% interval of the difference excludes 0.
    """
    adapter = adapters.find_adapter(serving.system.name)
    settings = adapter.settings(environment.model_dump(mode="json"))
    wanted = [str(bundle.folder.absolute()) for bundle in (candidate, serving)]
    names, learned = adapters.choose_learned(adapter, wanted, serving.system, settings)
    setup = adapter.prepare(settings)
    episodes = adapters.run_episodes(setup, learned, names, seeds)
    comparison = compare(adapter, setup, seeds, episodes, learned=learned)
    ours, theirs = names
    metric = comparison.primary
    difference = comparison.difference(ours, theirs, metric)
    lower = metric.better == "lower"
    percent = difference.percent if metric.relative else math.nan
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
        difference=rounded(difference.mean),
        difference_percent=rounded(percent),
        ci95=interval_ends(difference.of(metric)[1]),
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
