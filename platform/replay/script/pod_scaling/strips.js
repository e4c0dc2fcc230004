// Strips of a policy: a cell for each control step, coloured by p99, use, source or lifecycle.

import { paintGrid } from "../charts.js";
import { byId, clipTo, openCanvas } from "../dom.js";
import { number, percent } from "../format.js";
import { css, heatColour, heatGradient } from "../palette.js";
import { secondsToX, xToSeconds } from "../view.js";
import { latencyText, useText } from "./format.js";

const ROW = 20; // pixels
const DIMMED = 0.3;

// title and short name, share(policy, step) from 0 to 1 or NaN, over: whether a step is at fault, text.
const MEASURED = [
  {
    title: "p99", short: "p99",
    share: ({ p99 }, step, { slo }) => p99[step] / slo[step],
    over: ({ p99 }, step, { slo }) => p99[step] > slo[step],
    text: ({ p99 }, step, { slo }) => `p99 ${latencyText(p99[step])}, ${percent(p99[step] / slo[step])} of the SLO`,
  },
  {
    title: "CPU", short: "CPU",
    share: ({ cpu, cpu_used }, step) => cpu_used[step] / cpu[step],
    over: () => false,
    text: ({ cpu, cpu_used }, step) => `CPU: ${useText(cpu_used[step], cpu[step], "cores")} used`,
  },
  {
    title: "memory", short: "mem",
    share: ({ memory, memory_used }, step) => memory_used[step] / memory[step],
    over: ({ ooms }, step) => ooms[step] > 0,
    text: ({ memory, memory_used }, step) => `memory: ${useText(memory_used[step], memory[step], "GiB")} used`,
  },
];

// Rows of a log: numbers of names, 0 for none.
function named(title, short, key) {
  return {
    title, short,
    share: ({ [key]: numbers }, step, { names }) => (numbers[step] ? numbers[step] / names[key].length : NaN),
    over: () => false,
    text: ({ [key]: numbers }, step, { names }) => `${title}: ${names[key][numbers[step]] || "not known"}`,
    label: ({ [key]: numbers }, step, { names }) => names[key][numbers[step]],
  };
}

const LOGGED = [named("decided", "by", "source"), named("lifecycle", "state", "state")];

function rowsOf({ source }) {
  return source ? [...MEASURED, ...LOGGED] : MEASURED;
}

export function plotShape({ policies }) {
  return { height: ROW * rowsOf(policies[0]).length };
}

export function paintPlot(canvas, replay, policy, view, theme, shape, highlighted) {
  const context = openCanvas(canvas, view.gutter + view.width, shape.height, theme);
  paintGrid(context, view, theme, shape.height);
  rowsOf(policy).forEach((row, place) => {
    const top = place * ROW;
    clipTo(context, [view.gutter, top, view.width, ROW - 2], () => paintRow(context, replay, policy, row, top, view, theme, highlighted));
    context.fillStyle = theme.muted;
    context.textAlign = "right";
    context.fillText(view.gutter < 40 ? row.short : row.title, view.gutter - 8, top + ROW / 2 - 1);
  });
}

function paintRow(context, replay, policy, row, top, view, theme, highlighted) {
  let shown = { label: "", from: 0 };
  const showLabel = (step) => {
    const [left, right] = [shown.from, step].map((each) => secondsToX(view, each * replay.step_s));
    if (!shown.label || right - left < context.measureText(shown.label).width + 8) return;
    context.globalAlpha = 1;
    context.fillStyle = theme.ink;
    context.textAlign = "left";
    context.fillText(shown.label, Math.max(left, view.gutter) + 4, top + ROW / 2 - 1);
  };
  for (let step = 0; step < policy.p99.length; step++) {
    const label = row.label?.(policy, step, replay) ?? "";
    const share = row.share(policy, step, replay);
    if (!Number.isNaN(share)) paintCell(context, row, { policy, step, replay, share }, top, view, theme, highlighted);
    if (label === shown.label) continue;
    showLabel(step);
    shown = { label, from: step };
  }
  showLabel(policy.p99.length);
}

function paintCell(context, row, { policy, step, replay, share }, top, view, theme, highlighted) {
  const [left, right] = [step, step + 1].map((each) => secondsToX(view, each * replay.step_s));
  if (right < view.gutter || left > view.gutter + view.width) return;
  context.globalAlpha = (highlighted < 0 || highlighted === step ? 1 : DIMMED) * (row.label ? 0.55 : 1);
  context.fillStyle = row.over(policy, step, replay) ? theme.error : css(heatColour(Math.min(share, 1), theme.scheme));
  context.fillRect(left, top, Math.max(0.7, right - left - (right - left > 4 ? 1 : 0)), ROW - 2);
}

// A row of the plot is a cell: its number is that of the strip times the steps, plus the step.
export function rowAt(replay, policy, view, shape, x, y) {
  const strip = Math.floor(y / ROW);
  const step = Math.floor(xToSeconds(view, x) / replay.step_s);
  const inside = x >= view.gutter && strip >= 0 && strip < rowsOf(policy).length && step >= 0 && step < replay.steps;
  return inside ? strip * replay.steps + step : -1;
}

export function rowText(replay, policy, row) {
  const [strip, step] = [Math.floor(row / replay.steps), row % replay.steps];
  return `${rowsOf(policy)[strip].text(policy, step, replay)} under ${policy.name}, from ${number((step * replay.step_s) / 60, 0)} min on`;
}

export function paintLegend(replay, theme) {
  byId("heat-sample").style.background = heatGradient(theme.scheme);
}
