"""The comparison in words: titles, figures, and who is best, said plainly."""

from __future__ import annotations

import math
from collections.abc import Iterable

from loadmaster.platform.evaluation.comparison import OPTIMUM, Comparison
from loadmaster.platform.evaluation.statistics import Interval

ORACLE = "*"  # behind the name of one
NAMED = 7  # of the rivals that cannot be told from the best; past it, the first few


def title(comparison: Comparison) -> str:
    return f"{comparison.trial.workload}: {comparison.trial.conditions}; {seed_range(comparison)}"


def seed_range(comparison: Comparison) -> str:
    first, last = comparison.seeds[0], comparison.seeds[-1]
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def marked(comparison: Comparison, policy: str) -> str:
    """Its name, with a mark where it is an oracle."""
    return f"{policy}{ORACLE}" if policy in comparison.trial.oracles else policy


def decimals(values: Iterable[float]) -> int:
    """How many a column of figures needs for its smallest; the same in every row."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    smallest = min(sizes, default=0.0)
    return 2 if smallest < 10 else 1 if smallest < 1000 else 0


def figure_text(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def verdict(comparison: Comparison) -> str:
    """Who is best, by how much, and whether these seeds can tell. Oracles are told of apart."""
    oracles = comparison.oracles
    ranked = [policy for policy in comparison.policies if policy not in (OPTIMUM, *oracles)]
    if not ranked:
        if not oracles:
            return f"{OPTIMUM}: {_score(comparison, OPTIMUM)}."
        lead = "is best of the oracles" if len(oracles) > 1 else "is an oracle"
        return f"{oracles[0]} {lead}: {_score(comparison, oracles[0])}.{_single(comparison)}"
    best, reference = ranked[0], comparison.best_baseline
    text = f"{best}{' is best' if len(ranked) > 1 else ''}: {_score(comparison, best)}"
    if best in comparison.gaps:
        gap = comparison.gaps[best]
        text += f", {gap.mean:.1f}%{_percents(gap.interval)} from optimal"
    if len(ranked) > 1 and reference is not None:
        text += ", " + (
            _lead_of_baseline(comparison, ranked[1:])
            if best == reference
            else _lead_over_baseline(comparison, best, reference)
        )
    return f"{text}.{_best_oracle(comparison)}{_single(comparison)}"


def _single(comparison: Comparison) -> str:
    return " One seed gives no interval; try --seeds 20." if len(comparison.seeds) == 1 else ""


def _best_oracle(comparison: Comparison) -> str:
    """What could be had by whoever knew more; nothing where no oracle took part."""
    if not comparison.oracles:
        return ""
    oracle, reference = comparison.oracles[0], comparison.best_baseline
    text = f" The best oracle, {oracle}, is at {_score(comparison, oracle)}"
    if reference is not None:
        size, interval = _distance(comparison, oracle)
        order = comparison.policies
        side = "ahead of" if order.index(oracle) < order.index(reference) else "behind"
        text += f", {size:.1f}%{_percents(interval)} {side} {reference}"
    return f"{text}."


def among_learned(comparison: Comparison) -> list[str]:
    """Where several learned policies take part, as in an ablation: each beside the first."""
    first, *others = comparison.learned or [""]
    return [
        f"{policy} beside {first}: {_figures_beside(comparison, policy, first)}"
        for policy in others
    ]


def _figures_beside(comparison: Comparison, policy: str, reference: str) -> str:
    told = []
    for metric in [each for each in comparison.metrics if each.better is not None][:2]:
        difference = comparison.difference(policy, reference, metric)
        ends = difference.percent_interval
        between = "" if math.isnan(ends.low) else f" [{ends.low:+.1f}, {ends.high:+.1f}]"
        told.append(f"{metric.label} {difference.percent:+.1f}%{between}")
    return ", ".join(told)


def _lead_of_baseline(comparison: Comparison, others: list[str]) -> str:
    tied = [p for p in others if not comparison.differences[p].interval.excludes_zero]
    if not tied or len(comparison.seeds) == 1:
        size, interval = _distance(comparison, others[0])
        return f"{others[0]} is {size:.1f}% behind{_percents(interval)}"
    size, interval = _distance(comparison, tied[0])
    names = [f"{tied[0]} ({size:.1f}% behind{_percents(interval)})", *tied[1:]]
    if len(names) > NAMED:
        names = [*names[:3], f"{len(names) - 3} more"]
    rivals = _listed(names)
    return f"but {len(comparison.seeds)} seeds do not tell it from {rivals}"


def _lead_over_baseline(comparison: Comparison, best: str, reference: str) -> str:
    size, interval = _distance(comparison, best)
    lead = f"{size:.1f}%{_percents(interval)} ahead of {reference}, the best baseline"
    if comparison.differences[best].interval.excludes_zero or len(comparison.seeds) == 1:
        return lead
    return f"{lead}, but {len(comparison.seeds)} seeds do not tell the two apart"


def _distance(comparison: Comparison, policy: str) -> tuple[float, Interval]:
    """How far `policy` is from the best baseline in percent, and the interval the same way up."""
    difference = comparison.differences[policy]
    ends = difference.percent_interval
    if difference.percent < 0:
        return -difference.percent, Interval(-ends.high, -ends.low)
    return difference.percent, ends


def _percents(interval: Interval) -> str:
    if math.isnan(interval.low):
        return ""
    return f" [{interval.low:.1f}%, {interval.high:.1f}%]"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _score(comparison: Comparison, policy: str) -> str:
    mean = comparison.summaries[policy][0].mean
    metric = comparison.primary
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{metric.label} {figure_text(mean, decimals([mean]))}{unit}"


def notes(comparison: Comparison) -> list[str]:
    """What the figures rest on: who knew too much, the workload, and how policies were tuned."""
    tuned = [
        f"{policy} runs with {text}"
        for policy, text in comparison.trial.parameters.items()
        if policy in comparison.values
    ]
    oracle = f"{ORACLE} an oracle: it knows what no scheduler can, such as how long jobs will run"
    return [*([oracle] if comparison.oracles else []), *comparison.trial.notes, *tuned]
