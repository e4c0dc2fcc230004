"""Output of a matrix: a table in the terminal, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from loadmaster.envs.errors import counted
from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation.comparison import FEW_SEEDS
from loadmaster.platform.evaluation.files import (
    difference_record,
    episode_table,
    summary_record,
    summary_table,
    write_json,
)
from loadmaster.platform.evaluation.matrix import MatrixResult, MatrixRow, MatrixSummary
from loadmaster.platform.evaluation.report import (
    bounds_text,
    decimals,
    difference_form,
    difference_unit,
    figure_text,
)
from loadmaster.platform.evaluation.statistics import Difference, Interval

if TYPE_CHECKING:  # slow to import, and needed by the tables only
    import pandas as pd

MATRIX_CSV, EPISODES_CSV, MATRIX_JSON, MATRIX_PNG = (
    "matrix.csv", "episodes.csv", "matrix.json", "matrix.png",
)  # fmt: skip
STYLES = {"win": "green", "tie": "dim", "loss": "red"}


def title(result: MatrixResult) -> str:
    """The judged policies, the number of settings and the sequences."""
    names = ", ".join(result.policies)
    counts = sorted({len(row.entry.seeds) for row in result.rows})
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    first = min(row.entry.seeds[0] for row in result.rows)
    settings = counted(len(result.rows), "setting")
    return f"{names} in {settings}: {several} sequences each, from seed {first}"


def result_table(result: MatrixResult) -> Table:
    """A row a setting: the policy, the best rule and the paired differences."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    several = len(result.policies) > 1
    table.add_column("setting", no_wrap=True)
    if several:
        table.add_column("policy", no_wrap=True)
    table.add_column("its mean", justify="right", no_wrap=True)
    table.add_column("best rule", no_wrap=True)
    table.add_column("its mean", justify="right", no_wrap=True)
    table.add_column("difference [95%]", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("also", no_wrap=True)
    for row in result.rows:
        others = (
            f"{metric.label} {difference_text(found, metric)}"
            for metric, found in row.secondary.items()
        )
        table.add_row(
            row.entry.name,
            *([row.policy] if several else []),
            _mean(row, row.policy),
            row.rule,
            _mean(row, row.rule),
            difference_text(row.difference, row.metric),
            Text(row.outcome, style=STYLES[row.outcome]),
            ", ".join(others),
        )
    return table


def _mean(row: MatrixRow, policy: str) -> str:
    mean = row.summary(policy).mean
    unit = f" {row.metric.unit}" if row.metric.unit else ""
    return f"{figure_text(mean, decimals(row.metric, [mean]))}{unit}"


def difference_text(difference: Difference, metric: Metric) -> str:
    """A difference in percent, or in the metric's unit, with its interval."""
    value, ends = difference.of(metric)
    return _signed(value, ends, metric)


def _signed(value: float, ends: Interval, metric: Metric) -> str:
    if not math.isfinite(value):
        return "-"
    form = difference_form(metric, value)
    return f"{value:{form}}{difference_unit(metric)}{bounds_text(ends, form)}"


def sentences(result: MatrixResult) -> list[str]:
    """The summary, groups, how often each rule is the best, oracles, what did not run, notes."""
    lines = []
    if result.rows:
        lines.append(f"All: {_summary_text(result, result.summary)}")
        lines += [f"{name}: {_summary_text(result, own)}" for name, own in result.groups.items()]
        rules = result.summary.best_rules.items()
        lines.append(f"Best rule: {', '.join(f'{name} {count}' for name, count in rules)}")
        if (hindsight := result.hindsight) is not None:
            lines.append(
                f"Against the rule that is best on the judged sequences themselves: "
                f"{_summary_text(result, hindsight)}"
            )
        if (oracle := result.summary.oracle) is not None:
            overall = _signed(oracle.mean, oracle.interval, result.rows[0].metric)
            lines.append(
                f"Best oracle, which uses what no policy can know: {overall} on average against "
                f"the best rule"
            )
    if result.not_run:
        lines.append(f"Not run: {len(result.not_run)} ({', '.join(result.not_run)})")
    if any(len(row.entry.seeds) < FEW_SEEDS for row in result.rows):
        lines.append(f"fewer than {FEW_SEEDS} seeds: the intervals are unreliable")
    return lines


def _summary_text(result: MatrixResult, summary: MatrixSummary) -> str:
    words = {"win": ("win", "wins"), "tie": ("tie", "ties"), "loss": ("loss", "losses")}
    counts = [f"{n} {words[one][n != 1]}" for one, n in summary.outcomes.items()]
    metric = result.rows[0].metric
    overall = _signed(summary.difference.mean, summary.difference.interval, metric)
    text = f"{', '.join(counts)}; {overall} on average against the best rule"
    known = {m.name: m for row in result.rows for m in row.secondary}
    for name, own in summary.secondary.items():
        text += f"; {known[name].label} {_signed(own.mean, own.interval, known[name])}"
    return text


def matrix_table(result: MatrixResult) -> pd.DataFrame:
    """One row per setting, policy and shown metric; differences are from the best rule."""
    import pandas as pd

    parts = []
    for row in result.rows:
        shown = [row.metric.name, *(metric.name for metric in row.secondary)]
        own = summary_table(row.comparison, row.rule)
        own = own[own["metric"].isin(shown)].copy()
        judged = (own["policy"] == row.policy) & (own["metric"] == row.metric.name)
        own["best_rule"] = own["policy"] == row.rule
        own["outcome"] = [row.outcome if one else "" for one in judged]
        own.insert(0, "group", row.entry.group)
        own.insert(0, "setting", row.entry.name)
        parts.append(own)
    return pd.concat(parts)


def episode_rows(result: MatrixResult) -> pd.DataFrame:
    """One row per setting, policy and seed, with every metric."""
    import pandas as pd

    parts = {row.entry.name: episode_table(row.comparison) for row in result.rows}
    return pd.concat(parts, names=["setting", None]).reset_index("setting")


def write_everything(result: MatrixResult, scratch: Path, folder: Path) -> list[str]:
    """Write tables, chart and JSON to `scratch`; return their paths in `folder`."""
    from loadmaster.platform.evaluation.charts import save
    from loadmaster.platform.evaluation.matrix_charts import draw_matrix

    if result.rows:
        matrix_table(result).round(6).to_csv(scratch / MATRIX_CSV, index=False)
        episode_rows(result).to_csv(scratch / EPISODES_CSV, index=False)
        save(scratch / MATRIX_PNG, lambda: draw_matrix(result, title(result)))
    return write_json(partial(as_json, result), scratch, folder, MATRIX_JSON)


def as_json(result: MatrixResult, files: Sequence[str]) -> dict[str, Any]:
    """The matrix for scripts. Keys are added over time, never renamed."""
    return {
        "matrix": result.name,
        "purpose": result.purpose,
        "environment": result.adapter.environment,
        "policies": list(result.policies),
        "settings": {row.entry.name: _row_record(row) for row in result.rows},
        "not_run": result.not_run,
        "summary": _summary_record(result.summary) if result.rows else None,
        "hindsight": None if result.hindsight is None else _summary_record(result.hindsight),
        "groups": {name: _summary_record(own) for name, own in result.groups.items()},
        "files": list(files),
    }


def _row_record(row: MatrixRow) -> dict[str, Any]:
    entry, comparison = row.entry, row.comparison
    return {
        "group": entry.group,
        "workload": comparison.setup.workload,
        "conditions": comparison.setup.conditions,
        "settings": entry.settings.model_dump(mode="json", exclude_defaults=True),
        "first_seed": entry.seeds[0],
        "seeds": len(entry.seeds),
        "first_selection_seed": entry.selection[0] if entry.selection else None,
        "selection_seeds": len(entry.selection),
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "policy": row.policy,
        "learned": dict(row.learned),
        "best_rule": row.rule,
        "best_rule_in_hindsight": row.hindsight,
        "parameters": comparison.setup.parameters.get(row.rule, ""),
        "outcome": row.outcome,
        "difference": difference_record(row.difference),
        "secondary": {
            metric.name: difference_record(found) for metric, found in row.secondary.items()
        },
        "best_oracle": row.oracle,
        "oracle_difference": None
        if row.oracle_difference is None
        else difference_record(row.oracle_difference),
        "policies": {
            name: summary_record(found[0]) for name, found in comparison.summaries.items()
        },
        "oracles": list(comparison.oracles),
    }


def _summary_record(summary: MatrixSummary) -> dict[str, Any]:
    return {
        **summary.outcomes,
        "difference": summary_record(summary.difference),
        "secondary": {name: summary_record(own) for name, own in summary.secondary.items()},
        "best_rules": summary.best_rules,
        "oracle": None if summary.oracle is None else summary_record(summary.oracle),
    }
