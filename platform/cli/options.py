"""Options, exit codes and output that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:  # slow to import
    from rich.console import Console

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
UsageError = typer.TyperException  # as InputError, without importing the environments


def option(metavar: str | None, text: str, *names: str) -> Any:
    """An option that takes a value; `names` if it is not called as its parameter."""
    return typer.Option(*names, metavar=metavar, help=text)


def flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text)


AsJson = Annotated[bool, flag("--json", "Print JSON for scripts.")]
Assignments = Annotated[
    list[str] | None, option("KEY=VALUE", "A setting; may be repeated.", "--set")
]
RayAddress = Annotated[
    str | None,
    option(
        "auto|HOST:PORT",
        "A running Ray cluster. [default: in a job its own cluster, else a new local Ray]",
    ),
]
SystemName = Annotated[str, argument("SYSTEM", "See loadmaster list.")]
Workers = Annotated[int | None, option("N", "Threads. [default: one a core]")]
WorkloadName = Annotated[str | None, option("NAME", "Which jobs arrive (see loadmaster list).")]


def print_json(record: Any) -> None:
    print(json.dumps(record, indent=2))


def stdout_console(piped_width: int) -> Console:
    """A console whose width is `piped_width` where stdout is no terminal and COLUMNS is not set."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = piped_width
    return console


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Container[int] = (),
    piped_width: int = 160,
) -> None:
    """Print a table without lines; `right` are the columns of numbers."""
    from rich.table import Table

    table = Table(box=None)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in right else "left")
    for row in rows:
        table.add_row(*row)
    stdout_console(piped_width).print(table)


@contextmanager
def shown_steps(first: str, stderr: TextIO | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function that shows a step on stderr, on a terminal until the next.

    A second argument that is true marks a result, which stays.
    """
    from rich.console import Console

    console = Console(file=stderr, stderr=True, highlight=False, soft_wrap=True)
    with console.status(first) as status:

        def show(text: str, stays: bool = False) -> None:
            if not stays:
                status.update(text)
            if stays or not console.is_terminal:
                console.print(text)

        yield show
