// The replay page: reads the data, creates the panels, and repaints what changes.

import { paintCounts, paintMarks, paintRuler } from "./charts.js";
import { readReplay, widestGap } from "./data.js";
import { byId, element, showTooltip } from "./dom.js";
import { timeText } from "./format.js";
import { createJobTable } from "./jobs.js";
import { css, readTheme } from "./palette.js";
import { addControls, addPlotEvents, createPlayer } from "./player.js";
import { createSelection } from "./table.js";
import { createView, secondsToX, showWindow } from "./view.js";

// The arguments are what differs between environments:
// schedule: unpackSchedule(packed, replay), countJobs(replay, policy), markRows(replay, policy),
//   totals(policy), figuresAt(replay, policy, seconds) -> { count, texts }
// plot: plotShape(replay, height), paintPlot(canvas, replay, policy, view, theme, shape, job),
//   plotLabel(policy), rowAt(replay, policy, view, shape, x, y), rowText(replay, policy, row),
//   initialEnd(replay)
// jobs: hint, jobTitle(replay, job), jobText(replay, job), columns(replay), cellText(seconds),
//   barShare(seconds, longest), jobIndex(replay, id)
// createDecisionPanel(replay, player, selection) -> { follow, repaint, readFragment } or null
export function startPage({ schedule, plot, jobs, createDecisionPanel = () => null }) {
  addEventListener("error", (event) => {
    byId("error").textContent = `This page failed: ${event.message}`;
    byId("error").hidden = false;
  });

  const replay = readReplay(schedule);
  const view = createView(replay.end, replay.unit);
  const charts = byId("charts");
  let theme = readTheme(replay.jobs.name.length);
  let shape = plot.plotShape(replay, 240);
  let frame = 0; // of the pending repaint

  const panels = replay.policies.map(createPanel);
  const selection = createSelection("jobs", "job", showSelected);
  const jobRows = createJobTable(replay, jobs, selection);
  const player = createPlayer(replay.end, showTime);
  const decisions = createDecisionPanel(replay, player, selection);

  function createPanel(policy, i) {
    const panel = byId("panel").content.firstElementChild.cloneNode(true);
    const title = panel.querySelector("h2");
    title.textContent = policy.name;
    title.className = `policy-${i}`;
    const figures = {};
    const totals = schedule.totals(policy);
    panel.querySelectorAll("[data-figure]").forEach((node) => {
      const { figure } = node.dataset;
      node.id = `${figure}-${policy.name}`; // such as #jct-fair
      figures[figure] = node;
      if (figure in totals) node.textContent = totals[figure];
    });
    const gantt = panel.querySelector(".gantt");
    gantt.setAttribute("aria-label", plot.plotLabel(policy));
    panel.setAttribute("aria-label", `Schedule of ${policy.name}`);
    byId("panels").append(panel);
    return { policy, figures, gantt, marks: panel.querySelector(".marks") };
  }

  function repaint() {
    if (!frame) frame = requestAnimationFrame(paint);
  }

  function paint() {
    frame = 0;
    view.gutter = theme.gutter;
    view.width = Math.max(50, panels[0].gantt.parentElement.clientWidth - view.gutter);
    shape = plot.plotShape(replay, (innerHeight - 340) / panels.length - 130);
    paintRuler(byId("ruler"), view, theme);
    for (const { policy, gantt, marks } of panels) {
      paintMarks(marks, replay, policy, view, theme, selection.highlighted);
      plot.paintPlot(gantt, replay, policy, view, theme, shape, selection.highlighted);
    }
    paintCounts(byId("counts"), replay, view, theme);
    charts.style.setProperty("--window-from", `${(100 * view.from) / view.end}%`);
    charts.style.setProperty("--window-to", `${(100 * view.to) / view.end}%`);
    placeCursor();
  }

  function placeCursor() {
    charts.style.setProperty("--cursor", secondsToX(view, player.time));
    charts.classList.toggle("outside", player.time < view.from || player.time > view.to);
  }

  function showTime(seconds) {
    byId("scrubber").value = seconds;
    byId("scrubber").setAttribute("aria-valuetext", timeText(view.unit, seconds));
    byId("time").textContent = timeText(view.unit, seconds);
    panels.forEach(({ policy, figures }, i) => {
      const { texts, count } = schedule.figuresAt(replay, policy, seconds);
      for (const [figure, text] of Object.entries(texts)) figures[figure].textContent = text;
      byId("counts-key").children[i].lastChild.textContent = count;
    });
    if (player.playing && (seconds > view.to || seconds < view.from)) {
      showWindow(view, seconds, seconds + view.to - view.from); // the window follows the playback
      repaint();
    }
    placeCursor();
    decisions?.follow(seconds);
  }

  function showSelected(highlighted) {
    jobRows.forEach((row, job) => row.classList.toggle("highlighted", job === highlighted));
    if (highlighted < 0) byId("selected").textContent = jobs.hint;
    else {
      const title = element("b", jobs.jobTitle(replay, highlighted));
      byId("selected").replaceChildren(title, `: ${jobs.jobText(replay, highlighted)}`);
    }
    repaint();
  }

  function rowUnder(event, { gantt, policy }) {
    const box = gantt.getBoundingClientRect();
    return plot.rowAt(replay, policy, view, shape, event.clientX - box.left, event.clientY - box.top);
  }

  function hoverPlot(event, panel) {
    const row = event ? rowUnder(event, panel) : -1;
    const job = row < 0 ? -1 : panel.policy.schedule.job[row];
    selection.hover(job);
    if (row < 0) return showTooltip(event);
    return showTooltip(
      event,
      element("p", plot.rowText(replay, panel.policy, row), "muted"),
      element("b", jobs.jobTitle(replay, job)),
      element("p", jobs.jobText(replay, job)),
    );
  }

  function clickPlot(event, panel) {
    const row = rowUnder(event, panel);
    selection.pin(row < 0 ? -1 : panel.policy.schedule.job[row]);
  }

  // #t=60&from=40&to=90&job=7 sets the time, the time window and the pinned job.
  function readFragment() {
    const fragment = new URLSearchParams(location.hash.slice(1));
    const [t, from, to, job] = ["t", "from", "to", "job"].map((name) => Number(fragment.get(name) || NaN));
    if (to > from) showWindow(view, from, to);
    const index = jobs.jobIndex(replay, job);
    if (jobRows[index]) selection.pin(index);
    player.seek(Number.isFinite(t) ? t : widestGap(replay));
    decisions?.readFragment(fragment);
  }

  function updateTheme() {
    theme = readTheme(replay.jobs.name.length);
    jobRows.forEach((row, job) => {
      row.querySelector(".swatch").style.background = css(theme.jobs[job]);
    });
    decisions?.repaint(theme);
    repaint();
  }

  byId("scrubber").max = replay.end;
  replay.policies.forEach((policy, i) => {
    const entry = element("span", `${policy.name} `, `policy-${i}`);
    entry.append(element("b"));
    byId("counts-key").append(entry);
  });
  byId("gap").hidden = replay.policies.length < 2;
  byId("gap").addEventListener("click", () => player.seek(widestGap(replay)));
  addControls(player, view, selection, repaint);
  for (const panel of panels) {
    const hover = (event) => hoverPlot(event, panel);
    addPlotEvents(panel.gantt, player, view, repaint, hover, (event) => clickPlot(event, panel));
  }
  addPlotEvents(byId("counts"), player, view, repaint);
  addEventListener("resize", updateTheme); // the gutter depends on the width of the page
  addEventListener("hashchange", readFragment);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", updateTheme);
  showSelected(-1);
  showWindow(view, 0, plot.initialEnd(replay));
  updateTheme();
  readFragment();
  cancelAnimationFrame(frame);
  paint();
  document.documentElement.dataset.ready = "yes";
}
