// Instances of every task by time: one row a task, coloured by their number.

import { paintGrid } from "../charts.js";
import { firstAbove } from "../data.js";
import { byId, clipTo, openCanvas } from "../dom.js";
import { css, heatColour, heatGradient, textColour } from "../palette.js";
import { secondsToX, xToSeconds } from "../view.js";
import { fittingEnd } from "./format.js";

const ROW = { least: 5, most: 18, withText: 12 }; // pixels
const DIMMED = 0.25;

export function plotShape({ tasks }, height) {
  const fitting = Math.floor(Math.max(200, height) / tasks.name.length);
  const row = Math.min(ROW.most, Math.max(ROW.least, fitting));
  return { row, height: row * tasks.name.length };
}

function colourOf(instances, { most }, theme) {
  return heatColour(most > 1 ? (instances - 1) / (most - 1) : 0.5, theme.scheme);
}

export function paintPlot(canvas, replay, { schedule }, view, theme, shape, highlighted) {
  const context = openCanvas(canvas, view.gutter + view.width, shape.height, theme);
  const gap = shape.row >= 7 ? 1 : 0;
  const colours = Array.from({ length: replay.most + 1 }, (_, count) => colourOf(count, replay, theme));
  paintGrid(context, view, theme, shape.height);
  clipTo(context, [view.gutter, 0, view.width, shape.height], () => {
    replay.tasks.name.forEach((_, task) => {
      context.globalAlpha = highlighted < 0 || highlighted === task ? 1 : DIMMED;
      paintTask(context, schedule, task, shape, view, colours, gap);
    });
  });
  context.globalAlpha = 1;
  labelTasks(context, replay, shape, view, theme, highlighted);
}

function paintTask(context, schedule, task, shape, view, colours, gap) {
  const top = task * shape.row;
  const last = schedule.first[task + 1];
  for (let run = firstRunAfter(schedule, task, view.from); run < last; run++) {
    if (schedule.start[run] > view.to) break;
    const left = Math.max(view.gutter, secondsToX(view, schedule.start[run]));
    const right = Math.min(view.gutter + view.width, secondsToX(view, schedule.end[run]));
    const count = schedule.instances[run];
    context.fillStyle = css(colours[count]);
    context.fillRect(left, top, Math.max(0.7, right - left), shape.row - gap);
    if (shape.row < ROW.withText || right - left < 18) continue;
    context.fillStyle = textColour(colours[count]);
    context.textAlign = "center";
    context.fillText(count, (left + right) / 2, top + (shape.row - gap) / 2 + 0.5);
  }
}

function labelTasks(context, { tasks }, shape, view, theme, highlighted) {
  context.textAlign = "right";
  const every = Math.ceil(11 / shape.row);
  tasks.name.forEach((name, task) => {
    const shown = highlighted < 0 || every === 1 ? task % every === 0 : task === highlighted;
    if (!shown) return;
    context.fillStyle = task === highlighted ? theme.ink : theme.muted;
    const y = Math.min(Math.max((task + 0.5) * shape.row, 6), shape.height - 6);
    context.fillText(fittingEnd(context, name, view.gutter - 8), view.gutter - 6, y);
  });
}

// The first run of a task that ends after a time; first[task + 1] if there is none.
export function firstRunAfter({ first, end }, task, seconds) {
  return firstAbove(end, seconds, first[task], first[task + 1]);
}

export function instancesAt(schedule, task, seconds) {
  const run = Math.min(firstRunAfter(schedule, task, seconds), schedule.first[task + 1] - 1);
  return schedule.instances[run];
}

// The run at a point of the canvas, or -1.
export function rowAt(replay, { schedule }, view, shape, x, y) {
  const task = Math.floor(y / shape.row);
  if (x < view.gutter || task < 0 || task >= replay.tasks.name.length) return -1;
  const run = firstRunAfter(schedule, task, xToSeconds(view, x));
  return run < schedule.first[task + 1] ? run : -1;
}

export function paintLegend({ most }, theme) {
  byId("heat-sample").style.background = heatGradient(theme.scheme);
  byId("heat-most").textContent = most;
}
