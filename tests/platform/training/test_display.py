"""Progress on the console: lines, panel, sparkline, clock."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from loadmaster.platform.training import display
from loadmaster.platform.training.display import Progress, line

# fmt: off
FIGURES = {
    "iteration": 30.0, "decisions_per_s": 12345.6, "decisions_in_all": 400_000.0,
    "return_mean": -1234.5, "return_spread": 99.4, "entropy": 1.234, "workers": 2.0,
    "rollout_seconds": 0.5, "update_seconds": 0.25,
}
# fmt: on
SEARCH = {"iteration": 30.0, "decisions_per_s": 10.0, "cost_mean": 70.0, "cost_best": 60.0}


def progress(**changed: Any) -> Progress:
    """Thirty iterations of 100 done in sixty seconds."""
    values: dict[str, Any] = {
        "metric": "jct_s", "iterations": 100, "began": 1000.0, "updated": 1060.0, "workers": 2,
        "baselines": {"fifo": 200.0, "fair": 80.0}, "figures": dict(FIGURES),
        "curve": [(0, 160.0), (10, 100.0), (20, 60.0)],
    }  # fmt: skip
    return Progress(**{**values, **changed})


def drawn(shown: Progress, now: float) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(display.panel(shown, "training decima in runs/[one]", now))
    return file.getvalue()


START = {"iteration": 0.0}
SHORT = {**FIGURES, "workers": 1.0}
RETURN = "12,346 decisions/s  return -1,234 ±99  entropy 1.23"
JCT = "mean JCT 60.0 s (fair 80.0, -25.0%)"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, f"30/100  {RETURN}  {JCT}  2:20 left"),
        (
            {"figures": SHORT},
            f"30/100  {RETURN}  {JCT}  1 of 2 workers, replacing the others  2:20 left",
        ),
        ({"figures": START, "curve": []}, "0/100"),
        ({"figures": START, "curve": [(0, 160.0)]}, "0/100  mean JCT 160.0 s (fair 80.0, +100.0%)"),
        (
            {"figures": SEARCH, "metric": "cost", "baselines": {}},
            "30/100  10 decisions/s  candidates 70.0, best 60.0  cost 60.0  2:20 left",
        ),
    ],
)
def test_line(changed: dict[str, Any], expected: str) -> None:
    assert line(progress(**changed), 1060.0) == f"iteration {expected}"


@pytest.mark.parametrize(
    ("now", "changed", "expected"),
    [
        (1070.0, {}, "2:10 left"),  # counts down during an iteration
        (1060.0, {"first_iteration": 20}, "7:00 left"),  # ten done in this session
        (1060.0, {"ends": 1100.0}, "0:40 left"),  # the time limit comes first
        (9999.0, {"ends": 1100.0}, "0:00 left"),
        (1060.0, {"stopping": True}, "stopping after this iteration (Ctrl-C again: at once)"),
        (1075.0, {"stopping": True, "ended": True}, "1:15 in all"),
        (1075.0, {"iterations": 30}, "1:15 in all"),
    ],
)
def test_time_left(now: float, changed: dict[str, Any], expected: str) -> None:
    assert display.time_left(progress(**changed), now) == expected


def test_panel_has_fixed_width() -> None:
    shown = drawn(progress(), 1060.0)
    assert {len(row) for row in shown.splitlines()} == {76}
    for part in (
        "training decima in runs/[one]",  # brackets are not markup
        "30 of 100, 0.50 s rolling out and 0.25 s learning",
        "12,346 decisions/s, 400,000 in all",
        "-1,234 ±99",
        JCT,
        "█▄▁  160.0 to 60.0",
        "2:20 left",
    ):
        assert part in shown


def test_panel_at_the_start_with_a_missing_worker_and_of_a_search() -> None:
    empty = drawn(progress(figures={}, curve=[], baselines={}), 1000.0)
    assert "0 of 100" in empty
    assert "starting" in empty
    assert "1 of 2 workers" in drawn(progress(figures=SHORT), 1060.0)
    assert "70.0 in the mean, 60.0 at best" in drawn(progress(figures=SEARCH), 1060.0)


def test_sparkline() -> None:
    assert display.sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert display.sparkline([5, 5, 5]) == "▁▁▁"
    long = display.sparkline(list(range(1000)), width=40)
    assert (len(long), long[0], long[-1]) == (40, "▁", "█")


def test_clock() -> None:
    shown = [display.clock(seconds) for seconds in (0, 59.4, 59.6, 3600, 86_461)]
    assert shown == ["0:00", "0:59", "1:00", "1:00:00", "24:01:01"]


def test_without_a_terminal_a_line_per_validation() -> None:
    file = io.StringIO()
    shown = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)])
    with display.display(Console(file=file, width=80), "training") as show:
        show(shown)
        for iteration in range(1, 31):
            shown.figures = {**FIGURES, "iteration": float(iteration)}
            if iteration % 10 == 0:
                shown.curve.append((iteration, 100.0))
            show(shown)
    iterations = [text.split()[1] for text in file.getvalue().splitlines()]
    assert iterations == ["0/100", "10/100", "20/100", "30/100"]


def test_on_a_terminal_the_last_panel_remains() -> None:
    file = io.StringIO()
    with display.display(Console(file=file, width=80, force_terminal=True), "training") as show:
        show(progress())
        show(progress(ended=True))
    assert "in all" in file.getvalue()
