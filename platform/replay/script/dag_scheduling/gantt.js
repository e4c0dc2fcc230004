// Executors by time. Every executor is one line of device pixels, written directly into an image:
// the cost is one pass over the rows in the window plus the pixels, however many tasks share a
// pixel. A pixel has the colour of the task that fills most of it; its opacity is the share of it
// that all tasks fill, so that short idle times remain visible as lighter pixels.

import { paintGrid } from "../charts.js";
import { openCanvas } from "../dom.js";
import { pixel } from "../palette.js";
import { roundStep, xToSeconds } from "../view.js";
import { firstRowAfter } from "./schedule.js";

const HATCH = 6; // device pixels between hatching stripes of a move
const SEAM = 7; // device pixels: wider tasks are separated by a thin line
const DIMMED = 0.1;

// Fits the rows into `height`, in whole device pixels each; with more executors than pixels, rows
// are sampled.
export function plotShape({ executors }, height) {
  const target = Math.min(420, Math.max(200, height));
  const ratio = window.devicePixelRatio || 1;
  const rowPixels = Math.max(1, Math.min(Math.floor((target * ratio) / executors), 24 * ratio));
  const rows = Math.min(executors, Math.floor(target * ratio));
  return { rows, rowPixels, height: (rows * rowPixels) / ratio };
}

function executorOf(row, replay, shape) {
  return Math.floor((row * replay.executors) / shape.rows);
}

export function paintPlot(canvas, replay, policy, view, theme, shape, highlighted) {
  const context = openCanvas(canvas, view.gutter + view.width, shape.height, theme);
  const ratio = window.devicePixelRatio || 1;
  const left = Math.round(view.gutter * ratio);
  const width = canvas.width - left;
  context.fillStyle = theme.empty;
  context.fillRect(view.gutter, 0, view.width, shape.height);
  paintGrid(context, view, theme, shape.height);

  const image = new ImageData(width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const gap = shape.rowPixels >= 4 ? 1 : 0;
  const line = {
    row: new Int32Array(width), // the row of the schedule that fills most of the pixel, -1: none
    most: new Float32Array(width), // share of the pixel that this row fills
    filled: new Float32Array(width), // share that all rows fill
  };
  for (let row = 0; row < shape.rows; row++) {
    fillLine(line, policy.schedule, executorOf(row, replay, shape), view);
    const top = row * shape.rowPixels;
    for (let y = top; y < top + shape.rowPixels - gap; y++) {
      writeLine(line, policy.schedule, pixels, y, theme, highlighted);
    }
  }
  const layer = new OffscreenCanvas(width, canvas.height);
  layer.getContext("2d").putImageData(image, 0, 0);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(layer, left, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  labelExecutors(context, replay.executors, view, theme, shape);
}

function fillLine(line, schedule, executor, view) {
  const width = line.row.length;
  const scale = width / ((view.to - view.from) * 1000);
  const origin = view.from * 1000;
  line.row.fill(-1);
  line.most.fill(0);
  line.filled.fill(0);
  const last = schedule.first[executor + 1];
  for (let row = firstRowAfter(schedule, executor, origin); row < last; row++) {
    const from = Math.max(0, (schedule.start[row] - origin) * scale);
    if (from >= width) break;
    const to = Math.min(width, (schedule.end[row] - origin) * scale);
    const seam = to - from >= SEAM ? 1 : 0;
    for (let x = Math.floor(from); x < to; x++) {
      const share = Math.min(to, x + 1) - Math.max(from, x);
      if (share > line.most[x]) {
        line.most[x] = share;
        line.row[x] = row;
      }
      line.filled[x] += seam && x <= from ? share * 0.35 : share;
    }
  }
}

function writeLine(line, schedule, pixels, y, theme, highlighted) {
  const base = y * line.row.length;
  line.row.forEach((row, x) => {
    if (row < 0) return;
    const job = schedule.job[row];
    if (schedule.moving[row] && (x + y) % HATCH >= HATCH / 2) return;
    const colour = schedule.moving[row] ? theme.move : theme.items[job];
    const alpha = Math.min(1, line.filled[x]) * (highlighted < 0 || highlighted === job ? 1 : DIMMED);
    pixels[base + x] = pixel(colour, Math.round(alpha * 255));
  });
}

function labelExecutors(context, executors, view, theme, shape) {
  const every = Math.max(1, roundStep((22 * executors) / shape.height));
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  for (let executor = 0; executor < executors; executor++) {
    if (executor > 0 && (executor + 1) % every !== 0) continue;
    const y = ((executor + 0.5) * shape.height) / executors;
    context.fillText(executor + 1, view.gutter - 8, Math.min(Math.max(y, 6), shape.height - 6));
  }
}

// The row at a point of the canvas, or -1. Of several rows in a pixel, the one that fills most.
export function rowAt(replay, policy, view, shape, x, y) {
  if (x < view.gutter || y < 0 || y >= shape.height) return -1;
  const executor = executorOf(Math.floor((y / shape.height) * shape.rows), replay, shape);
  const { schedule } = policy;
  const from = xToSeconds(view, x - 0.5) * 1000;
  const to = xToSeconds(view, x + 0.5) * 1000;
  let [best, longest] = [-1, -1];
  const last = schedule.first[executor + 1];
  for (let row = firstRowAfter(schedule, executor, from); row < last && schedule.start[row] < to; row++) {
    const overlap = Math.min(to, schedule.end[row]) - Math.max(from, schedule.start[row]);
    if (overlap > longest) [best, longest] = [row, overlap];
  }
  return best;
}
