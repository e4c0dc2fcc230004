"""The verdict: every policy's figures, and how far each is from the best baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup
from loadmaster.platform.evaluation.learned import as_records
from loadmaster.platform.evaluation.run import Episodes
from loadmaster.platform.evaluation.statistics import (
    Difference,
    Interval,
    Summary,
    paired_difference,
    summarise,
)
from loadmaster.platform.systems.bundle_ref import BundleRef
from loadmaster.platform.systems.policies import Explanation

OPTIMUM = "optimal"
MOST_LINES = 12  # in one chart


@dataclass(frozen=True)
class Comparison:
    """Policies best first, by the primary metric."""

    subject: EnvironmentAdapter
    trial: EvaluationSetup
    seeds: tuple[int, ...]
    values: dict[str, NDArray[np.float64]]  # policy -> (metrics, seeds)
    summaries: dict[str, tuple[Summary, ...]]  # policy -> one per metric
    best_baseline: str | None  # of those that are no oracles; None: none took part
    differences: dict[str, Difference]  # policy -> from the best baseline, primary metric
    gaps: dict[str, Summary]  # policy -> percent away from the optimum; empty if it did not run
    learned: Mapping[str, BundleRef] = field(default_factory=dict)  # the bundles among the policies
    explanations: Mapping[str, Sequence[Explanation]] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.trial.metrics

    @property
    def primary(self) -> Metric:
        return self.trial.metrics[0]

    def difference(self, policy: str, reference: str, metric: Metric) -> Difference:
        """Of any two that took part, in any metric, paired by seed."""
        place = self.metrics.index(metric)
        return paired_difference(self.values[policy][place], self.values[reference][place])

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def oracles(self) -> tuple[str, ...]:
        """Those that know what no scheduler can know; nobody has to beat them."""
        return tuple(policy for policy in self.values if policy in self.trial.oracles)

    @property
    def representatives(self) -> tuple[str, ...]:
        """The best of each family, where there are too many policies to draw a line for each."""
        if len(self.values) <= MOST_LINES:
            return self.policies
        first: dict[str, str] = {}
        for policy in self.values:
            first.setdefault(self.subject.families.get(policy, policy), policy)
        return tuple(first.values())


def compare(
    subject: EnvironmentAdapter, trial: EvaluationSetup, seeds: Sequence[int], episodes: Episodes
) -> Comparison:
    """Judge the episodes, one per policy and seed."""
    sign = -1.0 if trial.metrics[0].better == "higher" else 1.0
    measured = {
        policy: np.array([[metric.of(result) for result in results] for metric in trial.metrics])
        for policy, results in episodes.items()
    }
    summaries = {
        policy: tuple(summarise(row) for row in values) for policy, values in measured.items()
    }

    def rank(policy: str) -> float:
        mean = summaries[policy][0].mean
        return math.inf if math.isnan(mean) else sign * mean

    order = sorted(measured, key=rank)
    rivals = set(subject.baselines) - trial.oracles
    baselines = [policy for policy in order if policy in rivals]
    best = baselines[0] if baselines else None
    differences, gaps = {}, {}
    for policy in order:
        if best is not None and policy != best:
            differences[policy] = paired_difference(measured[policy][0], measured[best][0])
        if OPTIMUM in measured and policy != OPTIMUM:
            optimum = measured[OPTIMUM][0]
            gaps[policy] = summarise(100 * sign * (measured[policy][0] - optimum) / np.abs(optimum))
    return Comparison(
        subject=subject,
        trial=trial,
        seeds=tuple(seeds),
        values={policy: measured[policy] for policy in order},
        summaries={policy: summaries[policy] for policy in order},
        best_baseline=best,
        differences=differences,
        gaps=gaps,
    )


def as_json(comparison: Comparison, files: Sequence[str]) -> dict[str, Any]:
    """The comparison for scripts. Keys are added over time, never renamed."""
    record: dict[str, Any] = {
        "environment": comparison.subject.environment,
        "workload": comparison.trial.workload,
        "conditions": comparison.trial.conditions,
        "seeds": list(comparison.seeds),
        "settings": comparison.trial.settings.model_dump(mode="json"),
        "metrics": {
            metric.name: {"unit": metric.unit, "better": metric.better}
            for metric in comparison.metrics
        },
        "policies": {
            policy: {
                metric.name: _summary(summary)
                for metric, summary in zip(comparison.metrics, summaries, strict=True)
            }
            for policy, summaries in comparison.summaries.items()
        },
        **({"oracles": list(comparison.oracles)} if comparison.oracles else {}),
        "best_baseline": comparison.best_baseline,
        "differences": {
            policy: {"metric": comparison.primary.name, **_difference(difference)}
            for policy, difference in comparison.differences.items()
        },
    }
    if comparison.gaps:
        record["optimality_gap_percent"] = {
            policy: _summary(gap) for policy, gap in comparison.gaps.items()
        }
    record["notes"] = list(comparison.trial.notes)
    record["parameters"] = {
        policy: text
        for policy, text in comparison.trial.parameters.items()
        if policy in comparison.values
    }
    if comparison.learned:
        record["learned"] = as_records(comparison.learned)
        record["learned_differences"] = _learned_differences(comparison)
    if comparison.explanations:
        record["explanations"] = {
            policy: [explanation.record for explanation in explanations]
            for policy, explanations in comparison.explanations.items()
        }
    record["files"] = list(files)
    return record


def _learned_differences(comparison: Comparison) -> dict[str, Any]:
    """Of each learned policy, from the best baseline and from the first one named: all metrics."""
    first = next(iter(comparison.learned))
    references = (comparison.best_baseline, first)
    return {
        policy: {
            reference: {
                metric.name: _difference(comparison.difference(policy, reference, metric))
                for metric in comparison.metrics
            }
            for reference in references
            if reference is not None and reference != policy
        }
        for policy in comparison.learned
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "mean": _number(difference.mean),
        "ci95": _ends(difference.interval),
        "percent": _number(difference.percent),
        "percent_ci95": _ends(difference.percent_interval),
        "excludes_zero": difference.interval.excludes_zero,
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "mean": _number(summary.mean),
        "iqm": _number(summary.iqm),
        "ci95": _ends(summary.interval),
    }


def _ends(interval: Interval) -> list[float | None]:
    return [_number(interval.low), _number(interval.high)]


def _number(value: float) -> float | None:
    """JSON knows no nan; and digits beyond the microsecond say nothing."""
    return round(value, 6) if math.isfinite(value) else None
