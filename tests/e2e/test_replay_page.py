"""The replay page in a real browser: what it shows is what the simulator did."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.platform.cli.main import main
from loadmaster.platform.replay.page import build_page
from tests.replays import assert_opens_by_itself

if TYPE_CHECKING:
    from tests.browser import Browser

POLICIES = ("fair", "fifo")
SEED = 3
BATCH = DagSchedulingSettings()
NO_FIGURE = "\N{EN DASH}"


@pytest.fixture(scope="module")
def episodes() -> tuple[EpisodeResult, ...]:
    return tuple(run_episode(policy, BATCH, SEED, record=True) for policy in POLICIES)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as the command writes it."""
    output = tmp_path_factory.mktemp("replay") / "replay.html"
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    given = ["replay", "dag_scheduling", *policies, "--seed", str(SEED), "-o", str(output)]
    assert main(given) == 0
    return output.as_uri()


def seconds(text: str) -> float:
    return math.nan if text == NO_FIGURE else float(text.removesuffix(" s").replace(",", ""))


def row_at(result: EpisodeResult, executor: int, ms: float) -> int:
    """The row of the trace that runs there and then, or -1."""
    trace = result.trace
    assert trace is not None
    now = (trace.executor == executor) & (trace.start_ms <= ms) & (trace.end_ms > ms)
    return int(np.flatnonzero(now)[0]) if now.any() else -1


def figures_at(result: EpisodeResult, at_s: float) -> dict[str, float]:
    """What the page should show, counted anew from the result."""
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
    texts = {name: browser.text(f"{name}-{policy}") for name in names}
    texts["completed"] = texts["completed"].partition(" of ")[0]
    return {name: seconds(text) for name, text in texts.items()}


def plot(browser: Browser, panel: int) -> dict[str, float]:
    """Where a panel's Gantt lies in the window, and where time 0 is in it."""
    box: dict[str, float] = browser.evaluate(
        f"""(() => {{
          const canvas = document.querySelectorAll(".gantt")[{panel}];
          const {{left, top, width, height}} = canvas.getBoundingClientRect();
          const gutter = getComputedStyle(canvas).getPropertyValue("--gutter");
          return {{left, top, width, height, gutter: parseFloat(gutter)}};
        }})()"""
    )
    return box


def test_it_opens_without_a_fault_or_a_request(browser: Browser, address: str) -> None:
    assert_opens_by_itself(browser, address)


def test_the_totals(browser: Browser, address: str, episodes: tuple[EpisodeResult, ...]) -> None:
    browser.open(address)
    fair, fifo = episodes
    assert browser.text("headline").replace("\xa0", " ") == (
        f"fair finishes the average job in {fair.mean_jct_s:.0f} s, "
        f"fifo in {fifo.mean_jct_s:.0f} s, on the same 20 jobs"
    )
    for result in episodes:
        assert browser.text(f"jct-{result.policy}") == f"{result.mean_jct_s:,.1f} s"
        assert browser.text(f"makespan-{result.policy}") == f"{result.makespan_s:,.1f} s"


@pytest.mark.parametrize("share", [0, 0.001, 0.137, 0.31, 0.64, 0.999, 1])
def test_the_figures_at_a_moment(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...], share: float
) -> None:
    at_s = round(share * max(result.end_s for result in episodes), 4)
    browser.open(f"{address}#t={at_s}")
    assert seconds(browser.text("time")) == pytest.approx(at_s, abs=0.051)
    for result in episodes:
        expected = figures_at(result, at_s)
        assert shown(browser, result.policy) == pytest.approx(expected, abs=0.051, nan_ok=True)


def test_it_opens_where_the_policies_differ_the_most(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...]
) -> None:
    browser.open(address)
    shown_gap = abs(shown(browser, "fair")["in-system"] - shown(browser, "fifo")["in-system"])
    moments = np.concatenate([result.completion_s for result in episodes])
    gaps = []
    for at_s in moments:
        counts = [figures_at(result, at_s)["in-system"] for result in episodes]
        gaps.append(abs(counts[0] - counts[1]) if min(counts) > 0 else 0)
    assert shown_gap == max(gaps)


@pytest.mark.parametrize("panel", [0, 1])
def test_a_task_is_painted_where_it_ran_in_the_colour_of_its_job(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...], panel: int
) -> None:
    browser.open(f"{address}#t=1e9")  # the cursor is at the end, out of the way
    box, result = plot(browser, panel), episodes[panel]
    end_s = max(other.end_s for other in episodes)
    plot_width = box["width"] - box["gutter"]
    trace = result.trace
    assert trace is not None
    length = np.where(trace.moving == 0, trace.end_ms - trace.start_ms, 0)
    for row in np.argsort(length)[-12:]:  # the longest cover whole pixels
        middle_s = (trace.start_ms[row] + trace.end_ms[row]) / 2000
        x = int(box["gutter"] + middle_s / end_s * plot_width)
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


def test_a_click_on_a_task_moves_the_cursor_and_keeps_its_job_lit(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...]
) -> None:
    browser.open(f"{address}#t=0")
    box, fifo = plot(browser, 1), episodes[1]
    end_s = max(result.end_s for result in episodes)
    trace = fifo.trace
    assert trace is not None
    row = int(np.argmax(np.where(trace.moving == 0, trace.end_ms - trace.start_ms, 0)))
    job = int(trace.job[row])
    middle_s = (trace.start_ms[row] + trace.end_ms[row]) / 2000
    x = box["left"] + box["gutter"] + middle_s / end_s * (box["width"] - box["gutter"])
    y = box["top"] + (trace.executor[row] + 0.5) / fifo.executors * box["height"]
    browser.click(round(x), y)
    assert seconds(browser.text("time")) == pytest.approx(middle_s, abs=end_s / 400)
    assert browser.evaluate("document.querySelector('tr.kept').dataset.job") == str(job)
    told = browser.text("selected")
    assert told.startswith(f"job {job + 1}, ")
    for result in episodes:
        assert f"JCT {result.jct_s[job]:,.1f} s under {result.policy}" in told
    assert f"executor {trace.executor[row] + 1}, stage {trace.stage[row] + 1}" in browser.text(
        "tip"
    )
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('tr.kept')") is None


def test_the_keyboard_is_enough(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...]
) -> None:
    end_s = max(result.end_s for result in episodes)
    browser.open(address)
    browser.press("Home")
    assert browser.text("time") == "0.0 s"
    browser.press("ArrowRight")
    assert seconds(browser.text("time")) == pytest.approx(end_s / 100, abs=0.051)
    browser.press("End")
    assert seconds(browser.text("time")) == pytest.approx(end_s, abs=0.051)

    browser.press(" ")  # plays from the start again
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
    assert browser.evaluate("document.querySelector('tr.kept').dataset.job") == "1"
    assert browser.faults() == []


def test_zoom_and_pan(browser: Browser, address: str) -> None:
    def window() -> list[float]:
        found: list[float] = browser.evaluate(
            """new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(
              ["--window-from", "--window-to"].map((name) =>
                parseFloat(document.getElementById("charts").style.getPropertyValue(name)))))))"""
        )
        return found

    def press_button(name: str) -> None:
        browser.evaluate(f"document.getElementById('{name}').click()")

    browser.open(address)
    assert window() == pytest.approx([0, 100])
    press_button("zoom-in")
    start, end = window()
    assert end - start == pytest.approx(100 / 1.6)
    press_button("pan-back")
    press_button("pan-back")
    press_button("pan-back")
    assert window()[0] == 0
    press_button("pan-on")
    assert window()[0] > 0
    browser.press("0")
    assert window() == pytest.approx([0, 100])

    box = plot(browser, 0)
    where = {"x": box["left"] + box["width"] / 2, "y": box["top"] + 20}
    browser.send("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-400, **where)
    start, end = window()
    assert end - start == pytest.approx(100 / math.e, rel=0.01)
    for kind, shift in (("mousePressed", 0), ("mouseMoved", 80), ("mouseReleased", 80)):
        moved = {"x": where["x"] + shift, "y": where["y"]}
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **moved)
    assert window()[0] == pytest.approx(
        start - 80 / (box["width"] - box["gutter"]) * (end - start), rel=0.01
    )


def test_sorting_the_jobs(
    browser: Browser, address: str, episodes: tuple[EpisodeResult, ...]
) -> None:
    browser.open(address)
    browser.evaluate("document.querySelectorAll('#jobs thead button')[4].click()")  # fifo's JCT
    order = browser.evaluate(
        "[...document.querySelectorAll('#jobs tbody tr')].map((row) => Number(row.dataset.job))"
    )
    assert order == np.argsort(episodes[1].jct_s, kind="stable").tolist()


@pytest.mark.parametrize(("width", "dark"), [(390, False), (820, True), (1920, True)])
def test_it_fits_the_window(browser: Browser, address: str, width: int, dark: bool) -> None:
    browser.open(address, width=width, height=900, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.strip("rgb()").split(","))
    assert (brightness < 200) == dark
    assert browser.faults() == []


def test_the_page_cannot_reach_out(browser: Browser, address: str) -> None:
    """The security policy holds, whatever a page is made to try."""
    browser.open(address)
    refused = browser.evaluate(
        """new Promise((done) => {
          const seen = [];
          document.addEventListener("securitypolicyviolation", (event) => {
            seen.push(event.effectiveDirective);
            if (seen.length === 2) done(seen.sort());
          });
          fetch("http://127.0.0.1:9/").catch(() => {});
          document.body.append(Object.assign(document.createElement("script"), {text: "1"}));
        })"""
    )
    assert refused == ["connect-src", "script-src-elem"]


def open_results(
    browser: Browser, folder: Path, results: list[EpisodeResult], names: list[str], title: str
) -> None:
    page = folder / "page.html"
    page.write_text(build_page(results, names, title), encoding="utf-8")
    browser.open(page.as_uri())
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.faults() == []


def test_a_stream_of_200_jobs(browser: Browser, tmp_path: Path) -> None:
    stream = DagSchedulingSettings(arrivals="poisson")
    results = [run_episode(policy, stream, SEED, record=True) for policy in POLICIES]
    names = [f"job of template {number}" for number in results[0].template]
    open_results(browser, tmp_path, results, names, "a stream")
    at_s = seconds(browser.text("time"))
    for result in results:  # the moment is known to 0.1 s, jobs in the system change more slowly
        nearby = {figures_at(result, at_s + d)["in-system"] for d in (-0.05, 0, 0.05)}
        assert shown(browser, result.policy)["in-system"] in nearby
    assert browser.evaluate("document.querySelectorAll('#jobs tbody tr').length") == 201


def test_one_policy_cut_off_by_a_horizon(
    browser: Browser, tmp_path: Path, episodes: tuple[EpisodeResult, ...]
) -> None:
    fifo = episodes[1]
    last = np.argsort(fifo.completion_s)[-3:]
    completion_s = fifo.completion_s.copy()
    completion_s[last] = np.nan
    cut = dataclasses.replace(fifo, completion_s=completion_s)
    nasty = "<img src=x onerror=alert(1)>"
    open_results(browser, tmp_path, [cut], [nasty] * 20, "cut")
    assert "3 jobs under fifo" in browser.text("note")
    assert browser.text("makespan-fifo") == NO_FIGURE
    assert browser.evaluate("document.querySelectorAll('.gantt').length") == 1
    assert browser.evaluate("document.getElementById('gap').hidden")
    assert browser.evaluate("document.querySelector('#jobs td').textContent") == f"1 {nasty}"
    row: Any = browser.evaluate(f"document.querySelector('tr[data-job=\"{last[0]}\"]').textContent")
    assert row.endswith(NO_FIGURE)
