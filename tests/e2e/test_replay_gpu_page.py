"""The replay page of GPU scheduling in a real browser: machines by time, and decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.das import replay as gpu
from loadmaster.platform.systems.das.decision_trace import Step
from loadmaster.platform.systems.das.policy import DasPolicy
from loadmaster.platform.systems.das.replay import lay_out
from tests.replays import assert_opens_by_itself

if TYPE_CHECKING:
    from tests.browser import Browser

SETTINGS = GpuSchedulingSettings(jobs=60, load=2.0, preempt=True)
SEED = 3
RIVAL = "las-consolidate"


@pytest.fixture(scope="module")
def episodes() -> tuple[gpu.Watched, gpu.Watched]:
    torch.manual_seed(1)
    policy = DasPolicy(DasNetwork(DasSettings(width=16, heads=2, layers=1)), SETTINGS)
    workload = load_workload(SETTINGS)
    ours = gpu.run("das", policy, SETTINGS, SEED, workload, True)
    return ours, gpu.run(RIVAL, None, SETTINGS, SEED, workload, True)


@pytest.fixture(scope="module")
def address(
    episodes: tuple[gpu.Watched, gpu.Watched], tmp_path_factory: pytest.TempPathFactory
) -> str:
    page: Path = tmp_path_factory.mktemp("gpu") / "replay.html"
    names = [str(number) for number in episodes[0].result.jobs.job_id]
    page.write_text(build_page(episodes, names, "two", "gpu_scheduling"), encoding="utf-8")
    return page.as_uri()


def steps_of(episodes: tuple[gpu.Watched, gpu.Watched]) -> tuple[Step, ...]:
    case = episodes[0].case
    assert case is not None
    return case.steps


def figures_at(result: EpisodeResult, at_s: float) -> dict[str, str]:
    """What the page should show, counted anew from the trace; a moment's events have happened."""
    trace = result.trace
    assert trace is not None
    now = (trace.start_s <= at_s) & (trace.end_s > at_s)
    running = len(set(trace.job[now].tolist()))
    done = int((result.finish_s <= at_s).sum())
    here = int((result.jobs.arrival_s <= at_s).sum()) - done
    used = float((trace.instances * result.jobs.gpu[trace.job])[now].sum()) / 100
    return {
        "waiting": str(here - running),
        "running": str(running),
        "completed": f"{done} of 60",
        "busy": f"{used:g} of 32",
    }


def test_it_opens_without_a_fault_or_a_request(browser: Browser, address: str) -> None:
    assert_opens_by_itself(browser, address)


@pytest.mark.parametrize("share", [0.0, 0.013, 0.07, 0.31, 0.9])
def test_the_figures_at_a_moment(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched], share: float
) -> None:
    at_s = round(share * max(each.end_s for each in episodes), 3) + 0.0005
    browser.open(f"{address}#t={at_s}")
    for each in episodes:
        expected = figures_at(each.result, at_s)
        assert {name: browser.text(f"{name}-{each.policy}") for name in expected} == expected


def test_totals_tell_preemptions_and_fees(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    browser.open(address)
    for each in episodes:
        assert browser.text(f"preemptions-{each.policy}") == str(each.result.preemptions)
        assert browser.text(f"fee-{each.policy}") == f"${each.result.fee.mean():,.2f}"
        assert browser.text(f"jct-{each.policy}") == f"{each.result.mean_jct_s / 3600:.1f} h"


def test_a_gang_is_lit_on_all_its_machines(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    """Under the pointer, its bars keep their colour and all others fade."""
    result = episodes[1].result
    assert result.trace is not None
    bars = lay_out(result.trace, episodes[1].cluster, result.jobs)
    wide = (bars.height >= 100) & (bars.end_s - bars.start_s > 3600)
    spread = [
        job
        for job in np.unique(bars.job[wide])
        if len(set(bars.machine[wide & (bars.job == job)])) > 1
    ]
    assert spread
    job = int(spread[0])
    browser.open(f"{address}#t=1e9&job={result.jobs.job_id[job]}")
    assert browser.evaluate("document.querySelector('tr.kept').dataset.job") == str(job)
    colours = browser.evaluate(
        f"""new Promise((done) => requestAnimationFrame(() => setTimeout(() => {{
          const canvas = document.querySelectorAll(".gantt")[1];
          const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const swatch = document.querySelector('tr[data-job="{job}"] .swatch');
          const wanted = getComputedStyle(swatch).backgroundColor;
          const rows = new Set();
          for (let at = 0; at < data.length; at += 4) {{
            const colour = `rgb(${{data[at]}}, ${{data[at + 1]}}, ${{data[at + 2]}})`;
            if (colour === wanted) rows.add(Math.floor(at / 4 / canvas.width));
          }}
          done([...rows]);
        }}, 50)))"""
    )
    assert len(colours) > 10  # several machines' worth of lines
    assert max(colours) - min(colours) > len(colours) / 2


def test_the_first_decision_and_the_arrows(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    steps = steps_of(episodes)
    browser.open(f"{address}#decision=1")
    assert browser.text("step-place") == f"1 of {len(steps)}"
    assert "with a choice" in browser.text("decisions-about")
    browser.evaluate("document.getElementById('decisions').focus()")
    browser.press("ArrowRight")
    assert browser.text("step-place") == f"2 of {len(steps)}"
    assert browser.text("time") == f"{steps[1].time_s / 3600:.2f} h"
    browser.press("End")
    assert browser.text("step-place") == f"{len(steps)} of {len(steps)}"
    browser.press("ArrowLeft")
    browser.evaluate("document.activeElement.blur()")
    browser.press("p")
    assert browser.text("step-place") == f"{len(steps) - 2} of {len(steps)}"
    browser.evaluate(
        """(() => { const slider = document.getElementById("step"); slider.value = 4;
           slider.dispatchEvent(new Event("input")); })()"""
    )
    assert browser.text("step-place") == f"5 of {len(steps)}"
    assert browser.faults() == []


def test_a_decision_shows_its_jobs_in_their_turn(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    steps = steps_of(episodes)
    jobs = episodes[0].result.jobs
    place = max(range(len(steps)), key=lambda i: len(steps[i].startable))
    step = steps[place]
    browser.open(f"{address}#decision={place + 1}")
    rows = browser.evaluate(
        """[...document.querySelectorAll("#step-jobs tbody tr")].map((row) =>
             [Number(row.dataset.job), row.cells[5].textContent])"""
    )
    assert [job for job, _ in rows] == step.jobs[step.order].tolist()
    assert [float(text) for _, text in rows] == pytest.approx(
        step.mean[step.order].tolist(), abs=0.0051 + float(np.ptp(step.mean)) / 4000
    )
    first = step.jobs[step.order[0]]
    assert f"job {jobs.job_id[first]} goes first, to machine" in browser.text("step-words")


def test_a_tip_tells_the_affinity_to_a_machine(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    steps = steps_of(episodes)
    place = next(i for i, step in enumerate(steps) if step.kind == on.PLACING)
    step = steps[place]
    liked = step.affinity[step.startable.tolist().index(int(step.order[0]))]
    machine = int(np.nanargmax(liked))
    browser.open(f"{address}#decision={place + 1}", height=1400)
    box = browser.evaluate(
        """new Promise((done) => requestAnimationFrame(() => setTimeout(() => {
          const box = document.querySelector("#step-jobs tbody canvas").getBoundingClientRect();
          done({left: box.left, top: box.top, width: box.width});
        }, 50)))"""
    )
    racks = episodes[0].cluster.rack
    cell = (box["width"] - 6 * int(racks[-1])) / len(racks)
    x = box["left"] + (machine + 0.5) * cell + 6 * int(racks[machine])
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=box["top"] + 12)
    told = browser.text("tip")
    assert f"machine {machine + 1} (rack {racks[machine] + 1}, " in told
    assert "liked best" in told
    assert "placed here" in told


def test_the_next_stop_says_who_gives_way_to_whom(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    steps = steps_of(episodes)
    place = next(i for i, step in enumerate(steps) if step.stopped)
    browser.open(f"{address}#decision=1")
    browser.evaluate("document.getElementById('step-stop').click()")
    assert browser.text("step-place") == f"{place + 1} of {len(steps)}"
    names = episodes[0].result.jobs.job_id
    assert f"job {names[steps[place].stopped[0]]} must leave machine" in browser.text("step-words")
    struck = browser.evaluate(
        "[...document.querySelectorAll('#step-jobs tr.stopped')].map((row) => +row.dataset.job)"
    )
    assert sorted(struck) == sorted(steps[place].stopped)


def test_moving_in_time_moves_the_decision(
    browser: Browser, address: str, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    steps = steps_of(episodes)
    at_s = steps[len(steps) // 2].time_s + 0.01
    place = sum(step.time_s <= at_s for step in steps)
    browser.open(f"{address}#t={at_s}")
    assert browser.text("step-place") == f"{place} of {len(steps)}"


def test_heuristics_have_no_decisions_to_show(
    browser: Browser, tmp_path: Path, episodes: tuple[gpu.Watched, gpu.Watched]
) -> None:
    page = tmp_path / "page.html"
    page.write_text(build_page([episodes[1]], ["j"] * 60, "one", "gpu_scheduling"), "utf-8")
    browser.open(page.as_uri())
    assert browser.faults() == []
    assert browser.evaluate("document.getElementById('decisions').hidden")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1000, True), (1400, False)])
def test_it_fits_the_window(browser: Browser, address: str, width: int, dark: bool) -> None:
    browser.open(f"{address}#decision=9", width=width, height=1000, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.faults() == []
