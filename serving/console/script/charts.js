// Charts of the last hour: decisions and fallbacks, latency, rewards, shadow agreement, and drift
// marks across all of them. One cursor moves along all charts; captions show the values there.

import { announce, byId, element, renderInto, setText, svgElement } from "./dom.js";
import { clockTime, count, decimal, isNumber, largestFirst, milliseconds, percent } from "./format.js";
import { plural, shortTime, SPACE, timeElement } from "./format.js";
import { lastComplete } from "./overview.js";
import { linearScale, linePath, logScale, PLOT_HEIGHT, stepPath, timeTicks, timeWindow } from "./plot.js";

const CHARTS = [
  {
    title: "decisions",
    legend: [["by-policy", "policy"], ["by-rule", "fallback"]],
    scale: ({ intervals }) => linearScale(0, Math.max(1, ...intervals.map(({ decisions }) => decisions))),
    marks(plot, intervals) {
      const { y } = plot.scale;
      const area = (kind, low, high) => {
        const steps = intervals.map((interval) => ({ x: plot.x(interval), low: y(low(interval)), high: y(high(interval)) }));
        return svgElement("path", { class: `area ${kind}`, d: stepPath(steps, plot.step) });
      };
      return [
        area("by-policy", ({ fallbacks }) => fallbacks, ({ decisions }) => decisions),
        area("by-rule", () => 0, ({ fallbacks }) => fallbacks),
      ];
    },
    text({ decisions, fallbacks, by_cause }) {
      const causes = largestFirst(by_cause).map(([name, n]) => `${name} ${count(n)}`).join(", ");
      return `${count(decisions)}, of them ${plural(fallbacks, "fallback")}${causes ? ` (${causes})` : ""}`;
    },
  },
  {
    title: "latency",
    legend: [["by-policy", "p50"], ["by-policy faint", "p99"], ["deadline dashed", "deadline"]],
    scale({ intervals }, { deadline_ms: deadline }) {
      const values = intervals.flatMap(({ p50_ms, p99_ms }) => [p50_ms, p99_ms]).filter((value) => isNumber(value) && value > 0);
      return logScale(Math.min(deadline, ...values), Math.max(deadline, ...values));
    },
    marks: (plot, intervals, { deadline_ms: deadline }) => [
      horizontalLine(plot, deadline, "level deadline"),
      line(plot, intervals, "p99_ms", "by-policy faint"),
      line(plot, intervals, "p50_ms", "by-policy"),
    ],
    text: ({ p50_ms, p99_ms }) => `p50 ${milliseconds(p50_ms)}, p99 ${milliseconds(p99_ms)}`,
  },
  {
    title: "reward",
    legend: [["observed", "mean of the interval"], ["by-rule dashed", "mean of the rule"]],
    scale({ intervals }, { rewards }) {
      const values = [...intervals.map(({ reward_mean }) => reward_mean), rewards.rule.mean].filter(isNumber);
      return values.length ? linearScale(Math.min(...values), Math.max(...values), 1e-6) : linearScale(0, 1);
    },
    marks: (plot, intervals, { rewards }) => [
      isNumber(rewards.rule.mean) ? horizontalLine(plot, rewards.rule.mean, "level by-rule") : null,
      line(plot, intervals, "reward_mean", "observed"),
    ],
    text: ({ reward_mean }) => (isNumber(reward_mean) ? decimal(reward_mean) : "no rewards"),
  },
  {
    title: "shadow agreement",
    onlyWith: "shadow_agreement", // hidden while no interval has a shadow policy
    legend: [["by-shadow", "share of equal decisions"]],
    scale: () => ({ ...linearScale(0, 1), ticks: [0, 0.5, 1] }),
    tickText: percent,
    marks: (plot, intervals) => [line(plot, intervals, "shadow_agreement", "by-shadow")],
    text: ({ shadow_agreement }) => (isNumber(shadow_agreement) ? percent(shadow_agreement) : "no shadow policy"),
  },
];

function line(plot, intervals, field, kind) {
  const points = intervals.map((interval) =>
    [plot.x(interval) + plot.step / 2, isNumber(interval[field]) ? plot.scale.y(interval[field]) : null]);
  return svgElement("path", { class: `line ${kind}`, d: linePath(points, 1.6 * plot.step) });
}

function horizontalLine(plot, value, kind) {
  const y = plot.scale.y(value);
  return svgElement("line", { class: kind, x1: plot.gutter, x2: plot.width, y1: y, y2: y });
}

const rightText = (x, y, text) => svgElement("text", { x, y, "text-anchor": "end" }, text);
const verticalLine = (kind, x) => svgElement("line", { class: kind, x1: x, x2: x, y1: 0, y2: PLOT_HEIGHT });

function createChart(spec) {
  const svg = svgElement("svg", { class: "plot", role: "img", height: PLOT_HEIGHT });
  const readout = element("span", { class: "readout" });
  const legend = spec.legend.map(([kind, text]) => element("span", { class: "legend-entry" }, element("i", { class: kind }), text));
  const figure = element("figure", {}, element("figcaption", {}, element("b", {}, spec.title), ...legend, readout), svg);
  return { spec, svg, readout, figure };
}

// The horizontal geometry shared by all charts.
function createPlot(history, view) {
  const width = Math.max(160, byId("plots").clientWidth);
  const gutter = width < 480 ? 40 : 52;
  const scale = (width - gutter) / (view.to - view.from);
  const timeToX = (time) => gutter + (time - view.from) * scale;
  return { width, gutter, step: 1000 * history.interval_s * scale, timeToX, x: ({ time }) => timeToX(Date.parse(time)) };
}

function drawChart({ spec, svg, figure }, history, status, view, shared) {
  const { intervals } = history;
  figure.hidden = spec.onlyWith !== undefined && !intervals.some((interval) => isNumber(interval[spec.onlyWith]));
  const scale = spec.scale(history, status);
  const plot = { ...shared, scale };
  const { width, gutter } = plot;
  const tickText = spec.tickText ?? decimal;
  svg.setAttribute("viewBox", `0 0 ${width} ${PLOT_HEIGHT}`);
  svg.replaceChildren(
    ...timeTicks(view, width - gutter).map((time) => verticalLine("grid", plot.timeToX(time))),
    ...scale.ticks.flatMap((value) => [
      horizontalLine(plot, value, "grid"),
      rightText(gutter - 8, Math.min(Math.max(scale.y(value) + 4, 9), PLOT_HEIGHT - 1), tickText(value)),
    ]),
    ...spec.marks(plot, intervals, status).filter(Boolean),
    ...intervals.filter(({ drift }) => drift > 0).map((interval) => verticalLine("drift-line", plot.x(interval))),
    svgElement("line", { class: "cursor", y1: 0, y2: PLOT_HEIGHT, visibility: "hidden" }),
  );
}

// Drift marks above the charts and clock times below them.
function drawMargins(drift, ruler, plot, history, view) {
  const drifts = history.intervals.filter((interval) => interval.drift > 0);
  drift.style.display = drifts.length ? "" : "none";
  drift.setAttribute("viewBox", `0 0 ${plot.width} 14`);
  drift.replaceChildren(
    rightText(plot.gutter - 8, 11, "drift"),
    ...drifts.map((interval) => svgElement("path", { class: "diamond by-drift", d: `M${plot.x(interval)} 2l5 5l-5 5l-5 -5Z` },
      svgElement("title", {}, `drift at ${clockTime.format(new Date(interval.time))}`))),
  );
  drift.setAttribute("aria-label", `drift detected in ${plural(drifts.length, "interval")}`);
  ruler.setAttribute("viewBox", `0 0 ${plot.width} 16`);
  ruler.replaceChildren(...timeTicks(view, plot.width - plot.gutter).map((time) =>
    svgElement("text", { x: Math.min(plot.timeToX(time), plot.width - 16), y: 12, "text-anchor": "middle" }, shortTime.format(time))));
}

export function createCharts() {
  const charts = CHARTS.map(createChart);
  const drift = svgElement("svg", { class: "plot", role: "img", height: 14 });
  const ruler = svgElement("svg", { class: "plot", "aria-hidden": "true", height: 16 });
  byId("plots").replaceChildren(drift, ...charts.map(({ figure }) => figure), ruler);
  let shown = null; // { key, history, status, view, plot }
  let cursor = null; // index of an interval; null: the last complete one

  function showValues() {
    const { history, view, plot } = shown;
    const interval = cursor === null ? lastComplete(history) : history.intervals[cursor];
    renderInto(byId("charts-time"), cursor === null ? null : interval.time, (time) => (time ? [timeElement(time)] : []));
    const span = view.minutes === 60 ? "the last hour" : `the last ${view.minutes} min`;
    setText(byId("charts-span"), `${span}, ${history.interval_s}${SPACE}s a point`);
    for (const { spec, svg, readout } of charts) {
      const text = interval ? spec.text(interval) : "no data yet";
      setText(readout, text);
      svg.setAttribute("aria-label", `${spec.title} over ${span}; ${text}`);
      const mark = svg.querySelector(".cursor");
      mark.setAttribute("visibility", cursor === null ? "hidden" : "visible");
      if (cursor === null) continue;
      const x = plot.x(interval) + plot.step / 2;
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
    }
  }

  function draw() {
    if (!shown) return;
    const { history, status } = shown;
    shown.view = timeWindow(history.intervals, history.interval_s);
    shown.plot = createPlot(history, shown.view);
    for (const chart of charts) drawChart(chart, history, status, shown.view, shown.plot);
    drawMargins(drift, ruler, shown.plot, history, shown.view);
    if (cursor !== null && cursor >= history.intervals.length) cursor = null;
    showValues();
  }

  byId("plots").addEventListener("pointermove", (event) => {
    if (!shown?.history.intervals.length) return;
    const { history, plot } = shown;
    const x = event.clientX - ruler.getBoundingClientRect().left - plot.step / 2;
    const distances = history.intervals.map((interval) => Math.abs(plot.x(interval) - x));
    cursor = distances.indexOf(Math.min(...distances));
    showValues();
  });
  byId("plots").addEventListener("pointerleave", () => {
    cursor = null;
    if (shown) showValues();
  });
  byId("charts").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const last = (shown?.history.intervals.length ?? 0) - 1;
    if (!step || last < 0) return;
    event.preventDefault();
    cursor = Math.min(last, Math.max(0, (cursor ?? last) + step * (event.shiftKey ? 10 : 1)));
    showValues();
    announce(`${charts[0].readout.textContent}; latency ${charts[1].readout.textContent}`);
  });
  new ResizeObserver(draw).observe(byId("plots"));

  return {
    show(history, status) {
      const key = JSON.stringify([history, status.deadline_ms, status.rewards.rule.mean]);
      if (shown?.key === key) return;
      shown = { key, history, status };
      draw();
    },
    clear() {
      shown = null;
      cursor = null;
    },
  };
}
