"""The replay page of DAG scheduling in Chromium, compared with the recorded episodes."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.platform.cli.main import main
from loadmaster.platform.replay.page import build_page
from tests.browser import assert_fits, assert_self_contained

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow

POLICIES = ("fair", "fifo")
SEED = 3
NO_NUMBER = "\N{EN DASH}"
NEXT_FRAME = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"


@cache
def episodes() -> tuple[EpisodeResult, ...]:
    settings = DagSchedulingSettings()
    return tuple(run_episode(policy, settings, SEED, record=True) for policy in POLICIES)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as the command writes it."""
    output = tmp_path_factory.mktemp("replay") / "replay.html"
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    assert main(["replay", "dag_scheduling", *policies, "--seed", "3", "-o", str(output)]) == 0
    return output.as_uri()


def seconds(text: str) -> float:
    return math.nan if text == NO_NUMBER else float(text.removesuffix(" s").replace(",", ""))


def figures_at(result: EpisodeResult, at_s: float) -> dict[str, float]:
    """Compute from the result what the page should show."""
    trace = result.trace
    assert trace is not None
    running = (trace.start_ms <= at_s * 1000) & (trace.end_ms > at_s * 1000)
    done = result.completion_s <= at_s
    moving = int((running & (trace.moving == 1)).sum())
    busy = int(running.sum()) - moving
    return {
        "in-system": int(((result.arrival_s <= at_s) & ~done).sum()),
        "completed": int(done.sum()),
        "jct-so-far": float(result.jct_s[done].mean()) if done.any() else math.nan,
        "busy": busy,
        "moving": moving,
        "idle": result.executors - busy - moving,
    }


def shown(browser: Browser, policy: str) -> dict[str, float]:
    names = ("in-system", "completed", "jct-so-far", "busy", "moving", "idle")
    return {n: seconds(browser.text(f"{n}-{policy}").partition(" of ")[0]) for n in names}


def plot(browser: Browser, panel: int) -> dict[str, float]:
    """Return the box of a panel's Gantt chart in the window, and the x of time 0 in it."""
    box: dict[str, float] = browser.evaluate(
        f"""(() => {{
          const canvas = document.querySelectorAll(".gantt")[{panel}];
          const {{left, top, width, height}} = canvas.getBoundingClientRect();
          const gutter = getComputedStyle(canvas).getPropertyValue("--gutter");
          return {{left, top, width, height, gutter: parseFloat(gutter)}};
        }})()"""
    )
    return box


def longest_tasks(result: EpisodeResult, count: int) -> list[tuple[int, float]]:
    """Return rows of the trace with the middle of their time."""
    trace = result.trace
    assert trace is not None
    length = np.where(trace.moving == 0, trace.end_ms - trace.start_ms, 0)
    return [(r, (trace.start_ms[r] + trace.end_ms[r]) / 2000) for r in np.argsort(length)[-count:]]


def test_page_is_self_contained_and_shows_totals(browser: Browser, address: str) -> None:
    assert_self_contained(browser, address)
    for result in episodes():
        assert result.policy in browser.text("headline")
        assert f"{result.mean_jct_s:.0f}\xa0s" in browser.text("headline")
        assert browser.text(f"jct-{result.policy}") == f"{result.mean_jct_s:,.1f} s"
        assert browser.text(f"makespan-{result.policy}") == f"{result.makespan_s:,.1f} s"


@pytest.mark.parametrize("share", [0, 0.137, 0.64, 1])
def test_figures_at_a_time_match_the_trace(browser: Browser, address: str, share: float) -> None:
    at_s = round(share * max(result.end_s for result in episodes()), 4)
    browser.open(f"{address}#t={at_s}")
    assert seconds(browser.text("time")) == pytest.approx(at_s, abs=0.051)
    for result in episodes():
        expected = figures_at(result, at_s)
        assert shown(browser, result.policy) == pytest.approx(expected, abs=0.051, nan_ok=True)


def test_initial_time_is_at_the_widest_gap(browser: Browser, address: str) -> None:
    browser.open(address)
    fair, fifo = (shown(browser, policy)["in-system"] for policy in POLICIES)
    gaps = []
    for at_s in np.concatenate([result.completion_s for result in episodes()]):
        counts = [figures_at(result, at_s)["in-system"] for result in episodes()]
        gaps.append(abs(counts[0] - counts[1]) if min(counts) > 0 else 0)
    assert abs(fair - fifo) == max(gaps)


@pytest.mark.parametrize("panel", [0, 1])
def test_tasks_have_the_colour_of_their_job(browser: Browser, address: str, panel: int) -> None:
    browser.open(f"{address}#t=1e9")  # the cursor is at the end, outside the tasks
    box, result = plot(browser, panel), episodes()[panel]
    end_s = max(other.end_s for other in episodes())
    trace = result.trace
    assert trace is not None
    for row, middle_s in longest_tasks(result, 12):  # they cover whole pixels
        x = int(box["gutter"] + middle_s / end_s * (box["width"] - box["gutter"]))
        y = int((trace.executor[row] + 0.4) / result.executors * box["height"])
        painted, swatch = browser.evaluate(
            f"""(() => {{
              const canvas = document.querySelectorAll(".gantt")[{panel}];
              const [r, g, b] = canvas.getContext("2d").getImageData({x}, {y}, 1, 1).data;
              const job = document.querySelector('tr[data-job="{trace.job[row]}"] .swatch');
              return [`rgb(${{r}}, ${{g}}, ${{b}})`, getComputedStyle(job).backgroundColor];
            }})()"""
        )
        assert painted == swatch


def test_click_on_a_task_moves_the_cursor_and_pins_its_job(browser: Browser, address: str) -> None:
    browser.open(f"{address}#t=0")
    box, fifo = plot(browser, 1), episodes()[1]
    end_s = max(result.end_s for result in episodes())
    trace = fifo.trace
    assert trace is not None
    ((row, middle_s),) = longest_tasks(fifo, 1)
    job = int(trace.job[row])
    x = box["left"] + box["gutter"] + middle_s / end_s * (box["width"] - box["gutter"])
    y = box["top"] + (trace.executor[row] + 0.5) / fifo.executors * box["height"]
    browser.click(round(x), y)
    assert seconds(browser.text("time")) == pytest.approx(middle_s, abs=end_s / 400)
    assert browser.evaluate("document.querySelector('tr.pinned').dataset.job") == str(job)
    text = browser.text("selected")
    assert text.startswith(f"job {job + 1}, ")
    for result in episodes():
        assert f"JCT {result.jct_s[job]:,.1f} s under {result.policy}" in text
    task = f"executor {trace.executor[row] + 1}, stage {trace.stage[row] + 1}"
    assert task in browser.text("tip")
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('tr.pinned')") is None


def test_keyboard_controls(browser: Browser, address: str) -> None:
    end_s = max(result.end_s for result in episodes())
    browser.open(address)
    for key, expected in (("Home", 0.0), ("ArrowRight", end_s / 100), ("End", end_s)):
        browser.press(key)
        assert seconds(browser.text("time")) == pytest.approx(expected, abs=0.051)
    browser.press(" ")  # plays from the start
    later = "new Promise((done) => setTimeout(done, 400))"
    browser.evaluate(later)
    assert browser.evaluate("document.getElementById('play').ariaLabel") == "Pause"
    browser.press(" ")
    paused_at = seconds(browser.text("time"))
    assert 0 < paused_at < end_s
    browser.evaluate(later)
    assert seconds(browser.text("time")) == paused_at

    browser.evaluate("document.querySelector('#jobs tbody tr').focus()")
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.evaluate("document.querySelector('tr.pinned').dataset.job") == "1"
    assert browser.errors() == []


def test_zoom_and_pan(browser: Browser, address: str) -> None:
    def window(button: str = "") -> list[float]:
        """Press a button and return the time window in percent of the episode."""
        press = f"document.getElementById('{button}').click();" if button else ""
        found: list[float] = browser.evaluate(
            f"""(async () => {{
              {press} {NEXT_FRAME}
              return ["--window-from", "--window-to"].map((name) =>
                parseFloat(document.getElementById("charts").style.getPropertyValue(name)));
            }})()"""
        )
        return found

    browser.open(address)
    assert window() == pytest.approx([0, 100])
    start, end = window("zoom-in")
    assert end - start == pytest.approx(100 / 1.6)
    assert [window("pan-left") for _ in range(3)][-1][0] == 0
    assert window("pan-right")[0] > 0
    browser.press("0")
    assert window() == pytest.approx([0, 100])

    box = plot(browser, 0)
    mouse = {"x": box["left"] + box["width"] / 2, "y": box["top"] + 20}
    browser.send("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-400, **mouse)
    start, end = window()
    assert end - start == pytest.approx(100 / math.e, rel=0.01)
    for kind, shift in (("mousePressed", 0), ("mouseMoved", 80), ("mouseReleased", 80)):
        moved = {"x": mouse["x"] + shift, "y": mouse["y"]}
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **moved)
    shift_percent = 80 / (box["width"] - box["gutter"]) * (end - start)
    assert window()[0] == pytest.approx(start - shift_percent, rel=0.01)


def test_sorting_the_jobs(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.evaluate("document.querySelectorAll('#jobs thead button')[4].click()")  # JCT of fifo
    order = browser.evaluate(
        "[...document.querySelectorAll('#jobs tbody tr')].map((row) => Number(row.dataset.job))"
    )
    assert order == np.argsort(episodes()[1].jct_s, kind="stable").tolist()


def test_page_fits_the_window(browser: Browser, address: str) -> None:
    for width, dark in ((390, False), (820, True), (1920, True)):
        assert_fits(browser, address, width, dark)


def open_results(
    browser: Browser, folder: Path, results: list[EpisodeResult], names: list[str]
) -> None:
    page = folder / "page.html"
    page.write_text(build_page(results, names, "title"), encoding="utf-8")
    assert_self_contained(browser, page.as_uri())


def test_stream_of_200_jobs(browser: Browser, tmp_path: Path) -> None:
    stream = DagSchedulingSettings(arrivals="poisson")
    results = [run_episode(policy, stream, SEED, record=True) for policy in POLICIES]
    open_results(browser, tmp_path, results, [str(number) for number in results[0].template])
    at_s = seconds(browser.text("time"))
    for result in results:  # the page shows the time to 0.1 s
        nearby = {figures_at(result, at_s + d)["in-system"] for d in (-0.05, 0, 0.05)}
        assert shown(browser, result.policy)["in-system"] in nearby
    assert browser.evaluate("document.querySelectorAll('#jobs tbody tr').length") == 201


def test_one_policy_with_unfinished_jobs(browser: Browser, tmp_path: Path) -> None:
    fifo = episodes()[1]
    last = np.argsort(fifo.completion_s)[-3:]
    completion_s = fifo.completion_s.copy()
    completion_s[last] = np.nan
    cut = dataclasses.replace(fifo, completion_s=completion_s)
    hostile = "<img src=x onerror=alert(1)>"
    open_results(browser, tmp_path, [cut], [hostile] * 20)
    assert "3 jobs under fifo" in browser.text("note")
    assert browser.text("makespan-fifo") == NO_NUMBER
    assert browser.evaluate("document.querySelectorAll('.gantt').length") == 1
    assert browser.evaluate("document.getElementById('gap').hidden")
    assert browser.evaluate("document.querySelector('#jobs td').textContent") == f"1 {hostile}"
    row = browser.evaluate(f"document.querySelector('tr[data-job=\"{last[0]}\"]').textContent")
    assert str(row).endswith(NO_NUMBER)
