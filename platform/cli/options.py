"""Options and exit codes that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="A running Ray cluster. [default: in a job its own cluster, else a new local Ray]",
    ),
]
SystemName = Annotated[str, typer.Argument(metavar="SYSTEM", help="See loadmaster list.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Threads. [default: one a core]")]
WorkloadName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which jobs arrive (see loadmaster list).")
]
