// Learning curves: the metric of each trial over its iterations, with a mark at its end.

import { byId } from "../../replay/script/dom.js";
import { numberScale, valueScale } from "./scales.js";
import { label, openChart, svg } from "./svg.js";

const MARGIN = { top: 14, right: 76, bottom: 34, left: 56 };
const LEAST_HEIGHT = 360;
export const FAULTS = ["failed", "hung", "diverged"];

export function drawCurves({ data, colours, rankShare }) {
  const chart = byId("curves");
  const width = Math.max(320, chart.parentElement.clientWidth - 28);
  // As high as the panel at its side, which has a row for each setting.
  const aside = byId("importance").parentElement.getBoundingClientRect();
  const sideways = aside.left > chart.getBoundingClientRect().left + 50;
  const height = sideways ? Math.max(LEAST_HEIGHT, aside.height - 62) : LEAST_HEIGHT;
  openChart(chart, width, height);
  const last = Math.max(1, ...data.trials.flatMap(({ curve }) => curve.map(([iteration]) => iteration)));
  const across = numberScale(0, last, false, Math.min(8, last));
  const up = valueScale(data.trials.flatMap(({ curve }) => curve.map(([, value]) => value)), 7);
  const toX = (iteration) => MARGIN.left + across.share(iteration) * (width - MARGIN.left - MARGIN.right);
  const toY = (value) => height - MARGIN.bottom - up.share(value) * (height - MARGIN.top - MARGIN.bottom);
  drawGrid(chart, { data, across, up, toX, toY, width, height });

  const reported = data.trials.map((_, trial) => trial).filter((trial) => data.trials[trial].curve.some(([, v]) => v !== null));
  const order = reported.sort((a, b) => rankShare[b] - rankShare[a]);
  for (const trial of order) {
    const points = data.trials[trial].curve.filter(([, v]) => v !== null).map(([i, v]) => [toX(i), toY(v)]);
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
    const line = svg("path", { d, class: trial === data.best ? "trial best" : "trial", "data-trial": trial });
    line.style.stroke = colours[trial];
    chart.append(svg("path", { d, class: "target", "data-trial": trial }), line);
    const mark = endMark(data.trials[trial].state, ...points.at(-1), colours[trial]);
    mark.dataset.trial = trial;
    chart.append(mark);
    if (trial === data.best) {
      const [x, y] = points.at(-1);
      chart.append(label(data.trials[trial].name, x + 9, y + 4, { class: "name label" }));
    }
  }
  if (!reported.length) chart.append(label("no trial has reported yet", width / 2, height / 2, { "text-anchor": "middle" }));
}

function drawGrid(chart, { data, across, up, toX, toY, width, height }) {
  const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
  for (const { value, text } of up.ticks) {
    chart.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: toY(value), y2: toY(value) }));
    chart.append(label(text, MARGIN.left - 8, toY(value) + 4, { "text-anchor": "end" }));
  }
  for (const { value, text } of across.ticks.filter((tick) => Number.isInteger(tick.value))) {
    chart.append(label(text, toX(value), bottom + 17, { "text-anchor": "middle" }));
  }
  for (const rung of data.rungs) {
    chart.append(svg("line", { class: "rung", x1: toX(rung), x2: toX(rung), y1: top, y2: bottom }));
  }
  chart.append(label("iteration", width - MARGIN.right + 14, bottom + 17));
  chart.append(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
}

// A dot: finished; a bar: stopped early; a cross: failed, hung or diverged; a ring: not over.
export function endMark(state, x, y, colour) {
  if (FAULTS.includes(state)) {
    const mark = svg("path", { class: "mark cross", d: `M${x - 4},${y - 4}l8,8m0,-8l-8,8` });
    mark.style.stroke = "var(--error)";
    return mark;
  }
  const mark =
    state === "stopped"
      ? svg("rect", { class: "mark", x: x - 2.5, y: y - 7, width: 5, height: 14, rx: 1 })
      : svg("circle", { class: "mark", cx: x, cy: y, r: 4.5 });
  if (state === "finished" || state === "stopped") mark.style.fill = colour;
  else {
    mark.style.fill = "var(--surface)";
    mark.style.stroke = colour;
  }
  return mark;
}

// What the marks mean, of the states that occur.
export function curvesKey({ data }) {
  const states = new Set(data.trials.map(({ state }) => state));
  const key = [];
  if (states.has("finished")) key.push("● finished");
  if (states.has("stopped")) key.push("▮ stopped early");
  const faults = FAULTS.filter((state) => states.has(state));
  if (faults.length) key.push(`✕ ${faults.join(" or ")}`);
  if (["running", "unfinished"].some((state) => states.has(state))) key.push("○ not over");
  if (data.rungs.length) key.push("┊ where ASHA stops trials");
  return key.join("   ");
}
