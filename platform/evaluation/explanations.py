"""Explained decisions as tables: the options of each choice, with their probabilities."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmaster.models.policy import ExplainedDecision, Option


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
    has_odds = any(option.probability is not None for option in options)
    for column in (*columns, *(("probability",) if has_odds else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for option in options:
        cells = [_cell(option.details[column]) for column in columns]
        cells += [_probability(option.probability)] if has_odds else []
        mark, style = (">", "bold") if option.chosen else ("", "")
        table.add_row(mark, Text(option.name), *cells, style=style)
    if others:
        left = 1 - sum(option.probability or 0.0 for option in options)
        odds = [_probability(max(left, 0.0))] if has_odds else []
        table.add_row("", f"{others} more", *([""] * len(columns)), *odds, style="dim")
    return table


def _probability(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.1%}"


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
