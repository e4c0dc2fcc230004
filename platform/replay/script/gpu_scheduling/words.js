// Machines, gangs and jobs in words.

const HINT =
  "Point at a bar or a job to follow it: a gang has one colour on all its machines. Under each " +
  "policy's name, the job's completion time (JCT), from arrival to end; the bars beside are logarithmic.";

function plotLabel(policy) {
  return `Machines and their GPUs by time under ${policy.name}, coloured by job`;
}

function gpusText(percent) {
  return number(percent / 100, percent % 100 ? (percent % 10 ? 2 : 1) : 0);
}

function plural(count, noun) {
  return `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

function listed(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

function machineTitle(replay, machine) {
  const { rack, gpu, price } = replay.machines;
  return `machine ${machine + 1} (rack ${rack[machine] + 1}, ${gpu[machine]}, ${dollars(price[machine])} a GPU-hour)`;
}

function rowWords(replay, policy, bar) {
  const { schedule } = policy;
  const [machine, job] = [schedule.machine[bar], schedule.job[bar]];
  const [start, end] = [schedule.start[bar], schedule.end[bar]];
  let used = 0;
  const machines = new Set();
  schedule.job.forEach((other, place) => {
    if (other !== job || schedule.start[place] !== start) return;
    machines.add(schedule.machine[place]);
    if (schedule.machine[place] === machine) used += schedule.height[place];
  });
  const elsewhere = machines.size - 1;
  return (
    `${machineTitle(replay, machine)}: ${gpusText(used)} of its ${replay.machines.gpus[machine]} GPUs` +
    `${elsewhere ? `, and on ${plural(elsewhere, "more machine")}` : ""}; ` +
    `for ${secondsText(end - start)}, from ${momentText(replay.unit, start)} to ` +
    `${momentText(replay.unit, end)}${schedule.stopped[bar] ? ", then stopped" : ""}`
  );
}

// How long a job's bar is, of the longest one's; seconds and days side by side need logarithms.
function barShare(seconds, longest) {
  return Math.log1p(seconds / 10) / Math.log1p(longest / 10);
}

function jobTitle(replay, job) {
  return `job ${replay.jobs.name[job]}`;
}

function gangText(replay, job) {
  const [instances, gpu] = [replay.jobs.instances[job], replay.jobs.gpu[job]];
  return instances > 1 ? `${instances} × ${gpusText(gpu)}` : gpusText(gpu);
}

function jobFacts(replay, job) {
  const { jobs } = replay;
  const gang = jobs.instances[job] > 1 ? `a gang of ${gangText(replay, job)} GPU` : `${gangText(replay, job)} GPU`;
  const outcome = replay.policies.map((policy) =>
    Number.isFinite(policy.jct[job])
      ? `JCT ${secondsText(policy.jct[job])} and ${dollars(policy.fee[job])} under ${policy.name}`
      : `unfinished under ${policy.name}`,
  );
  const hours = jobs.work_s[job] / 3600;
  return (
    `${gang}, ${number(hours, hours < 10 ? 2 : 0)} V100-hours of work, arrives at ` +
    `${momentText(replay.unit, jobs.arrival_s[job])}; ${outcome.join(", ")}`
  );
}

function columnsOf(replay) {
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
    ...replay.policies.map((policy) => ({
      title: policy.name,
      label: `JCT under ${policy.name}`,
      value: (job) => policy.jct[job],
    })),
  ];
}

// The job that somebody means by a number in the address.
function jobNumbered(replay, number) {
  return replay.jobs.name.indexOf(String(number));
}
