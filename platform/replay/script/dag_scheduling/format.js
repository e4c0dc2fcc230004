// Text about executors, tasks and jobs.

import { number, secondsText } from "../format.js";

export const HINT =
  "Point at a task or a job to highlight it. Times are in seconds, work in executor-seconds. " +
  "The columns named after policies hold the job completion time (JCT).";

export function plotLabel(policy) {
  return `Executors by time under ${policy.name}, coloured by job`;
}

export function rowText(replay, { schedule }, row) {
  const executor = schedule.first.findIndex((first) => first > row); // counted from 1
  const [from, to] = [schedule.start[row] / 1000, schedule.end[row] / 1000];
  const task = schedule.moving[row] ? "moving to the job" : `stage ${schedule.stage[row] + 1}`;
  return `executor ${executor}, ${task}, ${number(from, 2)} to ${number(to, 2)} s`;
}

export function jobTitle(replay, job) {
  return `job ${job + 1}, ${replay.jobs.name[job]}`;
}

export function jobText(replay, job) {
  const outcomes = replay.policies.map(({ jct, name }) =>
    Number.isFinite(jct[job]) ? `JCT ${secondsText(jct[job])} under ${name}` : `unfinished under ${name}`,
  );
  return (
    `${secondsText(replay.jobs.work_s[job])} of work, arrives at ` +
    `${secondsText(replay.jobs.arrival_s[job])}; ${outcomes.join(", ")}`
  );
}

export function columns(replay) {
  return [
    { title: "job", value: (job) => job, text: (job) => `${job + 1} ${replay.jobs.name[job]}` },
    { title: "arrives", value: (job) => replay.jobs.arrival_s[job] },
    { title: "work", value: (job) => replay.jobs.work_s[job] },
    ...replay.policies.map(({ name, jct }) => ({
      title: name,
      label: `JCT under ${name}, seconds`,
      value: (job) => jct[job],
    })),
  ];
}
