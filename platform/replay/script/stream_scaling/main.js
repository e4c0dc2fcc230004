// Entry module of the replay of stream scaling.

import { firstAbove } from "../data.js";
import { durationText, number, percent } from "../format.js";
import { startPage } from "../page.js";
import { highest, linearScale, logScale, lowest, paintSeries } from "../series.js";
import { MINUTE, readReplay } from "./data.js";
import { createDecisionPanel } from "./decision_panel.js";
import { columns, gateText, HINT, minuteOf, plotLabel, rowText, taskText, taskTitle, totals } from "./format.js";
import { instancesAt, paintLegend, paintPlot, plotShape, rowAt } from "./parallelism.js";

const LATENCY_TICKS = [
  [0.1, "0.1 s"], [0.3, "0.3 s"], [1, "1 s"], [3, "3 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"],
  [36000, "10 h"], [360000, "100 h"],
].map(([value, label]) => ({ value, label }));
const LAG_TICKS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8].map((value) => ({
  value,
  label: value < 1000 ? number(value, 0) : value < 1e6 ? `${value / 1000}k` : `${value / 1e6}M`,
}));

// A chart of the series `key` of every policy.
function policyChart(id, key, scaleOf, limitOf = () => null) {
  let scale = null;
  const paint = (canvas, replay, view, theme) => {
    scale ??= scaleOf(replay, replay.policies.map((policy) => policy[key]));
    const lines = replay.policies.map((policy, i) => ({ values: policy[key], colour: theme.policies[i] }));
    paintSeries(canvas, view, theme, { lines, step: MINUTE, scale, limit: limitOf(replay) });
  };
  return { id, paint };
}

function paintLoad(canvas, { load }, view, theme) {
  const lines = [{ values: load, colour: theme.muted }];
  paintSeries(canvas, view, theme, { lines, step: MINUTE, scale: linearScale(highest([load])) });
}

function latencyScale({ target_s }, series) {
  const least = Math.max(0.1, Math.min(lowest(series), target_s) / 1.2);
  return logScale(least, 1.1 * Math.max(highest(series), target_s), LATENCY_TICKS);
}

function figuresAt(replay, policy, seconds) {
  const minute = minuteOf(seconds, policy.latency.length);
  const latency = durationText(policy.latency[minute]);
  const lag = number(policy.lag[minute], 0);
  const instances = number(policy.instances[minute], 0);
  const decision = policy.gate ? firstAbove(policy.gate.minute, seconds / MINUTE + 1e-9) - 1 : -1;
  const gate = decision < 0 ? "" : gateText({ act: policy.gate.act[decision], probability: policy.gate.probability[decision] });
  return {
    texts: {
      latency,
      lag,
      busy: percent(policy.utilisation[minute]),
      instances,
      restarts: firstAbove(policy.restarts, seconds / MINUTE + 1e-9),
      over: `${number(policy.overTarget[minute], 0)} min`,
      gate,
    },
    values: { load: `${number(replay.load[minute], 0)} now`, latency, lag, instances },
  };
}

startPage({
  read: readReplay,
  panel: { totals, figuresAt },
  plot: {
    plotShape, paintPlot, paintLegend, plotLabel, rowAt, rowText,
    itemOf: (policy, run) => policy.schedule.task[run],
    initialEnd: (replay) => replay.end,
  },
  items: {
    key: "task",
    live: true,
    hint: HINT,
    names: ({ tasks }) => tasks.name,
    title: taskTitle,
    text: (replay, task, seconds) =>
      taskText(replay, task, replay.policies.map(({ schedule }) => instancesAt(schedule, task, seconds))),
    columns,
    cellText: (value) => number(value),
    barsLabel: "mean instances as bars",
    barShares({ policies }) {
      const most = highest(policies.map(({ schedule }) => schedule.mean));
      return ({ schedule }, task) => schedule.mean[task] / most;
    },
    index: ({ tasks }, name) => tasks.name.indexOf(name),
  },
  charts: [
    { id: "load", shared: true, paint: paintLoad },
    policyChart("latency", "latency", latencyScale, ({ target_s }) => ({
      value: target_s,
      label: `target ${durationText(target_s)}`,
    })),
    policyChart("lag", "lag", (replay, series) => logScale(1, 1.1 * highest(series), LAG_TICKS)),
    policyChart("instances", "instances", (replay, series) => linearScale(1.05 * highest(series))),
  ],
  createDecisionPanel,
});
