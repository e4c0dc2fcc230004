// The charts that all environments share: time axis, marks of job events, counts over time.

import { clipTo, openCanvas } from "./dom.js";
import { number } from "./format.js";
import { css } from "./palette.js";
import { isNarrow, roundStep, secondsToX, timeTicks } from "./view.js";

const MARKS_ROW = 14;
const COUNTS_HEIGHT = 120;
const MERGE_DISTANCE = 5; // pixels: closer marks are drawn as one, with their number

export function paintGrid(context, view, theme, height) {
  context.fillStyle = theme.line;
  for (const tick of timeTicks(view, 90)) context.fillRect(Math.round(secondsToX(view, tick.s)), 0, 1, height);
}

export function paintRuler(canvas, view, theme) {
  const context = openCanvas(canvas, view.gutter + view.width, 22, theme);
  const right = view.gutter + view.width;
  for (const tick of timeTicks(view, 90)) {
    const x = secondsToX(view, tick.s);
    context.fillStyle = theme.line;
    context.fillRect(Math.round(x), 0, 1, 5);
    context.fillStyle = theme.muted;
    const half = context.measureText(tick.label).width / 2;
    context.textAlign = "left";
    context.fillText(tick.label, Math.min(Math.max(x - half, view.gutter - half), right - 2 * half), 13);
  }
  context.fillText(isNarrow(view) ? view.unit.name : `time, ${view.unit.name}`, 0, 13);
}

// A row of marks is one kind of event: marks [{ item, s }], and a function that draws one. A mark
// without an item concerns all of them.
export function jobMarkRows(replay, policy) {
  const marksOf = (times) => times.map((s, item) => ({ item, s }));
  return [
    { title: "arrive", short: "in", marks: marksOf(replay.jobs.arrival_s), draw: drawArrival },
    { title: "finish", short: "out", marks: marksOf(policy.completion), draw: drawCompletion },
  ];
}

// One row for each kind of event, and a bar over the time in which the highlighted item exists.
export function paintMarks(canvas, policy, view, theme, highlighted) {
  const height = 2 + MARKS_ROW * policy.markRows.length;
  const context = openCanvas(canvas, view.gutter + view.width, height, theme);
  const toY = (row) => 8 + MARKS_ROW * row;
  context.textAlign = "right";
  context.fillStyle = theme.muted;
  policy.markRows.forEach(({ title, short }, row) => {
    context.fillText(isNarrow(view) ? short : title, view.gutter - 10, toY(row));
  });
  if (highlighted >= 0 && policy.lifetime) {
    const lifetime = policy.lifetime(highlighted);
    const from = Math.max(view.gutter, secondsToX(view, lifetime.from));
    const to = secondsToX(view, lifetime.to);
    context.fillStyle = css(theme.items[highlighted], 0.45);
    if (to > from) context.fillRect(from, 12, to - from, 6);
  }
  clipTo(context, [view.gutter - 6, 0, view.width + 12, height], () => {
    policy.markRows.forEach((kind, row) => paintMarkRow(context, kind, toY(row), view, theme, highlighted));
  });
}

function paintMarkRow(context, { marks: all, draw }, y, view, theme, highlighted) {
  const marks = all
    .map(({ item, s }) => ({ item, x: secondsToX(view, s) }))
    .filter(({ x }) => x >= view.gutter - 1 && x <= view.gutter + view.width + 1)
    .sort((a, b) => a.x - b.x);
  const groups = [];
  for (const mark of marks) {
    if (groups.length && mark.x - groups.at(-1)[0].x < MERGE_DISTANCE) groups.at(-1).push(mark);
    else groups.push([mark]);
  }
  const ofAll = (mark) => mark.item === undefined;
  const faint = highlighted < 0 || marks.every(ofAll) ? 1 : 0.2;
  const colourOf = (mark) => (ofAll(mark) ? theme.ink : css(theme.items[mark.item]));
  if (groups.length > view.width / MERGE_DISTANCE / 4 && groups.length < marks.length) {
    context.globalAlpha = faint;
    for (const mark of marks) { // too many for symbols
      context.fillStyle = colourOf(mark);
      context.fillRect(mark.x - 1, y - 5, 2, 10);
    }
  } else {
    groups.forEach((group, i) => {
      const single = group.length === 1;
      context.globalAlpha = faint;
      context.fillStyle = single ? colourOf(group[0]) : theme.muted;
      draw(context, group[0].x, y);
      if (single || groups[i + 1]?.[0].x - group[0].x < 24) return;
      context.textAlign = "left";
      context.fillText(group.length, group[0].x + 7, y + 0.5);
    });
  }
  context.globalAlpha = 1;
  for (const mark of marks.filter(({ item }) => item === highlighted)) {
    context.fillStyle = colourOf(mark);
    draw(context, mark.x, y);
  }
}

function drawArrival(context, x, y) {
  context.beginPath();
  context.moveTo(x - 4.5, y - 4);
  context.lineTo(x + 4.5, y - 4);
  context.lineTo(x, y + 4);
  context.fill();
}

function drawCompletion(context, x, y) {
  context.beginPath();
  context.arc(x, y, 4, 0, 2 * Math.PI);
  context.fill();
}

export function drawCross(context, x, y) {
  context.beginPath();
  for (const sign of [-1, 1]) {
    context.moveTo(x - 3.5, y - 3.5 * sign);
    context.lineTo(x + 3.5, y + 3.5 * sign);
  }
  context.strokeStyle = context.fillStyle;
  context.lineWidth = 2;
  context.stroke();
}

export function paintCounts(canvas, replay, view, theme) {
  const context = openCanvas(canvas, view.gutter + view.width, COUNTS_HEIGHT, theme);
  const [top, bottom] = [8, COUNTS_HEIGHT - 8];
  const largest = Math.max(1, ...replay.policies.flatMap((policy) => policy.counts.count));
  const toY = (count) => bottom - (count / largest) * (bottom - top);
  context.textAlign = "right";
  paintGrid(context, view, theme, COUNTS_HEIGHT);
  const every = Math.max(1, roundStep(largest / 5));
  for (let count = 0; count <= largest; count += every) {
    context.fillStyle = theme.line;
    context.fillRect(view.gutter, Math.round(toY(count)), view.width, 1);
    context.fillStyle = theme.muted;
    context.fillText(number(count, 0), view.gutter - 8, toY(count));
  }
  clipTo(context, [view.gutter, 0, view.width, COUNTS_HEIGHT], () => {
    replay.policies.forEach((policy, i) => {
      context.strokeStyle = context.fillStyle = theme.policies[i];
      paintCountLine(context, policy, view, toY);
    });
  });
}

function paintCountLine(context, { counts: { time, count }, end_s }, view, toY) {
  context.beginPath();
  context.moveTo(secondsToX(view, 0), toY(0));
  time.forEach((s, i) => {
    context.lineTo(secondsToX(view, s), toY(i ? count[i - 1] : 0));
    context.lineTo(secondsToX(view, s), toY(count[i]));
  });
  const right = secondsToX(view, Math.max(end_s, time.at(-1)));
  context.lineTo(right, toY(count.at(-1)));
  context.lineWidth = 2;
  context.stroke();
  context.lineTo(right, toY(0));
  context.globalAlpha = 0.1;
  context.fill();
  context.globalAlpha = 1;
}
