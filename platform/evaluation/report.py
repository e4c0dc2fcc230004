"""The comparison as a table that fits the terminal, with a closing sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadmaster.envs.metrics import Metric
from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.evaluation.formatting import (
    among_learned,
    decimals,
    figure_text,
    marked,
    notes,
    title,
    verdict,
)
from loadmaster.platform.evaluation.statistics import Interval

LONG = 15  # rows; a table of more keeps to one line each, if need be with fewer columns


def print_report(comparison: Comparison, console: Console) -> None:
    # A terminal gets lines that fit it; a file or a pipe gets sentences in one piece.
    whole = not console.is_terminal
    console.print(Text(title(comparison), style="bold"), soft_wrap=whole)
    console.print()
    unbounded = console.options.update_width(10_000)
    layouts = list(_layouts(comparison))
    fitting = (t for t in layouts if console.measure(t, options=unbounded).maximum <= console.width)
    console.print(next(fitting, layouts[-1]))
    console.print()
    console.print(Text(verdict(comparison)), soft_wrap=whole)
    for line in among_learned(comparison):
        console.print(Text(line), soft_wrap=whole)
    for line in notes(comparison):
        console.print(Text(line, style="dim"), soft_wrap=whole)


def _layouts(comparison: Comparison) -> Iterator[Table]:
    """The table in ever narrower forms: intervals below their figures, then fewer columns."""
    everything = comparison.metrics
    judged = tuple(metric for metric in everything if metric.better is not None)
    for metrics in (everything, judged):
        yield _table(comparison, metrics, between=" ", gap=2)
    if len(comparison.policies) > LONG:
        yield _table(comparison, judged, between=" ", gap=2, tall=True)
        for count in range(len(judged), 0, -1):
            for iqm in (True, False):
                yield _table(comparison, judged[:count], between=" ", gap=1, tall=True, iqm=iqm)
    for gap in (2, 1):
        yield _table(comparison, judged, between="\n", gap=gap)
    for count in range(len(judged) - 1, 0, -1):
        yield _table(comparison, judged[:count], between="\n", gap=1)


def _table(
    comparison: Comparison,
    metrics: tuple[Metric, ...],
    between: str,
    gap: int,
    tall: bool = False,
    iqm: bool = True,
) -> Table:
    """`between` a figure and its interval stands a space or a new line; `tall` headings have two.

    Where figures have two lines, headings have two as well.
    """
    wide = between == " " and not tall
    split = " " if wide else "\n"  # of a heading
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("policy", no_wrap=True)
    policies = comparison.policies
    columns: list[tuple[str, list[Text]]] = []
    for metric in metrics:
        place = comparison.metrics.index(metric)
        summaries = [comparison.summaries[policy][place] for policy in policies]
        digits = decimals(summary.mean for summary in summaries)
        means = [Text(figure_text(summary.mean, digits)) for summary in summaries]
        if metric is comparison.primary:
            spread = median(s.interval.high - s.interval.low for s in summaries)
            coarse = 0 if spread >= 10 else min(1, digits) if spread >= 1 else digits
            for mean, summary in zip(means, summaries, strict=True):
                _add_interval(mean, summary.interval, f",.{coarse}f", between)
            several = "[95%]" if len(comparison.seeds) > 1 else ""
            columns.append((f"{metric.title}{split}{several}", means))
            if iqm:
                columns.append(("IQM", [Text(figure_text(s.iqm, digits)) for s in summaries]))
        else:
            heading = metric.title if wide else f"{metric.label}\n{metric.unit}"
            columns.append((heading, means))
    if comparison.gaps:
        columns.append((f"above{split}optimal", _gap_cells(comparison, between)))
    if comparison.differences:
        cells = [_difference_cell(comparison, policy, between) for policy in policies]
        reference = f"against {comparison.best_baseline}" if wide else "against best\nbaseline"
        columns.append((reference, cells))
    for heading, _ in columns:
        table.add_column(heading.strip(" "), justify="right", no_wrap=True)
    first = next((policy for policy in policies if policy not in comparison.oracles), None)
    for row, policy in enumerate(policies):
        name = Text(marked(comparison, policy), style="bold" if policy == first else "")
        table.add_row(name, *(cells[row] for _, cells in columns))
    return table


def _gap_cells(comparison: Comparison, between: str) -> list[Text]:
    cells = []
    for policy in comparison.policies:
        cell = Text("")
        if policy in comparison.gaps:
            gap = comparison.gaps[policy]
            cell = Text(f"{figure_text(gap.mean, 1)}%")
            _add_interval(cell, gap.interval, ",.1f", between)
        cells.append(cell)
    return cells


def _difference_cell(comparison: Comparison, policy: str, between: str) -> Text:
    if policy == comparison.best_baseline:
        return Text("best baseline", style="dim")
    difference = comparison.differences[policy]
    if not math.isfinite(difference.percent):
        return Text("-")
    form = "+,.0f" if abs(difference.percent) >= 100 else "+.1f"
    cell = Text(f"{difference.percent:{form}}%")
    _add_interval(cell, difference.percent_interval, form, between)
    if not difference.interval.excludes_zero:
        cell.stylize("dim")
    return cell


def _add_interval(figure: Text, interval: Interval, form: str, between: str) -> None:
    if math.isfinite(interval.low):
        figure.append(f"{between}[{interval.low:{form}}, {interval.high:{form}}]", style="dim")
