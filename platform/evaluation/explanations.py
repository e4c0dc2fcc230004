"""Decisions of learned policies with their reasons, and how a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmaster.envs.errors import InputError
from loadmaster.platform.evaluation.adapters import EvaluationSetup
from loadmaster.platform.evaluation.learned import Learned
from loadmaster.platform.systems.policies import Explanation, Options


def choose_moments(count: int, learned: Learned) -> int:
    if count < 0:
        raise InputError(f"--explain is {count}; expected 0 or more")
    if count and not learned:
        raise InputError(
            "--explain shows the reasons of learned policies; expected one by --policy"
        )
    return count


def explain_learned(
    trial: EvaluationSetup, learned: Learned, seed: int, moments: int
) -> dict[str, tuple[Explanation, ...]]:
    """Decisions of every learned policy in the episode of `seed`; none where none are wanted."""
    if not moments:
        return {}
    return {
        name: found.policy.explain(trial.settings, seed, trial.bank, moments)
        for name, found in learned.items()
    }


def print_explanations(
    policy: str, seed: int, explanations: Sequence[Explanation], choice: str, console: Console
) -> None:
    """`choice` is what it chooses from: a stage, a job."""
    whole = not console.is_terminal
    console.print()
    console.print(Text(f"Decisions of {policy} on seed {seed}", style="bold"), soft_wrap=whole)
    if not explanations:
        console.print(f"It never had more than one {choice} to choose from.", soft_wrap=whole)
    for explanation in explanations:
        console.print()
        line = f"at {explanation.time_s:,.1f} s: {explanation.situation}"
        console.print(Text(line), soft_wrap=whole)
        for options in explanation.options:
            console.print(Padding(_table(options), (0, 0, 0, 2), expand=False))
        console.print(Text(f"  -> {explanation.outcome}"), soft_wrap=whole)


def _table(options: Options) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column(options.heading, min_width=24)
    for column in (*options.columns, "probability"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = zip(options.names, options.cells, options.probabilities, strict=True)
    for place, (name, cells, probability) in enumerate(rows):
        chosen = place == options.chosen
        figures = [*cells, f"{probability:.1%}"]
        table.add_row(">" if chosen else "", Text(name), *figures, style="bold" if chosen else "")
    if options.others:
        left = 1 - sum(options.probabilities)
        blank = [""] * len(options.columns)
        row = [f"{options.others} more", *blank, f"{max(left, 0):.1%}"]
        table.add_row("", *row, style="dim")
    return table
