"""Tables of `loadmaster bench`, and what its options have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError

if TYPE_CHECKING:
    from loadmaster.platform.bench.measurements import Figure
    from loadmaster.platform.bench.scaling import Point

RECOVERY = ("recovery_s_median", "recovery_s_max")


def hardware(gpus: int) -> str:
    learner = f" and {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""
    return f"{os.cpu_count()} cores{learner}"


def numbers(name: str, given: str) -> list[int]:
    """Numbers of an option such as --workers, fewest first."""
    try:
        found = sorted({int(part) for part in given.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UsageError(
            f"{name} is {given!r}; expected numbers from 1 on with commas between, as in 1,2,4"
        )
    return found


def print_figures(figures: Sequence[Figure]) -> None:
    from loadmaster.platform.evaluation.report import short_number

    rows = (
        (
            figure.name,
            short_number(figure.value),
            figure.unit,
            "" if figure.peer is None else short_number(figure.peer),
            "" if figure.ratio is None else f"{figure.ratio:,.0f}x",
            figure.peer_name,
        )
        for figure in figures
    )
    headings = ("benchmark", "measured", "unit", "peer", "ratio", "peer is")
    options.print_table(headings, rows, right=(1, 3, 4), piped_width=140)


def print_faults(summary: Mapping[str, Any]) -> None:
    """Print a row for each kind of kill, and the checks."""
    rows = (
        (
            kind,
            str(cost["kills"]),
            str(cost["iterations_repeated"]),
            *("" if cost[name] is None else f"{cost[name]:.1f}" for name in RECOVERY),
        )
        for kind, cost in summary["kills"].items()
    )
    heads = ("killed", "times", "iterations repeated", "recovery, s: median", "longest")
    options.print_table(heads, rows, right=range(1, len(heads)), piped_width=120)
    for check in summary["checks"]:
        print(f"{'ok' if check['holds'] else 'FAILED':6}  {check['name']}: {check['detail']}")


def print_scaling(points: Sequence[Point], title: str) -> None:
    from loadmaster.platform.bench.scaling import PARTS
    from loadmaster.platform.evaluation.report import short_number

    rows = (
        (
            str(point.workers),
            str(point.rollouts),
            f"{point.iteration_seconds:.2f}",
            *(f"{getattr(point, name):.3f}" for name in PARTS),
            short_number(point.decisions_per_s),
            f"{point.speedup:.2f}x",
            f"{100 * point.efficiency:.0f}%",
            "" if point.independent is None else f"{point.independent:.2f}x",
            "" if point.independent_slowest is None else f"{point.independent_slowest:.2f}x",
        )
        for point in points
    )
    heads = ("workers", "rollouts", "iteration, s", *PARTS.values())
    heads = (*heads, "decisions/s", "speed-up", "efficiency", "sharing nothing", "its slowest")
    print(title)
    options.print_table(heads, rows, right=range(len(heads)), piped_width=160)
