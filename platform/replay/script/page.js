// The replay page: creates the panels, and repaints what changes.

import { paintMarks, paintRuler } from "./charts.js";
import { byId, element, showTooltip } from "./dom.js";
import { timeText } from "./format.js";
import { createItemTable } from "./items.js";
import { css, readTheme } from "./palette.js";
import { addControls, addPlotEvents, createPlayer } from "./player.js";
import { createSelection } from "./table.js";
import { createView, secondsToX, showWindow } from "./view.js";

// The arguments are what differs between environments. An item is a job, or a task of a job.
// read() -> replay { policies, unit, end, gap, shortest }: times in seconds; gap is the time with the largest
//   difference between the policies, shortest the shortest window. A policy has name, markRows
//   (charts.js) and, if items come and go, lifetime(item) -> { from, to }.
// panel: totals(policy), figuresAt(replay, policy, seconds) -> { texts, values by id of chart }
// plot: plotShape(replay, height), paintPlot(canvas, replay, policy, view, theme, shape, item),
//   plotLabel(policy), rowAt(replay, policy, view, shape, x, y), rowText(replay, policy, row),
//   itemOf(policy, row), initialEnd(replay), paintLegend(replay, theme) or nothing
// items: key, coloured, live (the text changes with time), hint, names(replay), title(replay, item),
//   text(replay, item, seconds), columns(replay), cellText(value), barsLabel, barShares(replay),
//   index(replay, id in the address)
// charts: { id, shared (one line for all policies), paint(canvas, replay, view, theme) }
// createDecisionPanel(replay, player, selection) -> { follow, repaint, readFragment } or null
export function startPage({ read, panel: figuresOf, plot, items, charts, createDecisionPanel = () => null }) {
  addEventListener("error", (event) => {
    byId("error").textContent = `This page failed: ${event.message}`;
    byId("error").hidden = false;
  });

  const replay = read();
  const view = createView(replay.end, replay.unit, replay.shortest);
  const plots = byId("charts");
  const itemCount = items.names(replay).length;
  let theme = readTheme(itemCount);
  let shape = plot.plotShape(replay, 240);
  let frame = 0; // of the pending repaint

  const panels = replay.policies.map(createPanel);
  const selection = createSelection(`${items.key}s`, items.key, showSelected);
  const itemRows = createItemTable(replay, items, selection);
  const player = createPlayer(replay.end, showTime);
  const decisions = createDecisionPanel(replay, player, selection);

  function createPanel(policy, i) {
    const panel = byId("panel").content.firstElementChild.cloneNode(true);
    const title = panel.querySelector("h2");
    title.textContent = policy.name;
    title.className = `policy-${i}`;
    const figures = {};
    const totals = figuresOf.totals(policy);
    panel.querySelectorAll("[data-figure]").forEach((node) => {
      const { figure } = node.dataset;
      node.id = `${figure}-${policy.name}`; // such as #jct-fair
      figures[figure] = node;
      if (figure in totals) node.textContent = totals[figure];
    });
    const gantt = panel.querySelector(".gantt");
    gantt.setAttribute("aria-label", plot.plotLabel(policy));
    panel.setAttribute("aria-label", plot.plotLabel(policy));
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
      paintMarks(marks, policy, view, theme, selection.highlighted);
      plot.paintPlot(gantt, replay, policy, view, theme, shape, selection.highlighted);
    }
    for (const { id, paint: paintChart } of charts) paintChart(byId(id), replay, view, theme);
    plots.style.setProperty("--window-from", `${(100 * view.from) / view.end}%`);
    plots.style.setProperty("--window-to", `${(100 * view.to) / view.end}%`);
    placeCursor();
  }

  function placeCursor() {
    plots.style.setProperty("--cursor", secondsToX(view, player.time));
    plots.classList.toggle("outside", player.time < view.from || player.time > view.to);
  }

  function showTime(seconds) {
    byId("scrubber").value = seconds;
    byId("scrubber").setAttribute("aria-valuetext", timeText(view.unit, seconds));
    byId("time").textContent = timeText(view.unit, seconds);
    panels.forEach(({ policy, figures }, i) => {
      const { texts, values } = figuresOf.figuresAt(replay, policy, seconds);
      for (const [figure, text] of Object.entries(texts)) figures[figure].textContent = text;
      for (const { id } of charts) {
        const entry = byId(`${id}-key`).children[i];
        if (entry) entry.lastChild.textContent = values[id];
      }
    });
    if (items.live && selection.highlighted >= 0) describe(selection.highlighted);
    if (player.playing && (seconds > view.to || seconds < view.from)) {
      showWindow(view, seconds, seconds + view.to - view.from); // the window follows the playback
      repaint();
    }
    placeCursor();
    decisions?.follow(seconds);
  }

  function showSelected(highlighted) {
    itemRows.forEach((row, item) => row.classList.toggle("highlighted", item === highlighted));
    if (highlighted < 0) byId("selected").textContent = items.hint;
    else describe(highlighted);
    repaint();
  }

  function describe(item) {
    const title = element("b", items.title(replay, item));
    byId("selected").replaceChildren(title, `: ${items.text(replay, item, player.time)}`);
  }

  function rowUnder(event, { gantt, policy }) {
    const box = gantt.getBoundingClientRect();
    return plot.rowAt(replay, policy, view, shape, event.clientX - box.left, event.clientY - box.top);
  }

  function hoverPlot(event, panel) {
    const row = event ? rowUnder(event, panel) : -1;
    const item = row < 0 ? -1 : plot.itemOf(panel.policy, row);
    selection.hover(item);
    if (row < 0) return showTooltip(event);
    return showTooltip(
      event,
      element("p", plot.rowText(replay, panel.policy, row), "muted"),
      element("b", items.title(replay, item)),
      element("p", items.text(replay, item, player.time)),
    );
  }

  function clickPlot(event, panel) {
    const row = rowUnder(event, panel);
    selection.pin(row < 0 ? -1 : plot.itemOf(panel.policy, row));
  }

  // #t=60&from=40&to=90&job=7 sets the time, the time window and the pinned item.
  function readFragment() {
    const fragment = new URLSearchParams(location.hash.slice(1));
    const [t, from, to] = ["t", "from", "to"].map((name) => Number(fragment.get(name) || NaN));
    if (to > from) showWindow(view, from, to);
    const index = items.index(replay, fragment.get(items.key));
    if (itemRows[index]) selection.pin(index);
    player.seek(Number.isFinite(t) ? t : replay.gap);
    decisions?.readFragment(fragment);
  }

  function updateTheme() {
    theme = readTheme(itemCount);
    if (items.coloured) {
      itemRows.forEach((row, item) => {
        row.querySelector(".swatch").style.background = css(theme.items[item]);
      });
    }
    plot.paintLegend?.(replay, theme);
    decisions?.repaint(theme);
    repaint();
  }

  byId("scrubber").max = replay.end;
  for (const { id, shared } of charts) {
    const names = shared ? [""] : replay.policies.map(({ name }) => `${name} `);
    names.forEach((name, i) => {
      const entry = element("span", name, shared ? "" : `policy-${i}`);
      entry.append(element("b"));
      byId(`${id}-key`).append(entry);
    });
  }
  byId("gap").hidden = replay.policies.length < 2;
  byId("gap").addEventListener("click", () => player.seek(replay.gap));
  addControls(player, view, selection, repaint);
  for (const panel of panels) {
    const hover = (event) => hoverPlot(event, panel);
    addPlotEvents(panel.gantt, player, view, repaint, hover, (event) => clickPlot(event, panel));
  }
  for (const { id } of charts) addPlotEvents(byId(id), player, view, repaint);
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
