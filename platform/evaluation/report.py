"""The comparison as text: a table that fits the terminal, sentences, notes and explanations."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmaster.envs.metrics import Metric
from loadmaster.models.policy import ExplainedDecision, Option
from loadmaster.platform.evaluation.comparison import OPTIMUM, Comparison, Interval

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


def title(comparison: Comparison) -> str:
    first, last = comparison.seeds[0], comparison.seeds[-1]
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{comparison.setup.workload}: {comparison.setup.conditions}; {seeds}"


def marked(comparison: Comparison, policy: str) -> str:
    """The policy's name, with a suffix if it is an oracle."""
    return f"{policy}{ORACLE}" if policy in comparison.setup.oracles else policy


def decimals(values: Iterable[float]) -> int:
    """Number of decimals for a column of figures, chosen by the smallest."""
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
        text += f", {gap.mean:.1f}%{_percents(gap.interval)} from optimal"
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
        difference = comparison.difference(policy, first, metric)
        ends = difference.percent_interval
        between = "" if math.isnan(ends.low) else f" [{ends.low:+.1f}, {ends.high:+.1f}]"
        return f"{metric.label} {difference.percent:+.1f}%{between}"

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
        lines.append(f"{ORACLE} an oracle: it uses what no scheduler can know, such as durations")
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
    """Absolute difference from the best baseline in percent, a word, and the interval."""
    difference = comparison.differences[policy]
    ends = difference.percent_interval
    if difference.percent < 0:
        ends = Interval(-ends.high, -ends.low)
    return f"{abs(difference.percent):.1f}%{word}{_percents(ends)}"


def _percents(interval: Interval) -> str:
    if math.isnan(interval.low):
        return ""
    return f" [{interval.low:.1f}%, {interval.high:.1f}%]"


def _score(comparison: Comparison, policy: str) -> str:
    mean = comparison.summaries[policy][0].mean
    metric = comparison.primary
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{metric.label} {figure_text(mean, decimals([mean]))}{unit}"


def print_explanations(
    policy: str, seed: int, explanations: Sequence[ExplainedDecision], choice: str, console: Console
) -> None:
    """Print a table for each choice of a decision. `choice` names the options: stage, job."""
    whole = not console.is_terminal
    console.print()
    console.print(Text(f"Decisions of {policy} on seed {seed}", style="bold"), soft_wrap=whole)
    if not explanations:
        console.print(f"It never had more than one {choice} to choose from.", soft_wrap=whole)
    for decision in explanations:
        explanation = decision.explanation
        console.print()
        line = f"at {decision.time_s:,.1f} s: {explanation.summary}"
        console.print(Text(line), soft_wrap=whole)
        for heading, options in explanation.choices.items():
            table = _option_table(heading, options, explanation.others.get(heading, 0))
            console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _option_table(heading: str, options: Sequence[Option], others: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column(heading, min_width=24)
    columns = tuple(options[0].details) if options else ()
    for column in (*columns, "probability"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in options:
        details = (option.details[column] for column in columns)
        cells = [*map(_cell, details), _probability(option.probability)]
        mark, style = (">", "bold") if option.chosen else ("", "")
        table.add_row(mark, Text(option.name), *cells, style=style)
    if others:
        left = 1 - sum(option.probability or 0.0 for option in options)
        blank = [""] * len(columns)
        table.add_row("", f"{others} more", *blank, _probability(max(left, 0.0)), style="dim")
    return table


def _probability(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.1%}"


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
