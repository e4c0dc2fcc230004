// Series by minute, instances of every task, restarts and decisions of a streaming job.

import { drawCross } from "../charts.js";
import { readData, unpack } from "../data.js";

export const MINUTE = 60; // seconds
const SHORTEST_WINDOW = 30 * MINUTE;

export function readReplay() {
  const replay = readData();
  replay.load = unpack(replay.load);
  for (const policy of replay.policies) {
    policy.latency = unpack(policy.latency_ms).map((ms) => ms / 1000);
    policy.lag = unpack(policy.lag);
    policy.utilisation = unpack(policy.utilisation).map((permille) => permille / 1000);
    policy.schedule = unpackRuns(policy.parallelism);
    policy.instances = totalInstances(policy.schedule, policy.latency.length);
    policy.restarts = unpack(policy.restarts);
    policy.overTarget = cumulate(policy.latency.map((seconds) => seconds > replay.target_s));
    policy.gate = policy.case && unpackGate(policy.case);
    const marks = Array.from(policy.restarts, (minute) => ({ s: minute * MINUTE }));
    policy.markRows = [{ title: "restart", short: "↻", marks, draw: drawCross }];
  }
  replay.most = replay.policies.reduce((most, { schedule }) => Math.max(most, ...schedule.most), 1);
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s));
  replay.shortest = SHORTEST_WINDOW;
  replay.gap = widestGap(replay);
  return replay;
}

// Runs of equal parallelism sorted by task, then time; those of task t: first[t] .. first[t + 1].
export function unpackRuns({ runs, length, instances }) {
  const counts = unpack(runs);
  const lengths = unpack(length);
  const schedule = {
    first: new Int32Array(counts.length + 1),
    task: new Int32Array(lengths.length),
    start: new Float64Array(lengths.length), // s
    end: new Float64Array(lengths.length), // s
    instances: unpack(instances),
    mean: new Float64Array(counts.length), // by task
    most: new Float64Array(counts.length),
  };
  let run = 0;
  counts.forEach((count, task) => {
    let minute = 0;
    for (const last = run + count; run < last; run++) {
      schedule.task[run] = task;
      schedule.start[run] = minute * MINUTE;
      minute += lengths[run];
      schedule.end[run] = minute * MINUTE;
      schedule.mean[task] += lengths[run] * schedule.instances[run];
      schedule.most[task] = Math.max(schedule.most[task], schedule.instances[run]);
    }
    schedule.mean[task] /= minute;
    schedule.first[task + 1] = run;
  });
  return schedule;
}

function totalInstances(schedule, minutes) {
  const changes = new Float64Array(minutes + 1);
  schedule.instances.forEach((count, run) => {
    changes[schedule.start[run] / MINUTE] += count;
    changes[schedule.end[run] / MINUTE] -= count;
  });
  return cumulate(changes).slice(0, minutes);
}

function cumulate(values) {
  let sum = 0;
  return Float64Array.from(values, (value) => (sum += value));
}

// All decisions of a learned policy: minute, whether the gate acts, and how probable that is.
function unpackGate({ minute, act, probability }) {
  return { minute: unpack(minute), act: unpack(act), probability: unpack(probability).map((level) => level / 10000) };
}

// The minute with the largest difference between the latencies; with one policy, the middle.
function widestGap({ policies: [one, two], end }) {
  if (!two) return end / 2;
  let [best, minute] = [-1, 0];
  one.latency.forEach((latency, i) => {
    const gap = Math.abs(latency - two.latency[i]);
    if (gap > best) [best, minute] = [gap, i];
  });
  return (minute + 0.5) * MINUTE;
}
