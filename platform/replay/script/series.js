// Charts of values at equal distances in time, one line for each policy.

import { paintGrid } from "./charts.js";
import { clipTo, openCanvas } from "./dom.js";
import { number } from "./format.js";
import { roundStep, secondsToX } from "./view.js";

const PADDING = 8; // pixels above and below the lines
const LABEL_DISTANCE = 15; // pixels between the labels of the axis at least

export function highest(series) {
  return series.reduce((most, values) => values.reduce((a, b) => (b > a ? b : a), most), 0);
}

export function lowest(series) {
  return series.reduce((least, values) => values.reduce((a, b) => (b < a ? b : a), least), Infinity);
}

// A scale has shareOf(value), 0 at the bottom and 1 at the top, and ticks [{ value, label }].
export function linearScale(most) {
  const top = Math.max(most, 1e-9);
  const every = roundStep(top / 4);
  const digits = Math.max(0, -Math.floor(Math.log10(every) + 1e-9));
  const ticks = [];
  for (let value = 0; value <= top * 1.0001; value += every) ticks.push({ value, label: number(value, digits) });
  return { shareOf: (value) => value / top, ticks };
}

// `ticks` outside least .. most are left out.
export function logScale(least, most, ticks) {
  const [bottom, top] = [Math.log(least), Math.log(Math.max(most, 1.01 * least))];
  const shareOf = (value) => (Math.log(Math.max(value, least)) - bottom) / (top - bottom);
  return { shareOf, ticks: ticks.filter(({ value }) => value >= least && value <= most) };
}

// lines: [{ values, colour, area }], every value for `step` seconds; a NaN interrupts the line, with
// `area` the values are the upper end of an area. limit: { value, label } or { values, label }, whose
// label is beside the last of them, or nothing.
export function paintSeries(canvas, view, theme, { lines, step, scale, limit, height = 84 }) {
  const context = openCanvas(canvas, view.gutter + view.width, height, theme);
  const [top, bottom] = [PADDING, height - PADDING];
  const toY = (value) => bottom - scale.shareOf(value) * (bottom - top);
  paintGrid(context, view, theme, height);
  paintTicks(context, view, theme, scale.ticks, toY);
  clipTo(context, [view.gutter, 0, view.width, height], () => {
    for (const { values, colour, area } of lines) {
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = area ? 0.8 : 1.5;
      context.lineJoin = "round";
      context.beginPath();
      traceLine(context, values, step, view, toY);
      context.stroke();
      if (area) fillBelow(context, values, step, view, toY);
    }
    if (limit?.values) paintLimit(context, view, theme, limit, toY(limit.values.at(-1)), () => traceSteps(context, limit.values, step, view, toY));
    else if (limit) paintLimit(context, view, theme, limit, toY(limit.value));
  });
}

function paintTicks(context, view, theme, ticks, toY) {
  context.textAlign = "right";
  let previous = Infinity;
  for (const { value, label } of ticks) {
    const y = toY(value);
    if (previous - y < LABEL_DISTANCE) continue;
    previous = y;
    context.fillStyle = theme.line;
    context.fillRect(view.gutter, Math.round(y), view.width, 1);
    context.fillStyle = theme.muted;
    context.fillText(label, view.gutter - 8, y);
  }
}

// trace: draws the path of a limit that changes; else it is a line at y.
function paintLimit(context, view, theme, { label }, y, trace) {
  context.strokeStyle = context.fillStyle = theme.error;
  context.lineWidth = 1;
  context.setLineDash([5, 4]);
  context.beginPath();
  if (trace) trace();
  else {
    context.moveTo(view.gutter, y);
    context.lineTo(view.gutter + view.width, y);
  }
  context.stroke();
  context.setLineDash([]);
  context.textAlign = "right";
  const width = context.measureText(label).width;
  const middle = y < 16 ? y + 9 : y - 8; // below the line if there is no room above
  context.fillStyle = theme.surface;
  context.globalAlpha = 0.8;
  context.fillRect(view.gutter + view.width - width - 6, middle - 7, width + 6, 13);
  context.globalAlpha = 1;
  context.fillStyle = theme.error;
  context.fillText(label, view.gutter + view.width - 3, middle);
}

// Values are joined in the middle of their time. With several to a pixel, each pixel has a line
// from the lowest to the highest, so that no peak is lost.
function traceLine(context, values, step, view, toY) {
  const first = Math.max(0, Math.floor(view.from / step) - 1);
  const last = Math.min(values.length, Math.ceil(view.to / step) + 1);
  const toX = (i) => secondsToX(view, (i + 0.5) * step);
  if (last - first <= 2 * view.width) {
    for (let i = first; i < last; i++) {
      if (i > first && Number.isNaN(values[i - 1])) context.moveTo(toX(i), toY(values[i]));
      else context.lineTo(toX(i), toY(values[i]));
    }
    return;
  }
  let i = first;
  while (i < last) {
    const x = Math.floor(toX(i));
    const entry = values[i];
    let [least, most] = [entry, entry];
    for (; i < last && Math.floor(toX(i)) === x; i++) {
      least = Math.min(least, values[i]);
      most = Math.max(most, values[i]);
    }
    context.lineTo(x, toY(entry));
    context.lineTo(x, toY(least));
    context.lineTo(x, toY(most));
    context.lineTo(x, toY(values[i - 1]));
  }
}

function fillBelow(context, values, step, view, toY) {
  context.globalAlpha = 0.16;
  values.forEach((value, i) => {
    if (Number.isNaN(value) || (i + 1) * step < view.from || i * step > view.to) return;
    const [left, right] = [secondsToX(view, i * step), secondsToX(view, (i + 1) * step)];
    context.fillRect(left, toY(value), right - left, toY(0) - toY(value));
  });
  context.globalAlpha = 1;
}

// A line that keeps each value over its whole step.
function traceSteps(context, values, step, view, toY) {
  values.forEach((value, i) => {
    context.lineTo(secondsToX(view, i * step), toY(value));
    context.lineTo(secondsToX(view, (i + 1) * step), toY(value));
  });
}
