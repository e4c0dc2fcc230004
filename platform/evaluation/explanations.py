"""Explanations of learned policies' decisions, and their tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmaster.envs.errors import InputError
from loadmaster.models.policy import Option
from loadmaster.platform.evaluation.adapters import EvaluationSetup, Learned
from loadmaster.platform.systems.policies import ExplainedDecision


def check_explain(count: int, learned: Learned) -> int:
    """Check --explain."""
    if count < 0:
        raise InputError(f"--explain is {count}; expected 0 or more")
    if count and not learned:
        raise InputError("--explain needs a learned policy; expected one by --policy")
    return count


def explain_learned(
    trial: EvaluationSetup, learned: Learned, seed: int, moments: int
) -> dict[str, tuple[ExplainedDecision, ...]]:
    """Decisions of every learned policy in the episode of `seed`, by the policy's name."""
    if not moments:
        return {}
    return {
        name: found.policy.explain(trial.settings, seed, trial.bank, moments)
        for name, found in learned.items()
    }


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
            table = _table(heading, options, explanation.others.get(heading, 0))
            console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _table(heading: str, options: Sequence[Option], others: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column(heading, min_width=24)
    columns = tuple(options[0].details) if options else ()
    for column in (*columns, "probability"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in options:
        cells = [*(option.details[column] for column in columns), _percent(option.probability)]
        mark, style = (">", "bold") if option.chosen else ("", "")
        table.add_row(mark, Text(option.name), *cells, style=style)
    if others:
        left = 1 - sum(option.probability or 0.0 for option in options)
        blank = [""] * len(columns)
        table.add_row("", f"{others} more", *blank, _percent(max(left, 0.0)), style="dim")
    return table


def _percent(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.1%}"
