// Executors, tasks and jobs in words.

const HINT =
  "Point at a task or a job to follow it. Times in seconds; work in executor-seconds; " +
  "under each policy's name, the job's completion time (JCT).";

function plotLabel(policy) {
  return `Executors by time under ${policy.name}, coloured by job`;
}

function rowWords(replay, policy, row) {
  const { schedule } = policy;
  const executor = schedule.first.findIndex((first) => first > row); // counted from 1
  const [from, to] = [schedule.start[row] / 1000, schedule.end[row] / 1000];
  const what = schedule.moving[row] ? "moving to it" : `stage ${schedule.stage[row] + 1}`;
  return `executor ${executor}, ${what}, ${number(from, 2)} to ${number(to, 2)} s`;
}

// How long a job's bar is, of the longest one's.
function barShare(seconds, longest) {
  return seconds / longest;
}

function jobTitle(replay, job) {
  return `job ${job + 1}, ${replay.jobs.name[job]}`;
}

function jobFacts(replay, job) {
  const outcome = replay.policies.map((policy) =>
    Number.isFinite(policy.jct[job])
      ? `JCT ${secondsText(policy.jct[job])} under ${policy.name}`
      : `unfinished under ${policy.name}`,
  );
  return (
    `${secondsText(replay.jobs.work_s[job])} of work, arrives at ` +
    `${secondsText(replay.jobs.arrival_s[job])}; ${outcome.join(", ")}`
  );
}

function columnsOf(replay) {
  return [
    { title: "job", value: (job) => job, text: (job) => `${job + 1} ${replay.jobs.name[job]}` },
    { title: "arrives", value: (job) => replay.jobs.arrival_s[job] },
    { title: "work", value: (job) => replay.jobs.work_s[job] },
    ...replay.policies.map((policy) => ({
      title: policy.name,
      label: `JCT under ${policy.name}, seconds`,
      value: (job) => policy.jct[job],
    })),
  ];
}

// The job that somebody means by a number in the address.
function jobNumbered(replay, number) {
  return number - 1;
}
