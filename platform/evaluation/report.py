"""The comparison as text: a table that fits the terminal, sentences and notes."""

import math
from collections.abc import Iterable, Iterator
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadmaster.envs.metrics import Measure, Metric
from loadmaster.platform.evaluation.comparison import OPTIMUM, Comparison
from loadmaster.platform.evaluation.statistics import Interval

ORACLE = "*"  # suffix of an oracle's name
NAMED = 7  # at most so many rivals are named in a sentence
LONG = 15  # rows; a longer table has one line a row, with fewer columns if need be


def print_report(comparison: Comparison, console: Console) -> None:
    # Wrap sentences on a terminal only; a file or a pipe gets them unwrapped.
    whole = not console.is_terminal
    console.print(Text(title(comparison), style="bold"), soft_wrap=whole)
    console.print()
    unbounded = console.options.update_width(10_000)
    layouts = list(_layouts(comparison))
    fitting = (t for t in layouts if console.measure(t, options=unbounded).maximum <= console.width)
    console.print(next(fitting, layouts[-1]))
    console.print()
    for line in (conclusion(comparison), *learned_differences(comparison)):
        console.print(Text(line), soft_wrap=whole)
    for line in notes(comparison):
        console.print(Text(line, style="dim"), soft_wrap=whole)


def _layouts(comparison: Comparison) -> Iterator[Table]:
    """The table in narrower and narrower layouts: intervals on a second line, fewer columns."""
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
    """Build a layout: `between` separates a figure from its interval, a space or a new line.

    Headings take two lines where `tall` is set or figures take two.
    """
    wide = between == " " and not tall
    split = " " if wide else "\n"  # within a heading
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("policy", no_wrap=True)
    policies = comparison.policies
    columns: list[tuple[str, list[Text]]] = []
    for metric in metrics:
        row = comparison.metrics.index(metric)
        summaries = [comparison.summaries[policy][row] for policy in policies]
        digits = decimals(metric, (summary.mean for summary in summaries))
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
    if comparison.closed:
        oracle = next(iter(comparison.closed.values())).oracle
        columns.append((f"of the gap{split}to {oracle}", _share_cells(comparison, between)))
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


def _share_cells(comparison: Comparison, between: str) -> list[Text]:
    cells = []
    for policy in comparison.policies:
        cell = Text("")
        share = comparison.closed.get(policy)
        if share is not None:
            cell = Text(f"{figure_text(100 * share.mean, 0)}%")
            ends = Interval(100 * share.interval.low, 100 * share.interval.high)
            _add_interval(cell, ends, ",.0f", between)
        cells.append(cell)
    return cells


def _difference_cell(comparison: Comparison, policy: str, between: str) -> Text:
    if policy == comparison.best_baseline:
        return Text("best baseline", style="dim")
    difference, metric = comparison.differences[policy], comparison.primary
    value, ends = difference.of(metric)
    if not math.isfinite(value):
        return Text("-")
    form = difference_form(metric, value)
    cell = Text(f"{value:{form}}{difference_unit(metric)}")
    _add_interval(cell, ends, form, between)
    if not difference.interval.excludes_zero:
        cell.stylize("dim")
    return cell


def difference_form(metric: Metric, value: float) -> str:
    """Format of a difference and its interval: of percentages, or of the metric's own values."""
    if not metric.relative:
        return "+,.3f"
    return "+,.0f" if abs(value) >= 100 else "+,.1f"


def difference_unit(metric: Metric) -> str:
    return "%" if metric.relative else ""


def _add_interval(figure: Text, interval: Interval, form: str, between: str) -> None:
    if math.isfinite(interval.low):
        figure.append(f"{between}[{interval.low:{form}}, {interval.high:{form}}]", style="dim")


def title(comparison: Comparison) -> str:
    first, last = comparison.seeds[0], comparison.seeds[-1]
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{comparison.setup.workload}: {comparison.setup.conditions}; {seeds}"


def marked(comparison: Comparison, policy: str) -> str:
    """The policy's name, with a suffix if it is an oracle."""
    return f"{policy}{ORACLE}" if policy in comparison.setup.oracles else policy


def decimals(metric: Measure, values: Iterable[float]) -> int:
    """Number of decimals for a column of figures, chosen by the smallest."""
    if not metric.relative:
        return 3
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    smallest = min(sizes, default=0.0)
    return 2 if smallest < 10 else 1 if smallest < 1000 else 0


def short_number(value: float) -> str:
    """Three significant digits below 1000, whole numbers above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def figure_text(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def conclusion(comparison: Comparison) -> str:
    """Sentences on the best policy, its lead and whether it is significant, and the best oracle."""
    oracles = comparison.oracles
    ranked = [policy for policy in comparison.policies if policy not in (OPTIMUM, *oracles)]
    if not ranked:
        if not oracles:
            return f"{OPTIMUM}: {_score(comparison, OPTIMUM)}."
        lead = "is best of the oracles" if len(oracles) > 1 else "is an oracle"
        return f"{oracles[0]} {lead}: {_score(comparison, oracles[0])}."
    best, reference = ranked[0], comparison.best_baseline
    text = f"{best}{' is best' if len(ranked) > 1 else ''}: {_score(comparison, best)}"
    if best in comparison.gaps:
        gap = comparison.gaps[best]
        text += f", {gap.mean:.1f}%{bounds_text(gap.interval, '.1f', '%')} from optimal"
    if best in comparison.closed:
        share = comparison.closed[best]
        ends = Interval(100 * share.interval.low, 100 * share.interval.high)
        closed = f"{100 * share.mean:.0f}%{bounds_text(ends, '.0f', '%')}"
        text += f", {closed} of the gap to {share.oracle}"
    if len(ranked) > 1 and reference is not None:
        text += ", " + (
            _lead_of_baseline(comparison, ranked[1:])
            if best == reference
            else _lead_over_baseline(comparison, best, reference)
        )
    return f"{text}.{_best_oracle(comparison)}"


def learned_differences(comparison: Comparison) -> list[str]:
    """Where several learned policies take part, as in an ablation: each against the first."""
    if not comparison.learned:
        return []
    first, *others = comparison.learned
    ranked = [metric for metric in comparison.metrics if metric.better is not None][:2]

    def figure(policy: str, metric: Metric) -> str:
        value, ends = comparison.difference(policy, first, metric).of(metric)
        form = difference_form(metric, 0.0)
        unit = difference_unit(metric)
        return f"{metric.label} {value:{form}}{unit}{bounds_text(ends, form)}"

    return [
        f"{policy} against {first}: {', '.join(figure(policy, metric) for metric in ranked)}"
        for policy in others
    ]


def notes(comparison: Comparison) -> list[str]:
    """Lines below the table: few seeds, oracles, workload, learned and tuned policies."""
    lines = []
    if comparison.few_seeds:
        lines.append(few_seeds_note(comparison))
    if comparison.oracles:
        unknown = "durations or the load to come"
        lines.append(f"{ORACLE} an oracle: it uses what no policy can know, such as {unknown}")
    tuned = [
        f"{policy} runs with {text}"
        for policy, text in comparison.setup.parameters.items()
        if policy in comparison.values
    ]
    return [*lines, *comparison.notes, *tuned]


def few_seeds_note(comparison: Comparison) -> str:
    count = len(comparison.seeds)
    if count == 1:
        return "one seed gives no interval; try --seeds 20"
    return f"only {count} seeds: the intervals are unreliable; try --seeds 20"


def _best_oracle(comparison: Comparison) -> str:
    if not comparison.oracles:
        return ""
    oracle, reference = comparison.oracles[0], comparison.best_baseline
    text = f" The best oracle, {oracle}, is at {_score(comparison, oracle)}"
    if reference is not None:
        order = comparison.policies
        side = "ahead of" if order.index(oracle) < order.index(reference) else "behind"
        text += f", {_distance(comparison, oracle)} {side} {reference}"
    return f"{text}."


def _lead_of_baseline(comparison: Comparison, others: list[str]) -> str:
    tied = [p for p in others if not comparison.differences[p].interval.excludes_zero]
    if not tied or len(comparison.seeds) == 1:
        return f"{others[0]} is {_distance(comparison, others[0], ' behind')}"
    names = [f"{tied[0]} ({_distance(comparison, tied[0], ' behind')})", *tied[1:]]
    if len(names) > NAMED:
        names = [*names[:3], f"{len(names) - 3} more"]
    rivals = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"but {len(comparison.seeds)} seeds do not tell it from {rivals}"


def _lead_over_baseline(comparison: Comparison, best: str, reference: str) -> str:
    lead = f"{_distance(comparison, best)} ahead of {reference}, the best baseline"
    if comparison.differences[best].interval.excludes_zero or len(comparison.seeds) == 1:
        return lead
    return f"{lead}, but {len(comparison.seeds)} seeds do not tell the two apart"


def _distance(comparison: Comparison, policy: str, word: str = "") -> str:
    """Size of the difference from the best baseline, a word, and the interval."""
    metric = comparison.primary
    value, ends = comparison.differences[policy].of(metric)
    if value < 0:
        ends = Interval(-ends.high, -ends.low)
    form, unit = (".1f", "%") if metric.relative else (".3f", "")
    return f"{abs(value):{form}}{unit}{word}{bounds_text(ends, form, unit)}"


def bounds_text(interval: Interval, form: str, unit: str = "") -> str:
    """The interval in brackets behind a value; nothing where there is none."""
    if not math.isfinite(interval.low):
        return ""
    return f" [{interval.low:{form}}{unit}, {interval.high:{form}}{unit}]"


def _score(comparison: Comparison, policy: str) -> str:
    mean = comparison.summaries[policy][0].mean
    metric = comparison.primary
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{metric.label} {figure_text(mean, decimals(metric, [mean]))}{unit}"
