// Decisions of SURE: the gate, the change of every task, and the subgraph that it read.

import { createStepper, createTrack, legendEntry } from "../decision_panel.js";
import { byId, element, openCanvas, showTooltip } from "../dom.js";
import { number, percent, plural } from "../format.js";
import { decisionText, neighbourCounts, restarts, unpackDecision } from "./decisions.js";

const ROW_HEIGHT = 22; // pixels
const STRIP = { least: 120, most: 300 }; // width of the snapshots, in pixels
const OTHERS = 640; // width of the other columns
const NEIGHBOURS = 3; // that a row names

// Returns null if no policy of the replay has decisions.
export function createDecisionPanel(replay, player, selection) {
  const body = byId("decision-tasks").tBodies[0];
  let shown = null; // the unpacked decision
  const stepper = createStepper(replay, player, {
    decisionsOf: ({ case: record }) => record?.steps,
    countText,
    show(decision, theme) {
      shown = unpackDecision(decision);
      const fitting = byId("decision-scroll").clientWidth - OTHERS;
      const width = Math.min(STRIP.most, Math.max(STRIP.least, fitting));
      const { history } = replay.policies.find(({ case: record }) => record?.steps.includes(decision)).case;
      body.replaceChildren(...shown.rows.map((row) => createRow(replay, shown, row, history, width, theme)));
      paintHead(byId("map-head"), history, width, theme);
      return { texts: decisionText(replay, shown), legend: legend(shown) };
    },
    isNotable: (decision) => decision.act && restarts(decision),
    markOf: (decision, theme) => ({ colour: decision.act ? theme.error : theme.muted, tall: decision.act && restarts(decision) }),
  });
  if (!stepper) return null;

  const rowOf = (event) => shown.rows.find(({ task }) => task === Number(event.target.closest("tr")?.dataset.task));
  body.addEventListener("pointermove", (event) => {
    const row = rowOf(event);
    selection.hover(row ? row.task : -1);
    if (!row) return showTooltip(event);
    const texts = [changeText(row), ...readTexts(replay, row)];
    return showTooltip(event, element("b", replay.tasks.name[row.task]), ...texts.map((text) => element("p", text)));
  });
  body.addEventListener("pointerleave", (event) => {
    showTooltip(event);
    selection.hover(-1);
  });
  body.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (row) selection.togglePin(row.task);
  });
  return stepper;
}

function countText({ case: { steps }, gate }) {
  const acts = gate.act.reduce((sum, act) => sum + act, 0);
  const sample = steps.length < gate.act.length ? `; ${number(steps.length, 0)} are shown` : "";
  return `${plural(gate.act.length, "decision")}, the gate acts in ${number(acts, 0)}${sample}`;
}

function createRow(replay, decision, row, history, width, theme) {
  const node = element("tr");
  node.dataset.task = row.task;
  const changed = row.before !== row.after;
  const canvas = element("canvas");
  const strip = element("td", "", "map");
  strip.append(canvas);
  node.append(
    element("td", replay.tasks.name[row.task]),
    element("td", changed ? `${row.before} → ${row.after}` : row.before),
    createTrack("change", row, (value) => `${50 + 50 * Math.min(1, Math.max(-1, value))}%`, signed(row.mean)),
    strip,
    element("td", neighbourText(replay, row), "neighbours"),
  );
  node.classList.toggle("changed", changed);
  node.classList.toggle("ineffective", !decision.act);
  paintStrip(canvas, row, history, width, theme);
  return node;
}

const signed = (value) => `${value > 0 ? "+" : ""}${number(value, 2)}`;

// The snapshots that a task read on a line from the oldest to the present, darker for more weight.
function paintStrip(canvas, { read }, history, width, theme) {
  const context = openCanvas(canvas, width, ROW_HEIGHT, theme);
  canvas.style.width = `${width}px`;
  context.fillStyle = theme.empty;
  context.fillRect(0, 3, width, ROW_HEIGHT - 6);
  const cell = width / history;
  context.fillStyle = theme.ink;
  if (!read) {
    context.globalAlpha = 0.25;
    context.fillRect(0, 3, width, ROW_HEIGHT - 6);
    return;
  }
  const most = Math.max(...read.map(({ weight }) => weight), 1e-9);
  for (const { ago, weight } of read) {
    context.globalAlpha = 0.2 + (0.8 * weight) / most;
    context.fillRect((history - 1 - ago) * cell, 3, Math.max(2, cell - 1), ROW_HEIGHT - 6);
  }
  context.globalAlpha = 1;
}

function paintHead(canvas, history, width, theme) {
  const context = openCanvas(canvas, width, 16, theme);
  canvas.style.width = `${width}px`;
  canvas.setAttribute("aria-label", `The last ${history} minutes`);
  context.fillStyle = theme.muted;
  context.textAlign = "left";
  context.fillText(`${number(history, 0)} min ago`, 0, 8);
  context.textAlign = "right";
  context.fillText("now", width, 8);
}

function neighbourText({ tasks }, row) {
  const counts = neighbourCounts(row);
  const named = counts.slice(0, NEIGHBOURS).map(([task, count]) => `${tasks.name[task]} ×${count}`);
  const more = counts.length - named.length;
  return `${named.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

function changeText({ mean, std, before, after }) {
  const kept = before === after ? `keeps ${plural(before, "instance")}` : `from ${before} to ${plural(after, "instance")}`;
  return `change ${signed(mean)} ± ${number(std, 2)} (standard deviation in training); ${kept}`;
}

function readTexts({ tasks }, { read }) {
  if (!read) return ["reads all snapshots"];
  return read.map(({ ago, weight, neighbours }) => {
    const names = neighbours.map((task) => tasks.name[task]).join(", ");
    return `${ago} min ago (${percent1(weight)})${names ? `: ${names}` : ""}`;
  });
}

function percent1(share) {
  return share < 0.1 ? `${number(100 * share)}%` : percent(share);
}

function legend({ rows }) {
  const change = legendEntry("change-sample", "change of a task: mean and one standard deviation, from −1 to 1");
  if (!rows[0].read) return [change, legendEntry("read-sample", "the policy reads all snapshots")];
  return [change, legendEntry("read-sample", "snapshots read, darker: more probable to be drawn first; beside them how often each neighbour is read")];
}
