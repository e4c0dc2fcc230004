"""Progress on the console: lines, panel, sparkline, clock."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadmaster.platform.training.display import (
    Progress,
    clock,
    display,
    line,
    panel,
    sparkline,
)

FIGURES = {
    "iteration": 30.0,
    "decisions_per_s": 12345.6,
    "decisions_in_all": 400_000.0,
    "return_mean": -1234.5,
    "return_spread": 99.4,
    "entropy": 1.234,
    "workers": 2.0,
    "rollout_seconds": 0.5,
    "update_seconds": 0.25,
}


def progress(**changed: object) -> Progress:
    """Thirty iterations of 100 done in sixty seconds."""
    values = {
        "metric": "jct_s",
        "iterations": 100,
        "began": 1000.0,
        "updated": 1060.0,
        "workers": 2,
        "sequences": 12,
        "baselines": {"fifo": 200.0, "fair": 80.0},
        "figures": dict(FIGURES),
        "curve": [(0, 160.0), (10, 100.0), (20, 60.0)],
    }
    return Progress(**{**values, **changed})  # type: ignore[arg-type]


def drawn(shown: Progress, now: float, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(panel(shown, "training decima in runs/[one]", now))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_line_of_an_iteration() -> None:
    assert line(progress(), 1060.0) == (
        "iteration 30/100  12,346 decisions/s  return -1,234 ±99  entropy 1.23  "
        "mean JCT 60.0 s (fair 80.0, -25.0%)  2:20 left"
    )


def test_line_before_the_first_iteration() -> None:
    first = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)], updated=1000.0)
    assert line(first, 1001.0) == "iteration 0/100  mean JCT 160.0 s (fair 80.0, +100.0%)"
    assert line(progress(figures={"iteration": 0.0}, curve=[]), 1001.0) == "iteration 0/100"


def test_line_without_baselines() -> None:
    assert "makespan 60.0 s  " in line(progress(metric="makespan_s", baselines={}), 1060.0)
    assert "  cost 60.0  " in line(progress(metric="cost", baselines={}), 1060.0)


def test_time_left() -> None:
    def left(now: float, **changed: object) -> str:
        return line(progress(**changed), now).rpartition("  ")[2]

    assert left(1070.0) == "2:10 left"  # counts down during an iteration
    assert left(1060.0, first_iteration=20) == "7:00 left"  # ten done in this session
    assert left(1060.0, ends=1100.0) == "0:40 left"  # training.minutes comes first
    assert left(9999.0, ends=1100.0) == "0:00 left"
    assert left(1060.0, stopping=True).startswith("stopping after this iteration")
    assert left(1075.0, stopping=True, ended=True) == "1:15 in all"
    assert left(1075.0, iterations=30) == "1:15 in all"


def test_missing_worker_is_shown() -> None:
    short = progress(figures={**FIGURES, "workers": 1.0})
    assert "1 of 2 workers, replacing the others" in line(short, 1060.0)
    assert "1 of 2 workers, replacing the others" in drawn(short, 1060.0)
    assert "workers" not in line(progress(), 1060.0)


@pytest.mark.parametrize("width", [80, 200])
def test_panel_has_fixed_width(width: int) -> None:
    shown = drawn(progress(), 1060.0, width)
    rows = shown.splitlines()
    assert {len(row) for row in rows} == {76}
    assert "training decima in runs/[one]" in rows[0]  # brackets are not markup
    for part in (
        "30 of 100, 0.50 s rolling out and 0.25 s learning",
        "12,346 decisions/s, 400,000 in all",
        "-1,234 ±99",
        "mean JCT 60.0 s (fair 80.0, -25.0%)",
        "█▄▁  160.0 to 60.0",
        "2:20 left",
    ):
        assert part in shown


def test_panel_before_the_first_iteration() -> None:
    empty = progress(figures={}, curve=[], baselines={})
    assert "0 of 100" in drawn(empty, 1000.0)
    assert "starting" in drawn(empty, 1000.0)


def test_sparkline() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5]) == "▁▁▁"
    long = sparkline(list(range(1000)), width=40)
    assert len(long) == 40
    assert (long[0], long[-1]) == ("▁", "█")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"),
     (86_461, "24:01:01")],
)  # fmt: skip
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_without_a_terminal_a_line_per_validation() -> None:
    console = Console(file=io.StringIO(), width=80)
    shown = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)])
    with display(console, "training") as show:
        show(shown)
        for iteration in range(1, 31):
            shown.figures = {**FIGURES, "iteration": float(iteration)}
            if iteration % 10 == 0:
                shown.curve.append((iteration, 100.0))
            show(shown)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [text.split()[1] for text in printed] == ["0/100", "10/100", "20/100", "30/100"]


def test_on_a_terminal_the_last_panel_remains() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with display(console, "training") as show:
        show(progress())
        show(progress(ended=True))
    assert "in all" in console.file.getvalue()  # type: ignore[attr-defined]
