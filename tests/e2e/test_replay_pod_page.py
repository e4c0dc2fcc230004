"""The replay page of pod scaling in Chromium: series, strips, decisions, and a service's log."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.aware.decision_trace import RecordedEpisode, Step
from loadmaster.platform.systems.aware.logged import recorded_log
from loadmaster.platform.systems.aware.replay import REPLAY
from loadmaster.serving.systems.aware.system import BundlePolicy
from tests.browser import assert_fits, assert_self_contained
from tests.platform.systems.aware.recordings import logged_rows, recorded, setup, untrained_policy

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow


def traced_steps() -> tuple[Step, ...]:
    trace = recorded().trace
    assert trace is not None
    return trace


def episodes() -> tuple[RecordedEpisode, RecordedEpisode]:
    return recorded(), recorded("vpa")


@cache
def logged() -> RecordedEpisode:
    return recorded_log(logged_rows(BundlePolicy(untrained_policy())))


def write_page(folder: Path, *shown: RecordedEpisode) -> str:
    page = folder / "replay.html"
    names = REPLAY.item_names(setup(), shown[0])
    page.write_text(build_page(shown, names, "some", "pod_scaling"), encoding="utf-8")
    return page.as_uri()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(tmp_path_factory.mktemp("pods"), *episodes())


def latency(seconds: float) -> str:
    """As the page writes it, of whole milliseconds."""
    seconds = round(1000 * seconds) / 1000
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def test_page_is_self_contained_and_shows_totals(browser: Browser, address: str) -> None:
    assert_self_contained(browser, address)
    for each in episodes():
        assert f"{each.reward:.3f} under {each.policy}" in browser.text("headline")
        assert browser.text(f"reward-{each.policy}") == f"{each.reward:.3f}"
        violations = int(each.figures["violations"] + 0.5)  # a page rounds halves up
        assert browser.text(f"violations-{each.policy}") == f"{violations}%"
    nearest = recorded().known[0].application.name
    assert browser.text("nearest-aware").startswith(nearest)
    assert browser.text("nearest-vpa") == ""


@pytest.mark.parametrize("step", [0, 17, 39])
def test_figures_at_a_time_match_the_episode(browser: Browser, address: str, step: int) -> None:
    browser.open(f"{address}#t={60 * step + 30}")
    for each in episodes():
        assert browser.text(f"p99-{each.policy}") == latency(each.p99_s[step])
        assert browser.text(f"restarts-{each.policy}") == f"{each.restarts[: step + 1].sum():.0f}"
        over = int((each.p99_s[: step + 1] > each.slo_s[: step + 1]).sum())
        assert browser.text(f"over-{each.policy}") == f"{over} step{'s' if over != 1 else ''}"
        assert browser.text(f"source-{each.policy}") == ""
    assert browser.text("load-key") == f"{recorded().load[step]:,.1f} now"
    cores = f"{recorded().used_cores[step]:.2f} of {recorded().cores[step]:.2f} cores"
    assert cores in browser.text("cpu-key")


def test_initial_time_has_the_largest_ratio_of_p99(browser: Browser, address: str) -> None:
    browser.open(address)
    one, two = (np.log(np.round(1000 * each.p99_s)) for each in episodes())
    minutes = float(browser.text("time").removesuffix(" min"))
    assert minutes == pytest.approx(int(np.abs(one - two).argmax()) + 0.5)


def test_pinned_step_is_described(browser: Browser, address: str) -> None:
    browser.open(f"{address}#step=7")
    assert browser.evaluate("document.querySelector('tr.pinned').dataset.step") == "7"
    for each in episodes():
        assert f"{each.policy}: p99 {latency(each.p99_s[7])}" in browser.text("selected")
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('tr.pinned')") is None


def test_decisions_have_reason_margins_and_known_applications(
    browser: Browser, address: str
) -> None:
    browser.open(f"{address}#decision=2")
    step = traced_steps()[1]
    assert browser.text("decision-position") == f"2 of {len(traced_steps())}"
    for part in step.reason.split("; "):
        assert part[1:] in browser.text("decision-text")
    rows = browser.evaluate(
        """[...document.querySelectorAll("#decision-margins tbody tr")].map((row) =>
          [row.dataset.margin, row.cells[2].textContent, row.cells[3].textContent])"""
    )
    assert rows == [[each.name, each.value, each.rule] for each in step.margins]
    known = browser.evaluate(
        """[...document.querySelectorAll("#known-applications tbody tr")].map((row) =>
          [row.cells[0].textContent, row.cells[1].textContent])"""
    )
    assert known == [[each.application.name, f"{each.similarity:.3f}"] for each in recorded().known]
    browser.evaluate("document.getElementById('decision-change').click()")
    at = int(browser.text("decision-position").partition(" of ")[0])
    assert traced_steps()[at - 1].changed
    assert browser.errors() == []


def test_page_fits_the_window(browser: Browser, address: str) -> None:
    for width, dark in ((390, False), (820, True), (1920, True)):
        assert_fits(browser, address, width, dark)


def test_log_shows_source_and_lifecycle(browser: Browser, tmp_path: Path) -> None:
    address = write_page(tmp_path, logged())
    assert_self_contained(browser, address)
    assert "11 decisions, 5 by the policy, 6 by the rule" in browser.text("headline")
    name = logged().policy
    for minute, source, state in ((2, "rule", "OFFLINE"), (8, "policy", "ONLINE"), (11, "", "")):
        browser.open(f"{address}#t={60 * minute + 30}")
        assert browser.text(f"source-{name}") == source
        assert browser.text(f"state-{name}") == state
    browser.open(f"{address}#decision=1")
    assert "Decided by rule hpa" in browser.text("decision-text")
    assert browser.evaluate("document.getElementById('decision-margins').hidden")
    assert browser.evaluate("document.getElementById('known').hidden")
    assert_fits(browser, address, 390, dark=True)


def test_one_rule_has_no_decisions(browser: Browser, tmp_path: Path) -> None:
    assert_self_contained(browser, write_page(tmp_path, recorded("vpa")))
    assert browser.evaluate("document.getElementById('decisions').hidden")
    assert browser.evaluate("document.getElementById('gap').hidden")
