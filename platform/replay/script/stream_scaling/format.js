// Text about tasks, latencies and policies.

import { durationText, listText, number, percent, plural, timeText } from "../format.js";
import { MINUTE } from "./data.js";

const NAMED = 4; // parents that the text of a task names

export const HINT =
  "Point at a task to highlight it. The columns named after policies hold the mean number of its " +
  "instances over the episode. Any change restarts the whole job.";

export function plotLabel(policy) {
  return `Instances of every task by time under ${policy.name}`;
}

export function rowText({ unit }, { schedule, name }, run) {
  const [start, end, count] = [schedule.start[run], schedule.end[run], schedule.instances[run]];
  return (
    `${plural(count, "instance")} under ${name} for ${durationText(end - start)}, from ` +
    `${timeText(unit, start)} to ${timeText(unit, end)}`
  );
}

export function taskTitle({ tasks }, task) {
  return tasks.name[task];
}

// counts: instances under each policy at the time.
export function taskText({ tasks, policies }, task, counts) {
  const parents = tasks.parents[task];
  const named = parents.slice(0, NAMED).map((parent) => tasks.name[parent]);
  if (parents.length > NAMED) named.push(`${parents.length - NAMED} more`);
  const origin = parents.length ? `reads ${listText(named)}` : "a source";
  const now = policies.map(({ name, schedule }, i) =>
    `${plural(counts[i], "instance")} now under ${name} (1 to ${schedule.most[task]} over time)`.replace("1 to 1 ", "always 1 "),
  );
  return `${origin}; ${now.join(", ")}`;
}

export function columns({ tasks, policies }) {
  return [
    { title: "task", value: (task) => task, text: (task) => tasks.name[task] },
    { title: "level", label: "longest path from a source", value: (task) => tasks.level[task], text: (task) => tasks.level[task] },
    ...policies.map(({ name, schedule }) => ({
      title: name,
      label: `mean instances under ${name}`,
      value: (task) => schedule.mean[task],
    })),
  ];
}

export function totals({ figures }) {
  return {
    reward: number(figures.reward ?? NaN, 3),
    "mean-latency": durationText(figures.latency ?? NaN),
    p99: durationText(figures.latency_p99 ?? NaN),
    "all-over": `${number(figures.minutes_over_target, 0)} min`,
    utilisation: percent(figures.utilisation),
    "instance-hours": number(figures.instance_hours, 0),
    "restarts-day": number(figures.restarts),
  };
}

export function gateText({ act, probability }) {
  return `${act ? "acts" : "holds"}, ${percent(probability)} for acting`;
}

export function minuteOf(seconds, minutes) {
  return Math.min(Math.floor(seconds / MINUTE + 1e-9), minutes - 1);
}

// A name, or its last part that fits into a width: names of tasks differ in their ends.
export function fittingEnd(context, name, width) {
  const fits = (text) => context.measureText(text).width <= width;
  if (fits(name)) return name;
  let shown = name.split(/[-_. ]/).at(-1);
  while (shown.length > 1 && !fits(shown)) shown = shown.slice(1);
  return shown;
}
