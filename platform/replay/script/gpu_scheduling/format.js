// Text about machines, gangs and jobs.

import { dollars, durationText, number, plural, timeText } from "../format.js";

export const HINT =
  "Point at a bar or a job to highlight it; a gang has one colour on all its machines. The columns " +
  "named after policies hold the job completion time (JCT), from arrival to end; the bars are logarithmic.";

export function plotLabel(policy) {
  return `Machines and their GPUs by time under ${policy.name}, coloured by job`;
}

export function gpuText(percent) {
  return number(percent / 100, percent % 100 ? (percent % 10 ? 2 : 1) : 0);
}

export function machineTitle(replay, machine) {
  const { rack, gpu, price } = replay.machines;
  return `machine ${machine + 1} (rack ${rack[machine] + 1}, ${gpu[machine]}, ${dollars(price[machine])} a GPU-hour)`;
}

export function rowText(replay, { schedule }, bar) {
  const [machine, job, start, end] = ["machine", "job", "start", "end"].map((column) => schedule[column][bar]);
  let used = 0;
  const machines = new Set();
  schedule.job.forEach((other, i) => {
    if (other !== job || schedule.start[i] !== start) return;
    machines.add(schedule.machine[i]);
    if (schedule.machine[i] === machine) used += schedule.height[i];
  });
  const others = machines.size > 1 ? `, and on ${plural(machines.size - 1, "more machine")}` : "";
  return (
    `${machineTitle(replay, machine)}: ${gpuText(used)} of its ${replay.machines.gpus[machine]} GPUs${others}; ` +
    `for ${durationText(end - start)}, from ${timeText(replay.unit, start)} to ${timeText(replay.unit, end)}` +
    `${schedule.stopped[bar] ? ", then stopped" : ""}`
  );
}

export function jobTitle(replay, job) {
  return `job ${replay.jobs.name[job]}`;
}

export function gangText({ jobs: { instances, gpu } }, job) {
  return instances[job] > 1 ? `${instances[job]} × ${gpuText(gpu[job])}` : gpuText(gpu[job]);
}

export function jobText(replay, job) {
  const { jobs, policies, unit } = replay;
  const gang = `${jobs.instances[job] > 1 ? "a gang of " : ""}${gangText(replay, job)} GPU`;
  const outcomes = policies.map(({ jct, fee, name }) =>
    Number.isFinite(jct[job])
      ? `JCT ${durationText(jct[job])} and ${dollars(fee[job])} under ${name}`
      : `unfinished under ${name}`,
  );
  const hours = jobs.work_s[job] / 3600;
  return (
    `${gang}, ${number(hours, hours < 10 ? 2 : 0)} V100-hours of work, arrives at ` +
    `${timeText(unit, jobs.arrival_s[job])}; ${outcomes.join(", ")}`
  );
}

export function columns(replay) {
  const { jobs } = replay;
  return [
    { title: "job", value: (job) => job, text: (job) => jobs.name[job] },
    {
      title: "GPUs",
      label: "GPUs of the whole gang",
      value: (job) => jobs.instances[job] * jobs.gpu[job],
      text: (job) => gangText(replay, job),
    },
    { title: "arrives", value: (job) => jobs.arrival_s[job] },
    ...replay.policies.map(({ name, jct }) => ({ title: name, label: `JCT under ${name}`, value: (job) => jct[job] })),
  ];
}
