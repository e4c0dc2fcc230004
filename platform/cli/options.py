"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

WorkloadName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which jobs arrive (see loadmaster list).")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated."),
]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Threads. [default: one a core]")]


def values_from(assignments: list[str], workload: str | None) -> dict[str, Any]:
    """Settings as given by --set and --workload, which may name the same workload only."""
    from loadmaster.envs.errors import InputError
    from loadmaster.envs.settings import parse_assignments

    values = parse_assignments(assignments)
    if workload is not None and values.setdefault("workload", workload) != workload:
        raise InputError(
            f"--workload {workload} and --set workload={values['workload']} disagree; "
            "expected one of the two"
        )
    return values
