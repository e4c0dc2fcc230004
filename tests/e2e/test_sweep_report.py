"""The report of a sweep in Chromium."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.records import Record
from loadmaster.platform.sweeps.report import build_report
from tests.browser import assert_fits, assert_self_contained

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow

TRIALS = 24
FAILED, HUNG = 4, 9  # trials


@pytest.fixture(scope="module")
def records(root: Path) -> list[Record]:
    """Trials of the shipped sweep of Decima at random settings."""
    sweep = load_sweep(root / "tune_configs/decima/asha.yaml")
    random, found = np.random.default_rng(1), []
    for number in range(TRIALS):
        drawn: dict[str, Any] = {}
        for dimension in sweep.space.dimensions:
            if dimension.numeric:
                low, high = dimension.arguments[:2]
                drawn[dimension.name] = dimension.settle(low + random.random() * (high - low))
            else:
                place = int(random.integers(len(dimension.arguments)))
                drawn[dimension.name] = dimension.arguments[place]
        state = {FAILED: "failed", HUNG: "hung"}.get(
            number, "stopped" if number % 3 else "finished"
        )
        value = None if number == FAILED else 60 + 40 * float(random.random())
        fault = "<b>no room</b>" if number in (FAILED, HUNG) else ""
        found.append(Record(f"trial-{number + 1:03d}", drawn, 40, value, state, 9.0, fault))
    return found


@pytest.fixture(scope="module")
def address(root: Path, records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> str:
    sweep = load_sweep(root / "tune_configs/decima/asha.yaml")
    curves = {
        record.name: ([20, 40], [record.value + 9, record.value])
        for record in records
        if record.value is not None
    }
    page = tmp_path_factory.mktemp("sweep") / "report.html"
    page.write_text(build_report(sweep, records, curves, Path("sweeps/decima")))
    return page.as_uri()


def best_of(records: list[Record]) -> int:
    return min(range(TRIALS), key=lambda n: math.inf if (v := records[n].value) is None else v)


def test_page_needs_nothing_else(address: str, browser: Browser) -> None:
    assert_self_contained(browser, address)


@pytest.mark.parametrize(("width", "dark"), [(1400, True), (700, False), (390, True)])
def test_page_fits_the_window(width: int, dark: bool, address: str, browser: Browser) -> None:
    assert_fits(browser, address, width, dark)


def test_charts_show_every_trial(address: str, browser: Browser, records: list[Record]) -> None:
    browser.open(address)
    counted = browser.evaluate(
        """["#parallel .trial", "#curves .trial", "#curves .mark", "#trials tbody tr"].map(
             (selector) => document.querySelectorAll(selector).length)"""
    )
    assert counted == [TRIALS, TRIALS - 1, TRIALS - 1, TRIALS]
    best = best_of(records)
    assert browser.evaluate("document.querySelector('#curves .best').dataset.trial") == str(best)
    assert records[best].name in browser.text("headline")
    assert browser.text("command") == "loadmaster train decima --config sweeps/decima/best.yaml"
    failures = browser.text("failure-list")
    for number in (FAILED, HUNG):
        assert f"{records[number].name} {records[number].state}: <b>no room</b>" in failures
        assert f"training.epochs={records[number].parameters['training.epochs']}" in failures
    assert "22 trials" in browser.text("importance-note")


def test_click_on_a_line_pins_its_trial(
    address: str, browser: Browser, records: list[Record]
) -> None:
    browser.open(address, height=1400)
    best = best_of(records)
    x, y = browser.evaluate(
        """(() => {
          const line = document.querySelector("#parallel .trial.best");
          const point = line.getPointAtLength(line.getTotalLength() * 0.05);
          const { left, top } = line.ownerSVGElement.getBoundingClientRect();
          return [left + point.x, top + point.y];
        })()"""
    )
    browser.click(x, y)
    pinned = browser.evaluate("document.querySelector('#trials tr.pinned')?.dataset.trial")
    shown = browser.text("selected")
    assert pinned is not None
    chosen = records[int(pinned)]
    assert pinned == str(best)  # drawn last, so on top
    assert f"{chosen.name} validation" in shown
    assert f"training.epochs={chosen.parameters['training.epochs']}" in shown
    assert "highlighted" in browser.evaluate(
        f"document.querySelector('#curves .trial[data-trial=\"{best}\"]').getAttribute('class')"
    )
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#trials tr.pinned')") is None


def test_head_of_the_table_sorts(address: str, browser: Browser, records: list[Record]) -> None:
    browser.open(address)
    order = browser.evaluate(
        """(() => {
          const heads = [...document.querySelectorAll("#trials thead button")];
          heads.find((head) => head.textContent === "validation").click();
          const rows = [...document.querySelectorAll("#trials tbody tr")];
          return rows.map((row) => Number(row.dataset.trial));
        })()"""
    )
    values = [records[number].value for number in order]
    assert values[:-1] == sorted(value for value in values if value is not None)
    assert order[-1] == FAILED


def test_range_on_an_axis_filters_trials(
    address: str, browser: Browser, records: list[Record]
) -> None:
    browser.open(address, height=1400)
    x, top, bottom = browser.evaluate(
        """(() => {
          const { left, width, top, bottom } = document.querySelectorAll("#parallel .handle")[0]
            .getBoundingClientRect();
          return [left + width / 2, top, bottom];
        })()"""
    )
    middle = (top + bottom) / 2
    for kind, y in (("mousePressed", top + 1), ("mouseMoved", middle), ("mouseReleased", middle)):
        browser.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )
    kept = browser.evaluate(
        """[...document.querySelectorAll("#trials tbody tr:not(.filtered)")].map(
             (row) => Number(row.dataset.trial))"""
    )
    rates = [record.parameters["training.learning_rate.last"] for record in records]
    left_out = [rates[number] for number in range(TRIALS) if number not in kept]
    assert 0 < len(kept) < TRIALS
    assert min(rates[number] for number in kept) > max(left_out)
    browser.evaluate("document.getElementById('clear').click()")
    assert browser.evaluate("document.querySelectorAll('#trials .filtered').length") == 0
