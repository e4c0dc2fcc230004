// Text about control steps, latencies and limits.

import { number, percent, plural } from "../format.js";

export const HINT =
  "Point at a control step, here or in the strips, to read what it used. With two policies, the " +
  "columns named after them hold the p99; half a bar is the SLO.";

export function latencyText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  return seconds < 0.9995 ? `${number(1000 * seconds, 0)} ms` : `${number(seconds, seconds < 9.95 ? 2 : 1)} s`;
}

// What is used of a limit: "1.20 of 3.00 cores".
export function useText(used, limit, unit) {
  return `${number(used, 2)} of ${number(limit, 2)} ${unit}`;
}

export function plotLabel(policy) {
  return `p99 and use of every control step under ${policy.name}`;
}

export function stepTitle(replay, step) {
  return `step ${number(step, 0)}`;
}

// Load and SLO of a step, and what each policy did.
export function stepText({ load, slo, policies, names }, step) {
  const parts = policies.map(({ name, p99, replicas, cpu, cpu_used, memory, memory_used, restarts, ooms, source, state }) => {
    const texts = [
      `p99 ${latencyText(p99[step])}`,
      `${number(replicas[step], Number.isInteger(replicas[step]) ? 0 : 1)} replicas`,
      useText(cpu_used[step], cpu[step], "cores"),
      useText(memory_used[step], memory[step], "GiB"),
    ];
    if (restarts[step]) texts.push(plural(restarts[step], "restart"));
    if (ooms[step]) texts.push(plural(ooms[step], "OOM kill"));
    if (source?.[step]) texts.push(`decided by the ${names.source[source[step]]}`);
    if (state?.[step]) texts.push(names.state[state[step]]);
    return `${name}: ${texts.join(", ")}`;
  });
  return `${number(load[step], load[step] < 10 ? 1 : 0)} requests a second, SLO ${latencyText(slo[step])}. ${parts.join(". ")}`;
}

export function columns({ load, policies }) {
  return [
    { title: "step", label: "control step", value: (step) => step, text: (step) => number(step, 0) },
    { title: "load", label: "requests a second", value: (step) => load[step], text: (step) => number(load[step]) },
    ...policies.map(({ name, p99 }) => ({
      title: policies.length > 1 ? name : "p99",
      label: `p99 under ${name}`,
      value: (step) => p99[step],
    })),
  ];
}

const share = (value) => percent((value ?? NaN) / 100);

export function totals({ figures }) {
  return {
    reward: number(figures.reward ?? NaN, 3),
    violations: share(figures.violations),
    late: share(figures.violated_requests),
    "mean-p99": latencyText(figures.p99_mean ?? NaN),
    "cpu-use": share(figures.cpu_use),
    "memory-use": share(figures.memory_use),
    "core-hours": number(figures.core_hours ?? NaN),
    "gib-hours": number(figures.gib_hours ?? NaN),
  };
}

// The nearest of the known applications in a line.
export function nearestText(known) {
  const [first, second] = known;
  if (!first) return "";
  const text = ({ name, similarity }) => `${name} (${number(similarity, 2)})`;
  return second ? `${text(first)}, ${text(second)}` : text(first);
}
