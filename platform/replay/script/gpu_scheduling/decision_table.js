// A decision as a table: one row a job, in order of priority, with a cell for every machine.

import { createTrack } from "../decision_panel.js";
import { clipTo, element, openCanvas } from "../dom.js";
import { dollars, durationText, number, plural } from "../format.js";
import { css, heatColour, textColour } from "../palette.js";
import { placesOf } from "./decisions.js";
import { gangText, gpuText, machineTitle } from "./format.js";
import { racksOf } from "./machines.js";

const ROW_HEIGHT = 26; // pixels
const HEAD_HEIGHT = 60;
const RACK_GAP = 6;
const CELL = { least: 6, most: 44, withText: 30 };

export function cellWidth(replay, width) {
  const { rack } = replay.machines;
  const fitting = Math.floor((width - rack.at(-1) * RACK_GAP) / rack.length);
  return Math.min(CELL.most, Math.max(CELL.least, fitting));
}

// Affinities are scaled within a job; those of different jobs are not comparable.
function heatScale(row) {
  const values = (row.affinity ?? []).filter(Number.isFinite);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

function priorityScale({ rows }) {
  const low = Math.min(...rows.map(({ mean, std }) => mean - std));
  const high = Math.max(...rows.map(({ mean, std }) => mean + std));
  return (value) => `${(100 * (value - low)) / Math.max(high - low, 1e-9)}%`;
}

export function createRow(replay, decision, row, index, theme, cell) {
  const node = element("tr");
  node.dataset.job = row.job;
  const cells = [
    element("td", row.eligible ? index + 1 : ""),
    element("td", replay.jobs.name[row.job]),
    element("td", gangText(replay, row.job)),
    element("td", durationText(decision.time_s - replay.jobs.arrival_s[row.job])),
    element("td", row.attained ? durationText(row.attained) : "–"),
    createTrack("priority", row, priorityScale(decision), number(row.mean, 2)),
    element("td", "", "map"),
  ];
  const swatch = element("i", "", "swatch");
  swatch.style.background = css(theme.items[row.job]);
  cells[1].prepend(swatch);
  if (row.running) cells[1].append(element("span", " runs", "state"));
  const canvas = element("canvas");
  cells[6].append(canvas);
  node.append(...cells);
  node.classList.toggle("ineligible", !row.eligible);
  node.classList.toggle("stopped", decision.stopped.includes(row.job));
  paintMapRow(canvas, replay, decision, row, theme, cell);
  return node;
}

function openMap(canvas, replay, cell, height, theme) {
  const width = machineX(replay, cell, replay.machines.rack.length);
  const context = openCanvas(canvas, width, height, theme);
  canvas.style.width = `${width}px`;
  return context;
}

function paintMapRow(canvas, replay, decision, row, theme, cell) {
  const context = openMap(canvas, replay, cell, ROW_HEIGHT, theme);
  context.textAlign = "center";
  const scale = heatScale(row);
  const jobColour = theme.items[row.job];
  const withText = cell >= CELL.withText;
  replay.machines.rack.forEach((_, machine) => {
    const box = [machineX(replay, cell, machine) + 0.5, 1.5, cell - 1, ROW_HEIGHT - 3];
    const value = row.affinity?.[machine] ?? NaN;
    const { placed, held, next } = placesOn(decision, row, machine);
    if (Number.isFinite(value)) {
      const colour = heatColour(scale(value), theme.scheme);
      fillBox(context, box, css(colour));
      // Leave the corner free for the number of instances.
      const textBox = placed?.instances > 1 ? [box[0], box[1] + 5, box[2] - 12, box[3] - 4] : box;
      if (withText) writeText(context, textBox, number(value, 2), textColour(colour));
    } else if (held) {
      fillBox(context, box, css(jobColour));
      if (withText) writeText(context, box, instancesText(held), textColour(jobColour));
    } else if (decision.kind === "reconsidering") fillBox(context, box, theme.empty);
    else hatchBox(context, box, theme, row.affinity ? 0.5 : 0.22);
    if (held && decision.stopped.includes(row.job)) strikeBox(context, box, theme);
    if (placed || next) outlineBox(context, box, next ? css(jobColour) : theme.ink);
    if (next && withText) writeText(context, box, instancesText(next), theme.ink);
    if (placed?.instances > 1) markInstances(context, box, placed.instances, theme);
  });
}

// Where a job is placed, held, and placed next, on one machine.
function placesOn(decision, row, machine) {
  const find = (places) => placesOf(places, row.job).find((place) => place.machine === machine);
  const next = row.running ? undefined : find(decision.then);
  return { placed: find(decision.placed), held: find(decision.held), next };
}

function instancesText({ instances }) {
  return instances > 1 ? `×${instances}` : "●";
}

// The left edge of a machine's cells; with the number of machines, the width of the map.
function machineX(replay, cell, machine) {
  const { rack } = replay.machines;
  return machine * cell + (rack[machine] ?? rack.at(-1)) * RACK_GAP;
}

export function machineAt(replay, cell, x) {
  return replay.machines.rack.findIndex((_, machine) => {
    const left = machineX(replay, cell, machine);
    return x >= left && x < left + cell;
  });
}

function fillBox(context, [x, y, width, height], colour) {
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
}

function writeText(context, [x, y, width, height], text, colour) {
  context.fillStyle = colour;
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

function hatchBox(context, box, theme, alpha) {
  const [x, y, width, height] = box;
  fillBox(context, box, theme.empty);
  clipTo(context, box, () => {
    context.globalAlpha = alpha;
    context.strokeStyle = css(theme.move);
    context.lineWidth = 1;
    context.beginPath();
    for (let shift = -height; shift < width; shift += 5) {
      context.moveTo(x + shift, y + height);
      context.lineTo(x + shift + height, y);
    }
    context.stroke();
  });
}

function strikeBox(context, box, theme) {
  const [x, y, width, height] = box;
  outlineBox(context, box, theme.error);
  context.beginPath();
  context.moveTo(x + 1, y + height - 1);
  context.lineTo(x + width - 1, y + 1);
  context.stroke();
}

function outlineBox(context, [x, y, width, height], colour) {
  context.strokeStyle = colour;
  context.lineWidth = 2.5;
  context.strokeRect(x + 1, y + 1, width - 2, height - 2);
}

function markInstances(context, [x, y, width], instances, theme) {
  const text = `×${instances}`;
  const textWidth = context.measureText(text).width + 4;
  if (textWidth > width) return;
  const box = [x + width - textWidth, y, textWidth, 11];
  fillBox(context, box, theme.ink);
  context.save();
  context.font = theme.font.replace("11px", "9px");
  writeText(context, box, text, theme.surface);
  context.restore();
}

// Racks with their GPU type and price; numbers of machines, and the share of their GPUs in use.
export function paintMapHead(canvas, replay, decision, theme, cell) {
  const { rack, gpus } = replay.machines;
  const context = openMap(canvas, replay, cell, HEAD_HEIGHT, theme);
  context.textAlign = "left";
  for (const { rack: index, gpu, price, machines } of racksOf(replay)) {
    const left = machineX(replay, cell, machines[0]);
    const width = machines.length * cell - 2;
    const fitting = (...texts) => texts.find((text) => context.measureText(text).width <= width) ?? "";
    context.fillStyle = theme.muted;
    context.fillText(fitting(`rack ${index + 1}`, index + 1), left, 8);
    context.fillText(fitting(`${gpu} · ${dollars(price)}/h`, `${gpu} ${dollars(price)}`, gpu), left, 22);
    fillBox(context, [left, 30, width + 1, 1], theme.line);
  }
  context.textAlign = "center";
  rack.forEach((_, machine) => {
    const left = machineX(replay, cell, machine);
    context.fillStyle = theme.ink;
    if (cell >= 14) context.fillText(machine + 1, left + cell / 2, 40);
    const used = 1 - decision.free[machine] / (100 * gpus[machine]);
    fillBox(context, [left + 1, 50, cell - 2, 5], theme.line);
    fillBox(context, [left + 1, 50, (cell - 2) * used, 5], theme.muted);
  });
  canvas.setAttribute("aria-label", `The ${rack.length} machines and the share of their GPUs in use`);
}

export function cellText(replay, decision, row, machine) {
  const reconsidering = decision.kind === "reconsidering";
  const free = `${gpuText(decision.free[machine])} of its ${replay.machines.gpus[machine]} GPUs free`;
  const { placed, held, next } = placesOn(decision, row, machine);
  const parts = [];
  if (row.affinity) {
    const value = row.affinity[machine];
    const rank = 1 + row.affinity.filter((other) => other > value).length;
    const order = rank > 1 ? `rank ${rank} of the machines` : "highest of all machines";
    parts.push(Number.isFinite(value) ? `affinity ${number(value, 3)}: ${order}` : "an instance does not fit here");
  } else if (!reconsidering) parts.push("the whole gang does not fit now, so it has no affinities");
  if (placed) parts.push(`${plural(placed.instances, "instance")} placed here`);
  const state = decision.stopped.includes(row.job) ? "stopped" : "not stopped";
  if (held) parts.push(`${plural(held.instances, "instance")} here: ${state}`);
  if (next && reconsidering) parts.push(`${plural(next.instances, "instance")} placed here next`);
  return [`${machineTitle(replay, machine)}, ${free}`, parts.join("; ") || "not here"];
}

export function priorityText(decision, row) {
  const priority = `priority ${number(row.mean, 3)} ± ${number(row.std, 3)} (standard deviation in training)`;
  const rank = `position ${decision.rows.indexOf(row) + 1}: the highest priority is first`;
  return [priority, row.eligible ? rank : "the job cannot start now: its priority has no effect"];
}
