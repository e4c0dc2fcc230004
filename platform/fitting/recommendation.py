"""What to use for a trace's jobs: the fine-tuned policy, the shipped one, or a tuned rule."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.evaluation.report import (
    bounds_text,
    decimals,
    figure_text,
    marked,
    notes,
    title,
)
from loadmaster.platform.evaluation.statistics import Difference

SHOWN_RULES = 3  # in the short table


@dataclass(frozen=True)
class Recommendation:
    """The policy to use and why; `parameters` of a tuned rule in words."""

    policy: str
    kind: Literal["fitted", "shipped", "rule"]
    parameters: str
    reason: str

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        parameters = f" ({self.parameters})" if self.parameters else ""
        return f"Use {self.policy}{parameters}: {self.reason}."


def recommend(comparison: Comparison, shipped: str, fitted: str) -> Recommendation:
    """A learned policy only if the paired 95% interval puts it ahead of the best rule.

    The best rule is chosen on the same sequences, which favours it. Of two learned policies that
    are ahead, the fine-tuned one unless the interval puts the shipped one ahead of it.
    """
    rule = comparison.best_baseline
    assert rule is not None
    ahead = [name for name in (fitted, shipped) if is_ahead(comparison, name, rule)]
    if len(ahead) == 2 and is_ahead(comparison, shipped, fitted):
        ahead.remove(fitted)
    against = {name: difference_text(comparison, name, rule) for name in (fitted, shipped)}
    if ahead:
        name = ahead[0]
        reason = f"{against[name]} against {rule}, the best rule"
        return Recommendation(name, "fitted" if name == fitted else "shipped", "", reason)
    reason = (
        f"no learned policy is ahead of it by the 95% interval ({fitted} {against[fitted]}, "
        f"{shipped} {against[shipped]})"
    )
    parameters = comparison.setup.parameters.get(rule, "")
    return Recommendation(rule, "rule", parameters, reason)


def is_ahead(comparison: Comparison, policy: str, reference: str) -> bool:
    """Whether the paired interval of the primary metric excludes 0 on the better side."""
    metric = comparison.primary
    interval = comparison.difference(policy, reference, metric).interval
    return interval.high < 0 if metric.better == "lower" else interval.low > 0


def difference_text(comparison: Comparison, policy: str, reference: str) -> str:
    """The paired difference in the primary metric, with its interval."""
    found: Difference = comparison.difference(policy, reference, comparison.primary)
    value, ends = found.of(comparison.primary)
    form, unit = ("+.1f", "%") if comparison.primary.relative else ("+.3f", "")
    return f"{value:{form}}{unit}{bounds_text(ends, form, unit)}"


def table_rows(comparison: Comparison, policies: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Policy, mean with its interval, and the difference from the best rule."""
    metric, rule = comparison.primary, comparison.best_baseline
    digits = decimals(metric, [summary[0].mean for summary in comparison.summaries.values()])
    rows = []
    for policy in policies:
        summary = comparison.summaries[policy][0]
        mean = figure_text(summary.mean, digits)
        mean += bounds_text(summary.interval, f",.{digits}f")
        against = "best rule" if policy == rule else difference_text(comparison, policy, rule or "")
        rows.append((marked(comparison, policy), mean, against))
    return rows


def short_list(comparison: Comparison) -> tuple[str, ...]:
    """The learned policies and the best rules, in the order of the comparison."""
    rules = [
        name
        for name in comparison.policies
        if name not in comparison.learned and name not in comparison.oracles
    ]
    kept = {*comparison.learned, *rules[:SHOWN_RULES]}
    return tuple(name for name in comparison.policies if name in kept)


def headings(comparison: Comparison) -> tuple[str, str, str]:
    return "policy", f"{comparison.primary.title} [95%]", "against the best rule [95%]"


def markdown(comparison: Comparison, found: Recommendation, facts: Mapping[str, str]) -> str:
    """report.md: the recommendation, facts of the fit, and a table of all policies."""
    rows = [headings(comparison), ("---", "---:", "---:")]
    rows += table_rows(comparison, comparison.policies)
    lines = ["# Which scheduler for these jobs", "", f"**{found.sentence}**", ""]
    lines += [f"- {name}: {text}" for name, text in facts.items()]
    lines += ["", f"## {title(comparison)}", ""]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", *(f"{note}\n" for note in notes(comparison) if note)]
    return "\n".join(lines).rstrip() + "\n"
