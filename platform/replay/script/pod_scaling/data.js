// Series by control step of an application in pods, restarts, and decisions.

import { drawCross } from "../charts.js";
import { readData, unpack } from "../data.js";

const SHORTEST_STEPS = 10; // of a window
const MIB_PER_GIB = 1024;
const SERIES = ["p99", "replicas", "cpu", "cpu_used", "memory", "memory_used", "restarts", "ooms"];

export function readReplay() {
  const replay = readData();
  replay.load = unpackSeries(replay.load);
  replay.slo = unpackSeries(replay.slo);
  for (const policy of replay.policies) {
    for (const key of SERIES) policy[key] = unpackSeries(policy[key]);
    for (const key of ["memory", "memory_used"]) policy[key] = policy[key].map((mib) => mib / MIB_PER_GIB);
    for (const key of ["source", "state"]) policy[key] = policy[key] && unpack(policy[key]);
    policy.overSlo = cumulate(policy.p99.map((seconds, step) => (seconds > replay.slo[step] ? 1 : 0)));
    policy.restartsSoFar = cumulate(policy.restarts);
    policy.oomsSoFar = cumulate(policy.ooms);
    policy.markRows = [
      { title: "restarts", short: "↻", marks: eventMarks(policy.restarts, replay.step_s), draw: drawCross },
      { title: "OOM kills", short: "OOM", marks: eventMarks(policy.ooms, replay.step_s), draw: drawCross },
    ];
  }
  replay.steps = replay.load.length;
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s));
  replay.shortest = SHORTEST_STEPS * replay.step_s;
  replay.gap = widestGap(replay);
  return replay;
}

// Whole numbers plus 1; 0 is a value that is not known.
function unpackSeries({ scale, values }) {
  return unpack(values).map((value) => (value ? (value - 1) / scale : NaN));
}

function cumulate(values) {
  let sum = 0;
  return values.map((value) => (sum += value || 0));
}

// A mark for each event; those of one step have the same time, so that they are drawn with their number.
function eventMarks(counts, step) {
  return Array.from(counts).flatMap((count, i) => Array.from({ length: count || 0 }, () => ({ s: (i + 0.5) * step })));
}

// The step with the largest ratio between the p99; with one policy, that farthest above the SLO.
function widestGap({ policies: [one, two], slo, step_s }) {
  let [best, found] = [-1, 0];
  one.p99.forEach((seconds, step) => {
    const gap = Math.abs(Math.log(Math.max(seconds, 0.001) / Math.max(two ? two.p99[step] : slo[step], 0.001)));
    if (gap > best && (two || seconds > slo[step])) [best, found] = [gap, step];
  });
  return (found + 0.5) * step_s;
}

export function stepAt({ step_s, steps }, seconds) {
  return Math.min(Math.floor(seconds / step_s + 1e-9), steps - 1);
}
