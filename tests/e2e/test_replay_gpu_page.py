"""The replay page of GPU scheduling in Chromium: machines by time, and decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.decision_state import PLACING
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das.decision_trace import RecordedEpisode
from loadmaster.platform.systems.das.replay import assign_gpu_rows
from tests.browser import assert_fits, assert_self_contained
from tests.platform.systems.das.traces import recorded, traced_steps

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow

NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))"


def episodes() -> tuple[RecordedEpisode, RecordedEpisode]:
    return recorded(), recorded("las-consolidate")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    page: Path = tmp_path_factory.mktemp("gpu") / "replay.html"
    names = list(map(str, recorded().jobs.job_id))
    page.write_text(build_page(episodes(), names, "two", "gpu_scheduling"), encoding="utf-8")
    return page.as_uri()


def figures_at(result: EpisodeResult, at_s: float) -> dict[str, str]:
    """Compute from the trace what the page should show."""
    trace = result.trace
    assert trace is not None
    now = (trace.start_s <= at_s) & (trace.end_s > at_s)
    running = len(set(trace.job[now].tolist()))
    done = int((result.finish_s <= at_s).sum())
    in_system = int((result.jobs.arrival_s <= at_s).sum()) - done
    used = float((trace.instances * result.jobs.gpu[trace.job])[now].sum()) / 100
    return {
        "waiting": str(in_system - running),
        "running": str(running),
        "completed": f"{done} of 60",
        "busy": f"{used:g} of 32",
    }


def position(browser: Browser) -> int:
    return int(browser.text("decision-position").partition(" of ")[0])


@pytest.mark.parametrize("share", [0.0, 0.07, 0.9])
def test_figures_at_a_time_match_the_trace(browser: Browser, address: str, share: float) -> None:
    at_s = round(share * max(each.end_s for each in episodes()), 3) + 0.0005
    browser.open(f"{address}#t={at_s}")
    for each in episodes():
        expected = figures_at(each, at_s)
        assert {name: browser.text(f"{name}-{each.policy}") for name in expected} == expected


def test_page_is_self_contained_and_shows_totals(browser: Browser, address: str) -> None:
    assert_self_contained(browser, address)
    for each in episodes():
        assert browser.text(f"preemptions-{each.policy}") == str(each.preemptions)
        assert browser.text(f"fee-{each.policy}") == f"${each.fee.mean():,.2f}"
        assert browser.text(f"jct-{each.policy}") == f"{each.mean_jct_s / 3600:.1f} h"


def test_highlighted_gang_keeps_its_colour_on_all_machines(browser: Browser, address: str) -> None:
    las = recorded("las-consolidate")
    assert las.trace is not None
    bars = assign_gpu_rows(las.trace, las.cluster, las.jobs)
    wide = (bars.height >= 100) & (bars.end_s - bars.start_s > 3600)
    job = next(
        int(job)
        for job in np.unique(bars.job[wide])
        if len(set(bars.machine[wide & (bars.job == job)])) > 1
    )
    browser.open(f"{address}#t=1e9&job={las.jobs.job_id[job]}")
    assert browser.evaluate("document.querySelector('tr.pinned').dataset.job") == str(job)
    rows = browser.evaluate(
        f"""{NEXT_FRAME}.then(() => {{
          const canvas = document.querySelectorAll(".gantt")[1];
          const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const swatch = document.querySelector('tr[data-job="{job}"] .swatch');
          const wanted = getComputedStyle(swatch).backgroundColor;
          const rows = new Set();
          for (let i = 0; i < data.length; i += 4) {{
            const colour = `rgb(${{data[i]}}, ${{data[i + 1]}}, ${{data[i + 2]}})`;
            if (colour === wanted) rows.add(Math.floor(i / 4 / canvas.width));
          }}
          return [...rows];
        }})"""
    )
    assert len(rows) > 10  # lines of several machines
    assert max(rows) - min(rows) > len(rows) / 2


def test_stepping_through_decisions(browser: Browser, address: str) -> None:
    steps = traced_steps()
    browser.open(f"{address}#decision=1")
    assert browser.text("decision-position") == f"1 of {len(steps)}"
    assert "with a choice" in browser.text("decisions-count")
    browser.evaluate("document.getElementById('decisions').focus()")
    browser.press("ArrowRight")
    assert position(browser) == 2
    assert browser.text("time") == f"{steps[1].time_s / 3600:.2f} h"
    browser.press("End")
    assert position(browser) == len(steps)
    browser.press("ArrowLeft")
    browser.evaluate("document.activeElement.blur()")
    browser.press("p")
    assert position(browser) == len(steps) - 2
    browser.evaluate(
        """(() => { const slider = document.getElementById("decision-slider"); slider.value = 4;
           slider.dispatchEvent(new Event("input")); })()"""
    )
    assert position(browser) == 5
    at_s = steps[len(steps) // 2].time_s + 0.01
    browser.open(f"{address}#t={at_s}")
    assert position(browser) == sum(step.time_s <= at_s for step in steps)
    assert browser.errors() == []


def test_decision_lists_jobs_in_order_of_priority(browser: Browser, address: str) -> None:
    das, steps = recorded(), traced_steps()
    index = max(range(len(steps)), key=lambda i: len(steps[i].startable))
    step = steps[index]
    browser.open(f"{address}#decision={index + 1}")
    rows = browser.evaluate(
        """[...document.querySelectorAll("#decision-jobs tbody tr")].map((row) =>
             [Number(row.dataset.job), row.cells[5].textContent])"""
    )
    assert [job for job, _ in rows] == step.jobs[step.order].tolist()
    assert [float(text) for _, text in rows] == pytest.approx(
        step.mean[step.order].tolist(), abs=0.0051 + float(np.ptp(step.mean)) / 4000
    )
    first = das.jobs.job_id[step.jobs[step.order[0]]]
    assert f"job {first} starts first" in browser.text("decision-text")


def test_tooltip_shows_the_affinity_to_a_machine(browser: Browser, address: str) -> None:
    das, steps = recorded(), traced_steps()
    index, step = next((i, step) for i, step in enumerate(steps) if step.kind == PLACING)
    affinity = step.affinity[step.startable.tolist().index(int(step.order[0]))]
    machine = int(np.nanargmax(affinity))
    browser.open(f"{address}#decision={index + 1}", height=1400)
    left, top, width = browser.evaluate(
        f"""{NEXT_FRAME}.then(() => {{
          const canvas = document.querySelector("#decision-jobs tbody canvas");
          const {{left, top, width}} = canvas.getBoundingClientRect();
          return [left, top, width];
        }})"""
    )
    racks = das.cluster.rack
    cell = (width - 6 * int(racks[-1])) / len(racks)
    mouse: Any = {"x": left + (machine + 0.5) * cell + 6 * int(racks[machine]), "y": top + 12}
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **mouse)
    tip = browser.text("tip")
    assert f"machine {machine + 1} (rack {racks[machine] + 1}, " in tip
    assert "highest of all machines" in tip
    assert "placed here" in tip


def test_next_stop_names_the_stopped_jobs(browser: Browser, address: str) -> None:
    das, steps = recorded(), traced_steps()
    index, step = next((i, step) for i, step in enumerate(steps) if step.stopped)
    browser.open(f"{address}#decision=1")
    browser.evaluate("document.getElementById('decision-stop').click()")
    assert position(browser) == index + 1
    name = das.jobs.job_id[step.stopped[0]]
    assert f"job {name} is stopped on machine" in browser.text("decision-text")
    rows = "document.querySelectorAll('#decision-jobs tr.stopped')"
    stopped = browser.evaluate(f"[...{rows}].map((row) => Number(row.dataset.job))")
    assert sorted(stopped) == sorted(step.stopped)


def test_heuristic_has_no_decision_panel(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(build_page(episodes()[1:], ["j"] * 60, "one", "gpu_scheduling"), "utf-8")
    assert_self_contained(browser, page.as_uri())
    assert browser.evaluate("document.getElementById('decisions').hidden")


def test_page_fits_the_window(browser: Browser, address: str) -> None:
    for width, dark in ((390, False), (1000, True)):
        assert_fits(browser, f"{address}#decision=9", width, dark)
