// Machines by time, grouped by rack; the GPUs of a machine are stacked.

import { drawCross, jobMarkRows, paintGrid } from "../charts.js";
import { clipTo, openCanvas } from "../dom.js";
import { dollars } from "../format.js";
import { css, textColour } from "../palette.js";
import { secondsToX, xToSeconds } from "../view.js";

const RACK_HEAD = 16; // pixels above a rack, for its name
// Pixels between machines, and the minimum height of a machine.
const FEW = { machines: 40, between: 3, least: 6 };
const MANY = { between: 1, least: 4 };
const MAX_GPU_HEIGHT = 10;
const DIMMED = 0.12;

export function racksOf(replay) {
  const { rack, gpu, price } = replay.machines;
  const racks = [];
  rack.forEach((place, machine) => {
    if (racks.at(-1)?.rack === place) racks.at(-1).machines.push(machine);
    else racks.push({ rack: place, gpu: gpu[machine], price: price[machine], machines: [machine] });
  });
  return racks;
}

// The position of every machine in a plot of about `height` pixels.
export function plotShape(replay, height) {
  const { gpus } = replay.machines;
  const racks = racksOf(replay);
  const all = gpus.reduce((sum, count) => sum + count, 0);
  const { between, least } = gpus.length > FEW.machines ? MANY : FEW;
  const left = Math.min(440, Math.max(280, height)) - racks.length * RACK_HEAD - gpus.length * between;
  const each = Math.min(MAX_GPU_HEIGHT, left / all);
  const machines = [];
  let top = 0;
  for (const rack of racks) {
    rack.top = top;
    top += RACK_HEAD;
    for (const machine of rack.machines) {
      machines[machine] = { top, height: Math.max(least, Math.round(gpus[machine] * each)) };
      top += machines[machine].height + between;
    }
  }
  return { racks, machines, height: top };
}

// The end of the initial window: the time up to which jobs queue. Some jobs run for days after that.
export function initialEnd(replay) {
  const queued = replay.policies.map(({ counts: { time, count } }) => time[count.findLastIndex((jobs) => jobs > 0) + 1] ?? 0);
  return Math.min(replay.end, 1.1 * Math.max(...queued, replay.jobs.arrival_s.at(-1)));
}

export function markRows(replay, policy) {
  const stops = policy.schedule.runs.filter(({ stopped }) => stopped);
  const marks = stops.map(({ job, end }) => ({ item: job, s: end }));
  const stopRow = { title: "stop", short: "stop", marks, draw: drawCross };
  return [...jobMarkRows(replay, policy), ...(marks.length ? [stopRow] : [])];
}

export function paintPlot(canvas, replay, policy, view, theme, shape, highlighted) {
  const context = openCanvas(canvas, view.gutter + view.width, shape.height, theme);
  paintGrid(context, view, theme, shape.height);
  shape.racks.forEach((rack) => paintRack(context, rack, view, theme));
  clipTo(context, [view.gutter, 0, view.width, shape.height], () => {
    shape.machines.forEach((place, machine) => {
      context.fillStyle = theme.empty;
      context.fillRect(view.gutter, place.top, view.width, place.height);
      paintBars(context, replay, policy.schedule, machine, place, view, theme, highlighted);
    });
  });
  context.textAlign = "right";
  context.fillStyle = theme.muted;
  shape.machines.forEach(({ top, height }, machine) => {
    if (height >= 9) context.fillText(machine + 1, view.gutter - 8, top + height / 2 + 0.5);
  });
}

function paintRack(context, rack, view, theme) {
  const title = `rack ${rack.rack + 1} · ${rack.gpu} · ${dollars(rack.price)} a GPU-hour`;
  context.textAlign = "left";
  context.fillStyle = theme.surface; // covers the grid lines behind the text
  context.fillRect(view.gutter, rack.top, context.measureText(title).width + 6, RACK_HEAD);
  context.fillStyle = theme.muted;
  context.fillText(title, view.gutter, rack.top + RACK_HEAD / 2 + 1);
}

function paintBars(context, replay, schedule, machine, place, view, theme, highlighted) {
  const scale = place.height / (100 * replay.machines.gpus[machine]);
  for (let bar = schedule.first[machine]; bar < schedule.first[machine + 1]; bar++) {
    if (schedule.end[bar] < view.from || schedule.start[bar] > view.to) continue;
    const job = schedule.job[bar];
    const left = secondsToX(view, schedule.start[bar]);
    const width = Math.max(0.6, secondsToX(view, schedule.end[bar]) - left);
    const top = place.top + schedule.from[bar] * scale;
    const height = Math.max(0.8, schedule.height[bar] * scale);
    const seam = height >= 4 ? 0.5 : 0;
    context.globalAlpha = highlighted < 0 || highlighted === job ? 1 : DIMMED;
    context.fillStyle = css(theme.items[job]);
    context.fillRect(left + (width > 4 ? 0.5 : 0), top + seam, width, height - 2 * seam);
    if (schedule.stopped[bar]) {
      context.fillStyle = theme.error;
      const edge = Math.min(3, width / 3);
      context.fillRect(left + width - edge, top + seam, edge, height - 2 * seam);
    }
    const name = replay.jobs.name[job];
    if (height < 11 || width < 14 + 7 * name.length) continue;
    const from = Math.max(left, view.gutter);
    if (left + width - from < 14 + 7 * name.length) continue;
    context.textAlign = "left";
    context.fillStyle = textColour(theme.items[job]);
    context.fillText(name, from + 5, top + height / 2 + 0.5);
  }
  context.globalAlpha = 1;
}

// The bar at a point of the canvas, or -1. Of several bars in a pixel, the longest.
export function rowAt(replay, policy, view, shape, x, y) {
  const machine = shape.machines.findIndex(({ top, height }) => y >= top && y < top + height);
  if (machine < 0 || x < view.gutter) return -1;
  const { schedule } = policy;
  const place = shape.machines[machine];
  const percent = ((y - place.top) / place.height) * 100 * replay.machines.gpus[machine];
  const [from, to] = [xToSeconds(view, x - 0.5), xToSeconds(view, x + 0.5)];
  let [best, longest] = [-1, -1];
  for (let bar = schedule.first[machine]; bar < schedule.first[machine + 1]; bar++) {
    const within = percent - schedule.from[bar];
    if (within < 0 || within >= schedule.height[bar]) continue;
    const overlap = Math.min(to, schedule.end[bar]) - Math.max(from, schedule.start[bar]);
    if (overlap > longest && overlap >= 0) [best, longest] = [bar, overlap];
  }
  return best;
}
