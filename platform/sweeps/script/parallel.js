// Parallel coordinates: an axis for each setting and one for the result; a line is a trial.

import { byId } from "../../replay/script/dom.js";
import { settingScale, valueScale } from "./scales.js";
import { label, openChart, svg } from "./svg.js";

const MARGIN = { top: 46, right: 84, bottom: 34, left: 64 };
const HEIGHT = 400;
const NARROWEST = 96; // pixels between axes; below, the chart scrolls

// report: { data, colours, rankShare, filters }; filters[axis] is a range of shares or undefined.
export function drawParallel(report, changed) {
  const { data, colours } = report;
  const chart = byId("parallel");
  const gaps = data.parameters.length;
  const room = Math.max(chart.parentElement.clientWidth, MARGIN.left + MARGIN.right + gaps * NARROWEST);
  openChart(chart, room, HEIGHT);
  const gap = (room - MARGIN.left - MARGIN.right) / gaps;
  const axes = createAxes(report);
  const toX = (axis) => MARGIN.left + axis * gap;
  const toY = (share) => HEIGHT - MARGIN.bottom - share * (HEIGHT - MARGIN.top - MARGIN.bottom);

  const lines = svg("g", { class: "lines" });
  const order = data.trials.map((_, trial) => trial).sort((a, b) => report.rankShare[b] - report.rankShare[a]);
  for (const trial of order) {
    const points = axes.map(({ shareOf }, axis) => [toX(axis), toY(shareOf(trial))]);
    const line = svg("path", { d: curveThrough(points), class: "trial", "data-trial": trial });
    if (data.trials[trial].value === null) line.classList.add("faulty");
    else line.style.stroke = colours[trial];
    if (trial === data.best) line.classList.add("best");
    lines.append(svg("path", { d: curveThrough(points), class: "target", "data-trial": trial }), line);
  }
  chart.append(lines);
  axes.forEach((axis, i) => {
    drawAxis(chart, axis, toX(i), toY, gap);
    addBrush(chart, report, i, toX(i), toY, changed);
  });
  report.passes = (trial) =>
    axes.every(({ shareOf }, axis) => {
      const range = report.filters[axis];
      return !range || (shareOf(trial) >= range[0] && shareOf(trial) <= range[1]);
    });
}

function createAxes({ data, rankShare }) {
  const settings = data.parameters.map((setting, i) => {
    const scale = settingScale(setting, rankShare);
    return { ...scale, name: setting.name, short: setting.short, shareOf: (trial) => scale.share(data.trials[trial].drawn[i], trial) };
  });
  const values = data.trials.map(({ value }) => value);
  const scale = valueScale(values, 6);
  const oriented = (value) => (data.mode === "min" ? 1 - scale.share(value) : scale.share(value)); // the best on top
  const result = {
    name: data.metric,
    short: data.metric,
    ticks: scale.ticks,
    tickShare: oriented,
    shareOf: (trial) => (values[trial] === null ? -0.07 : oriented(values[trial])),
    missing: values.includes(null),
    result: true,
  };
  return [...settings, result];
}

function drawAxis(chart, axis, x, toY, gap) {
  const group = svg("g", {});
  const [top, bottom] = [toY(1), toY(0)];
  const width = axis.result ? 2 * MARGIN.right : gap - 8;
  group.append(label(axis.short, x, top - 22, { class: "name", "text-anchor": "middle" }, width));
  group.append(svg("line", { class: "axis", x1: x, x2: x, y1: top, y2: bottom }));
  for (const { value, text } of axis.ticks) {
    const y = toY((axis.tickShare ?? axis.share)(value));
    if (axis.band) {
      const height = axis.band * (bottom - top);
      group.append(svg("line", { class: "axis band", x1: x, x2: x, y1: y - height / 2, y2: y + height / 2 }));
    } else group.append(svg("line", { class: "axis", x1: x - 3, x2: x + 3, y1: y, y2: y }));
    // A mapping has a line for each of its settings.
    const parts = text.startsWith("{") ? text.slice(1, -1).split(", ") : [text];
    parts.forEach((part, i) => {
      const lineY = y + 4 + 14 * (i - (parts.length - 1) / 2);
      group.append(label(part, x + 9, lineY, { class: "label" }, axis.result ? MARGIN.right : gap - 16));
    });
  }
  if (axis.missing) group.append(label("no result", x + 8, toY(-0.07) + 4, { class: "label" }));
  group.append(svg("title", {}, axis.name));
  chart.append(group);
}

// A smooth line through points from left to right.
function curveThrough(points) {
  return points
    .map(([x, y], i) => {
      if (!i) return `M${x.toFixed(1)},${y.toFixed(1)}`;
      const [before, height] = points[i - 1];
      const middle = ((before + x) / 2).toFixed(1);
      return `C${middle},${height.toFixed(1)} ${middle},${y.toFixed(1)} ${x.toFixed(1)},${y.toFixed(1)}`;
    })
    .join("");
}

// Dragging along an axis sets its range; a click on the axis removes it.
function addBrush(chart, report, axis, x, toY, changed) {
  const [top, bottom] = [toY(1.03), toY(-0.1)];
  const brush = svg("rect", { class: "brush", x: x - 8, width: 16, rx: 3 });
  const handle = svg("rect", { class: "handle", x: x - 9, width: 18, y: top, height: bottom - top });
  const toShare = (event) => {
    const y = event.clientY - chart.getBoundingClientRect().top;
    return (toY(0) - y) / (toY(0) - toY(1));
  };
  const show = () => {
    const range = report.filters[axis];
    brush.classList.toggle("hidden", !range);
    if (!range) return;
    brush.setAttribute("y", toY(range[1]));
    brush.setAttribute("height", Math.max(2, toY(range[0]) - toY(range[1])));
  };
  let from = null;
  handle.addEventListener("pointerdown", (event) => {
    from = toShare(event);
    handle.setPointerCapture(event.pointerId);
    report.filters[axis] = undefined;
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = toShare(event);
    report.filters[axis] = Math.abs(to - from) > 0.01 ? [Math.min(from, to), Math.max(from, to)] : undefined;
    show();
    changed();
  });
  handle.addEventListener("pointerup", () => {
    from = null;
    show();
    changed();
  });
  show();
  chart.append(brush, handle);
}
