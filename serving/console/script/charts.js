// The last hour: decisions and fallbacks, latency, rewards, agreement of the shadow; drift marks
// across all of them. One cursor moves along all charts, and the heads tell what stands there.

const CHARTS = [
  {
    title: "decisions",
    key: [["by-policy", "policy"], ["by-rule", "fallback"]],
    scale: ({ intervals }) => linearScale(0, Math.max(1, ...intervals.map((each) => each.decisions))),
    marks(plot, intervals) {
      const { y } = plot.scale;
      const steps = (low, high) => intervals.map((each) => ({ x: plot.x(each), low: y(low(each)), high: y(high(each)) }));
      return [
        drawn("path", { class: "area by-policy", d: stepPath(steps((each) => each.fallbacks, (each) => each.decisions), plot.wide) }),
        drawn("path", { class: "area by-rule", d: stepPath(steps(() => 0, (each) => each.fallbacks), plot.wide) }),
      ];
    },
    tell(each) {
      const causes = largest(each.by_cause).map(([name, n]) => `${name} ${count(n)}`).join(", ");
      return `${count(each.decisions)}, of them ${plural(each.fallbacks, "fallback")}${causes ? ` (${causes})` : ""}`;
    },
  },
  {
    title: "latency",
    key: [["by-policy", "p50"], ["by-policy faint", "p99"], ["deadline dashed", "deadline"]],
    unit: "ms",
    scale({ intervals }, { deadline_ms: deadline }) {
      const seen = intervals.flatMap((each) => [each.p50_ms, each.p99_ms]).filter((value) => known(value) && value > 0);
      return logScale(Math.min(deadline, ...seen), Math.max(deadline, ...seen));
    },
    marks: (plot, intervals, { deadline_ms: deadline }) => [
      level(plot, deadline, "deadline"),
      line(plot, intervals, "p99_ms", "by-policy faint"),
      line(plot, intervals, "p50_ms", "by-policy"),
    ],
    tell: (each) => `p50 ${milliseconds(each.p50_ms)}, p99 ${milliseconds(each.p99_ms)}`,
  },
  {
    title: "reward",
    key: [["told", "of the interval"], ["by-rule dashed", "mean of the rule"]],
    scale({ intervals }, { rewards }) {
      const seen = [...intervals.map((each) => each.reward_mean), rewards.rule.mean].filter(known);
      return seen.length ? linearScale(Math.min(...seen), Math.max(...seen), 1e-6) : linearScale(0, 1);
    },
    marks: (plot, intervals, { rewards }) => [
      known(rewards.rule.mean) ? level(plot, rewards.rule.mean, "by-rule dashed") : null,
      line(plot, intervals, "reward_mean", "told"),
    ],
    tell: (each) => (known(each.reward_mean) ? figure(each.reward_mean) : "none told"),
  },
  {
    title: "shadow agrees",
    key: [["by-shadow", "with what acted"]],
    scale: () => ({ ...linearScale(0, 1), ticks: [0, 0.5, 1] }),
    tick: percent,
    marks: (plot, intervals) => [line(plot, intervals, "shadow_agreement", "by-shadow")],
    tell: (each) => (known(each.shadow_agreement) ? percent(each.shadow_agreement) : "no shadow"),
  },
];

// The last interval is still filling up; what is told as now comes from the one before.
const lastWhole = ({ intervals }) => intervals.at(-2) ?? intervals.at(-1);

function line(plot, intervals, what, kind) {
  const points = intervals.map((each) => [plot.x(each) + plot.wide / 2, known(each[what]) ? plot.scale.y(each[what]) : null]);
  return drawn("path", { class: `line ${kind}`, d: linePath(points, 1.6 * plot.wide) });
}

function level(plot, value, kind) {
  const y = plot.scale.y(value);
  return drawn("line", { class: `level ${kind}`, x1: plot.gutter, x2: plot.width, y1: y, y2: y });
}

function createChart(spec) {
  const svg = drawn("svg", { class: "plot", role: "img", height: PLOT_HEIGHT });
  const tells = element("span", { class: "tells" });
  const key = spec.key.map(([kind, text]) => element("span", { class: "key-entry" }, element("i", { class: kind }), text));
  const figure = element("figure", {}, element("figcaption", {}, element("b", {}, spec.title), ...key, tells), svg);
  return { spec, svg, tells, figure };
}

function drawChart({ spec, svg }, history, status, view) {
  const width = Math.max(160, svg.parentElement.clientWidth);
  const gutter = width < 480 ? 40 : 52;
  const toX = (time) => gutter + ((time - view.from) / (view.to - view.from)) * (width - gutter);
  const wide = ((1000 * history.interval_s) / (view.to - view.from)) * (width - gutter);
  const scale = spec.scale(history, status);
  const plot = { width, gutter, wide, scale, x: (each) => toX(Date.parse(each.time)) };
  svg.setAttribute("viewBox", `0 0 ${width} ${PLOT_HEIGHT}`);
  const tick = spec.tick ?? ((value) => figure(value));
  const drifts = history.intervals.filter((each) => each.drift > 0);
  svg.replaceChildren(
    ...timeTicks(view, width - gutter).map((time) => drawn("line", { class: "grid", x1: toX(time), x2: toX(time), y1: 0, y2: PLOT_HEIGHT })),
    ...scale.ticks.flatMap((value) => [
      drawn("line", { class: "grid", x1: gutter, x2: width, y1: scale.y(value), y2: scale.y(value) }),
      drawn("text", { x: gutter - 8, y: Math.min(Math.max(scale.y(value) + 4, 9), PLOT_HEIGHT - 1), "text-anchor": "end" }, tick(value)),
    ]),
    ...spec.marks(plot, history.intervals, status).filter(Boolean),
    ...drifts.map((each) => drawn("line", { class: "drift-line", x1: plot.x(each), x2: plot.x(each), y1: 0, y2: PLOT_HEIGHT })),
    drawn("line", { class: "cursor", y1: 0, y2: PLOT_HEIGHT, visibility: "hidden" }),
  );
  return plot;
}

// Drift as diamonds above the charts, and the clock below them.
function drawMargins(drift, ruler, plot, history, view) {
  const seen = history.intervals.filter((each) => each.drift > 0);
  drift.style.display = seen.length ? "" : "none";
  drift.setAttribute("viewBox", `0 0 ${plot.width} 14`);
  drift.replaceChildren(
    drawn("text", { x: plot.gutter - 8, y: 11, "text-anchor": "end" }, "drift"),
    ...seen.map((each) => drawn("path", { class: "diamond by-drift", d: `M${plot.x(each)} 2l5 5l-5 5l-5 -5Z` },
      drawn("title", {}, `drift at ${clockTime.format(new Date(each.time))}`))),
  );
  drift.setAttribute("aria-label", seen.length ? `drift was seen in ${plural(seen.length, "interval")}` : "no drift was seen");
  ruler.setAttribute("viewBox", `0 0 ${plot.width} 16`);
  const toX = (time) => plot.gutter + ((time - view.from) / (view.to - view.from)) * (plot.width - plot.gutter);
  ruler.replaceChildren(...timeTicks(view, plot.width - plot.gutter).map((time) =>
    drawn("text", { x: Math.min(toX(time), plot.width - 16), y: 12, "text-anchor": "middle" }, shortTime.format(time))));
}

function createCharts() {
  const charts = CHARTS.map(createChart);
  const drift = drawn("svg", { class: "plot", role: "img", height: 14 });
  const ruler = drawn("svg", { class: "plot", "aria-hidden": "true", height: 16 });
  byId("plots").replaceChildren(drift, ...charts.map((chart) => chart.figure), ruler);
  let picture = null; // { history, status, view, plots }
  let cursor = null; // the number of an interval, or null for the last one

  function tell() {
    const { history, view, plot } = picture;
    const each = cursor === null ? lastWhole(history) : history.intervals[cursor];
    showIn(byId("charts-when"), cursor === null ? null : each.time, (time) => (time ? [moment(time)] : []));
    const span = view.minutes === 60 ? "the last hour" : `the last ${view.minutes} min`;
    setText(byId("charts-span"), `${span}, ${history.interval_s}${SPACE}s a point`);
    for (const { spec, svg, tells } of charts) {
      const words = each ? spec.tell(each) : "nothing yet";
      setText(tells, words);
      svg.setAttribute("aria-label", `${spec.title} over ${span}; ${words}`);
      const mark = svg.querySelector(".cursor");
      mark.setAttribute("visibility", cursor === null ? "hidden" : "visible");
      if (cursor === null) continue;
      const x = plot.x(each) + plot.wide / 2;
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
    }
  }

  function draw() {
    if (!picture) return;
    const { history, status } = picture;
    picture.view = windowOf(history.intervals, history.interval_s);
    for (const chart of charts) picture.plot = drawChart(chart, history, status, picture.view);
    drawMargins(drift, ruler, picture.plot, history, picture.view);
    if (cursor !== null && cursor >= history.intervals.length) cursor = null;
    tell();
  }

  function point(clientX) {
    if (!picture?.history.intervals.length) return;
    const { history, plot } = picture;
    const x = clientX - ruler.getBoundingClientRect().left - plot.wide / 2;
    const gaps = history.intervals.map((each) => Math.abs(plot.x(each) - x));
    cursor = gaps.indexOf(Math.min(...gaps));
    tell();
  }

  byId("plots").addEventListener("pointermove", (event) => point(event.clientX));
  byId("plots").addEventListener("pointerleave", () => {
    cursor = null;
    if (picture) tell();
  });
  byId("charts").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const last = (picture?.history.intervals.length ?? 0) - 1;
    if (!step || last < 0) return;
    event.preventDefault();
    cursor = Math.min(last, Math.max(0, (cursor ?? last) + step * (event.shiftKey ? 10 : 1)));
    tell();
    say(`${charts[0].tells.textContent}; latency ${charts[1].tells.textContent}`);
  });
  new ResizeObserver(draw).observe(byId("plots"));

  return {
    show(history, status) {
      const told = JSON.stringify([history, status.deadline_ms, status.rewards.rule.mean]);
      if (picture?.told === told) return;
      picture = { history, status, told };
      draw();
    },
    clear() {
      picture = null;
      cursor = null;
    },
  };
}
