"""The replay page of stream scaling in Chromium: series, instances of tasks, and decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.sure.decision_trace import Step
from loadmaster.platform.systems.sure.replay import RecordedEpisode
from tests.browser import assert_fits, assert_self_contained
from tests.platform.systems.sure.recordings import recorded, setup

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow


def traced_steps() -> tuple[Step, ...]:
    trace = recorded().trace
    assert trace is not None
    return trace.steps


def episodes() -> tuple[RecordedEpisode, RecordedEpisode]:
    return recorded(), recorded("flink")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    page: Path = tmp_path_factory.mktemp("stream") / "replay.html"
    text = build_page(episodes(), setup().job.names, "two", "stream_scaling")
    page.write_text(text, encoding="utf-8")
    return page.as_uri()


def figures_at(episode: RecordedEpisode, minute: int) -> dict[str, str]:
    """Compute from the result what the page should show."""
    over = int((episode.latency_min[: minute + 1] > episode.target_min).sum())
    return {
        "lag": f"{round(episode.lag[minute]):,}",
        "instances": f"{episode.instances[minute]:.0f}",
        "restarts": str(int((episode.restart_minutes <= minute).sum())),
        "over": f"{over} min",
    }


def test_page_is_self_contained_and_shows_totals(browser: Browser, address: str) -> None:
    assert_self_contained(browser, address)
    for each in episodes():
        assert f"{each.reward:.3f} under {each.policy}" in browser.text("headline")
        assert browser.text(f"reward-{each.policy}") == f"{each.reward:.3f}"
        hours = each.instances.sum() / 60
        assert browser.text(f"instance-hours-{each.policy}") == f"{hours:,.0f}"


@pytest.mark.parametrize("minute", [0, 61, 179])
def test_figures_at_a_time_match_the_episode(browser: Browser, address: str, minute: int) -> None:
    browser.open(f"{address}#t={60 * minute + 30}")
    for each in episodes():
        expected = figures_at(each, minute)
        assert {name: browser.text(f"{name}-{each.policy}") for name in expected} == expected
    assert browser.text("load-key") == f"{recorded().load[minute]:,.0f} now"
    step = next(step for step in reversed(traced_steps()) if step.minute <= minute)
    assert browser.text("gate-sure").startswith("acts" if step.act else "holds")
    assert browser.text("gate-flink") == ""


def test_initial_time_has_the_largest_difference_in_latency(browser: Browser, address: str) -> None:
    browser.open(address)
    one, two = (each.latency_min for each in episodes())
    minute = int(np.abs(np.rint(60_000 * one) - np.rint(60_000 * two)).argmax())
    hours = float(browser.text("time").removesuffix(" h"))
    assert hours == pytest.approx((minute + 0.5) / 60, abs=0.0051)


def test_pinned_task_shows_its_instances_now(browser: Browser, address: str) -> None:
    name = setup().job.names[4]
    browser.open(f"{address}#t=6030&task={name}")
    assert browser.evaluate("document.querySelector('tr.pinned').dataset.task") == "4"
    for each in episodes():
        assert each.parallelism is not None
        count = each.parallelism[100, 4]
        assert (
            f"{count} instance{'s' if count > 1 else ''} now under {each.policy}"
            in browser.text("selected")
        )
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('tr.pinned')") is None


def test_decisions_follow_the_time(browser: Browser, address: str) -> None:
    browser.open(f"{address}#decision=2")
    assert browser.text("decision-position") == f"2 of {len(traced_steps())}"
    step = traced_steps()[1]
    outcome = "The gate acts" if step.act else "The gate holds"
    assert outcome in browser.text("decision-text")
    rows = browser.evaluate(
        """[...document.querySelectorAll("#decision-tasks tbody tr")].map((row) =>
          [Number(row.dataset.task), row.cells[1].textContent, row.cells[4].textContent])"""
    )
    assert len(rows) == len(setup().job.names)
    for task, instances, neighbours in rows:
        before, after = step.before[task], step.after[task]
        assert instances == (str(before) if before == after else f"{before} \u2192 {after}")
        assert step.read is not None
        values, counts = np.unique(step.read.neighbour[task], return_counts=True)
        known = {setup().job.names[v]: c for v, c in zip(values, counts, strict=True) if v >= 0}
        first = neighbours.split(" and ")[0].split(", ")[0]
        name, _, count = first.partition(" \u00d7")
        assert (known[name], max(known.values())) == (int(count), int(count))
    browser.evaluate("document.getElementById('decision-act').click()")
    at = int(browser.text("decision-position").partition(" of ")[0])
    assert traced_steps()[at - 1].restarted
    assert browser.errors() == []


def test_page_fits_the_window(browser: Browser, address: str) -> None:
    for width, dark in ((390, False), (820, True), (1920, True)):
        assert_fits(browser, address, width, dark)


def test_one_rule_has_no_decisions(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = build_page([recorded("flink")], setup().job.names, "one", "stream_scaling")
    page.write_text(text, encoding="utf-8")
    assert_self_contained(browser, page.as_uri())
    assert browser.evaluate("document.getElementById('decisions').hidden")
    assert browser.evaluate("document.getElementById('gap').hidden")
