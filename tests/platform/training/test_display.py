"""A run as it is shown: lines, the panel, the curve in one line, the clock."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadmaster.platform.training.display import clock, display, line, panel, sparkline
from loadmaster.platform.training.loop import Progress

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
        "noted": 1060.0,
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


def test_a_line_says_it_all() -> None:
    assert line(progress(), 1060.0) == (
        "iteration 30/100  12,346 decisions/s  return -1,234 ±99  entropy 1.23  "
        "mean JCT 60.0 s (fair 80.0, -25.0%)  2:20 left"
    )


def test_a_line_before_anything_was_learnt() -> None:
    first = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)], noted=1000.0)
    assert line(first, 1001.0) == "iteration 0/100  mean JCT 160.0 s (fair 80.0, +100.0%)"
    assert line(progress(figures={"iteration": 0.0}, curve=[]), 1001.0) == "iteration 0/100"


def test_a_system_without_baselines() -> None:
    assert "makespan 60.0 s  " in line(progress(metric="makespan_s", baselines={}), 1060.0)
    assert "  cost 60.0  " in line(progress(metric="cost", baselines={}), 1060.0)


def test_the_time_that_is_left() -> None:
    def left(now: float, **changed: object) -> str:
        return line(progress(**changed), now).rpartition("  ")[2]

    assert left(1070.0) == "2:10 left"  # it runs down while an iteration goes on
    assert left(1060.0, first_iteration=20) == "7:00 left"  # ten done in this session
    assert left(1060.0, ends=1100.0) == "0:40 left"  # training.minutes comes first
    assert left(9999.0, ends=1100.0) == "0:00 left"
    assert left(1060.0, stopping=True).startswith("stopping after this iteration")
    assert left(1075.0, stopping=True, ended=True) == "1:15 in all"
    assert left(1075.0, iterations=30) == "1:15 in all"


def test_a_worker_that_died_is_missed() -> None:
    short = progress(figures={**FIGURES, "workers": 1.0})
    assert "1 of 2 workers, replacing the others" in line(short, 1060.0)
    assert "1 of 2 workers, replacing the others" in drawn(short, 1060.0)
    assert "workers" not in line(progress(), 1060.0)


@pytest.mark.parametrize("width", [80, 200])
def test_the_panel_fits_a_terminal(width: int) -> None:
    shown = drawn(progress(), 1060.0, width)
    rows = shown.splitlines()
    assert {len(row) for row in rows} == {76}
    assert "training decima in runs/[one]" in rows[0]  # brackets are not taken for markup
    for part in (
        "30 of 100, 0.50 s rolling out and 0.25 s learning",
        "12,346 decisions/s, 400,000 in all",
        "-1,234 ±99",
        "mean JCT 60.0 s (fair 80.0, -25.0%)",
        "█▄▁  160.0 to 60.0",
        "2:20 left",
    ):
        assert part in shown


def test_the_panel_before_anything_is_known() -> None:
    empty = progress(figures={}, curve=[], baselines={})
    assert "0 of 100" in drawn(empty, 1000.0)
    assert "starting" in drawn(empty, 1000.0)


def test_the_curve_in_one_line() -> None:
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
def test_the_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_where_nobody_watches_a_line_comes_with_every_validation() -> None:
    console = Console(file=io.StringIO(), width=80)
    shown = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)])
    with display(console, "training") as show:
        show(shown)
        for iteration in range(1, 31):
            shown.figures = {**FIGURES, "iteration": float(iteration)}
            if iteration % 10 == 0:
                shown.curve.append((iteration, 100.0))
            show(shown)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [text.split()[1] for text in said] == ["0/100", "10/100", "20/100", "30/100"]


def test_on_a_terminal_the_last_panel_stays() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with display(console, "training") as show:
        show(progress())
        show(progress(ended=True))
    assert "in all" in console.file.getvalue()  # type: ignore[attr-defined]
