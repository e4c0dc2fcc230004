// Entry module of the replay of pod scaling.

import { number, percent } from "../format.js";
import { startPage } from "../page.js";
import { highest, linearScale, logScale, lowest, paintSeries } from "../series.js";
import { readReplay, stepAt } from "./data.js";
import { createDecisionPanel } from "./decision_panel.js";
import { columns, HINT, latencyText, nearestText, plotLabel, stepText, stepTitle, totals, useText } from "./format.js";
import { paintLegend, paintPlot, plotShape, rowAt, rowText } from "./strips.js";

const LATENCY_TICKS = [0.001, 0.01, 0.1, 1, 10].flatMap((unit) => [unit, 2 * unit, 5 * unit]).map((value) => ({
  value,
  label: value < 1 ? `${Math.round(1000 * value)} ms` : `${value} s`,
}));

// A chart of the series `key` of every policy, and of what is used of it.
function policyChart(id, key, usedKey, scaleOf, limitOf = () => null) {
  let scale = null;
  const paint = (canvas, replay, view, theme) => {
    scale ??= scaleOf(replay, replay.policies.map((policy) => policy[key]));
    const lines = replay.policies.flatMap((policy, i) => {
      const used = usedKey ? [{ values: policy[usedKey], colour: theme.policies[i], area: true }] : [];
      return [...used, { values: policy[key], colour: theme.policies[i] }];
    });
    paintSeries(canvas, view, theme, { lines, step: replay.step_s, scale, limit: limitOf(replay) });
  };
  return { id, paint };
}

const fromZero = (replay, series) => linearScale(1.05 * highest(series));

function paintLoad(canvas, { load, step_s }, view, theme) {
  const lines = [{ values: load, colour: theme.muted }];
  paintSeries(canvas, view, theme, { lines, step: step_s, scale: linearScale(1.05 * highest([load])) });
}

function latencyScale({ slo }, series) {
  const all = [...series, slo].map((values) => values.filter((value) => value > 0));
  return logScale(Math.max(0.001, lowest(all) / 1.2), 1.3 * highest(all), LATENCY_TICKS);
}

function figuresAt(replay, policy, seconds) {
  const step = stepAt(replay, seconds);
  const p99 = latencyText(policy.p99[step]);
  const replicas = number(policy.replicas[step], Number.isInteger(policy.replicas[step]) ? 0 : 1);
  return {
    texts: {
      p99,
      replicas,
      "cpu-now": percent(policy.cpu_used[step] / policy.cpu[step]),
      "memory-now": percent(policy.memory_used[step] / policy.memory[step]),
      restarts: policy.restartsSoFar[step],
      ooms: policy.oomsSoFar[step],
      over: `${number(policy.overSlo[step], 0)} steps`.replace(/^1 steps/, "1 step"),
      source: policy.source ? replay.names.source[policy.source[step]] : "",
      state: policy.state ? replay.names.state[policy.state[step]] : "",
    },
    values: {
      load: `${number(replay.load[step])} now`,
      p99,
      replicas,
      cpu: useText(policy.cpu_used[step], policy.cpu[step], "cores"),
      memory: useText(policy.memory_used[step], policy.memory[step], "GiB"),
    },
  };
}

startPage({
  read: readReplay,
  panel: { totals: (policy) => ({ ...totals(policy), nearest: nearestText(policy.known) }), figuresAt },
  plot: {
    plotShape, paintPlot, paintLegend, plotLabel, rowAt, rowText,
    itemOf: (policy, row) => row % policy.p99.length,
    initialEnd: (replay) => replay.end,
  },
  items: {
    key: "step",
    hint: HINT,
    names: ({ load }) => Array.from(load, (_, step) => String(step)),
    title: stepTitle,
    text: stepText,
    columns,
    cellText: latencyText,
    barsLabel: "p99 as bars; half of the width is the SLO",
    barShares:
      ({ slo }) =>
      ({ p99 }, step) =>
        Math.min((p99[step] || 0) / slo[step] / 2, 1),
    index: ({ steps }, step) => (step !== null && Number(step) < steps ? Number(step) : -1),
  },
  charts: [
    { id: "load", shared: true, paint: paintLoad },
    policyChart("p99", "p99", null, latencyScale, ({ slo }) => ({ values: slo, label: `SLO ${latencyText(slo.at(-1))}` })),
    policyChart("replicas", "replicas", null, fromZero),
    policyChart("cpu", "cpu", "cpu_used", fromZero),
    policyChart("memory", "memory", "memory_used", fromZero),
  ],
  createDecisionPanel,
});
