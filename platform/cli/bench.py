"""`loadmaster bench`: how fast, beside what peers reach."""

from __future__ import annotations

from typing import Annotated

import typer

GROUPS = {
    "simulators": "loadmaster.platform.bench.simulators",
    "rollouts": "loadmaster.platform.bench.rollouts",
    "encoder": "loadmaster.platform.bench.encoder",
}


def bench(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help=f"{', '.join(GROUPS)}, or all.")
    ] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Measure speed against published figures.

    Runs one thing at a time and prints what it reached beside the figure a peer is known for.

    Example:

        loadmaster bench simulators --json
    """
    import json
    from dataclasses import asdict
    from importlib import import_module

    from rich.console import Console
    from rich.table import Table

    from loadmaster.envs.errors import unknown_name
    from loadmaster.platform.bench.results import Figure

    if group not in (*GROUPS, "all"):
        raise unknown_name("benchmark", group, (*GROUPS, "all"))
    progress = Console(stderr=True, highlight=False)
    figures: list[Figure] = []
    with progress.status("starting") as status:

        def say(step: str) -> None:
            status.update(step)
            if not progress.is_terminal:
                progress.print(step)

        for name in GROUPS if group == "all" else (group,):
            figures += import_module(GROUPS[name]).measure(say)
    if as_json:
        print(json.dumps({"results": [asdict(figure) for figure in figures]}, indent=2))
        return
    table = Table("benchmark", "measured", "unit", "peer", "ratio", "peer is", box=None)
    for column in (1, 3, 4):
        table.columns[column].justify = "right"
    for figure in figures:
        table.add_row(
            figure.name,
            _number(figure.value),
            figure.unit,
            _number(figure.peer) if figure.peer is not None else "",
            f"{figure.ratio:,.0f}x" if figure.ratio is not None else "",
            figure.peer_name,
        )
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def _number(value: float) -> str:
    """Three digits are all a noisy machine can tell; large numbers are easier to read whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
