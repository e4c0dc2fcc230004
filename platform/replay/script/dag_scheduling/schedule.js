// Schedules of executors, and figures computed from them.

import { accumulate, firstAbove, jobsAt, unpack } from "../data.js";
import { percent, secondsText } from "../format.js";

// A schedule is packed as stints: consecutive tasks of an executor in one stage of one job.
// Unpacked rows are sorted by executor, then time; rows of executor e: first[e] .. first[e + 1].
export function unpackSchedule(packed, { executors }) {
  const { stints, rows } = packed;
  const [executor, gap, job, kind, length, duration] = [
    packed.executor, packed.gap_ms, packed.job, packed.kind, packed.length, packed.duration_ms,
  ].map(unpack);
  const schedule = {
    first: new Int32Array(executors + 1),
    start: new Float64Array(rows), // ms
    end: new Float64Array(rows), // ms
    job: new Int32Array(rows),
    stage: new Int32Array(rows),
    moving: new Uint8Array(rows),
  };
  let row = 0;
  let time = 0;
  for (let stint = 0; stint < stints; stint++) {
    if (stint > 0 && executor[stint] !== executor[stint - 1]) time = 0;
    time += gap[stint];
    for (let last = row + length[stint]; row < last; row++) {
      schedule.start[row] = time;
      time += duration[row];
      schedule.end[row] = time;
      schedule.job[row] = job[stint];
      schedule.stage[row] = kind[stint] >> 1;
      schedule.moving[row] = kind[stint] & 1;
    }
    schedule.first[executor[stint] + 1] = row;
  }
  for (let e = 1; e <= executors; e++) {
    schedule.first[e] = Math.max(schedule.first[e], schedule.first[e - 1]); // executors without rows
  }
  return schedule;
}

// The first row of an executor that ends after `ms`; first[executor + 1] if there is none.
export function firstRowAfter({ first, end }, executor, ms) {
  return firstAbove(end, ms, first[executor], first[executor + 1]);
}

export function figuresAt(replay, policy, seconds) {
  const { schedule } = policy;
  const ms = seconds * 1000;
  let busy = 0;
  let moving = 0;
  for (let executor = 0; executor < replay.executors; executor++) {
    const row = firstRowAfter(schedule, executor, ms);
    if (row === schedule.first[executor + 1] || schedule.start[row] > ms) continue;
    if (schedule.moving[row]) moving++;
    else busy++;
  }
  const { inSystem, completed, jctSoFar } = jobsAt(replay, policy, seconds);
  const texts = {
    "in-system": inSystem,
    completed: `${completed} of ${replay.jobs.name.length}`,
    "jct-so-far": secondsText(jctSoFar),
    busy,
    moving,
    idle: replay.executors - busy - moving,
  };
  return { count: inSystem, texts };
}

export function totals(policy) {
  return {
    jct: secondsText(policy.mean_jct_s ?? NaN),
    makespan: secondsText(policy.makespan_s ?? NaN),
    utilisation: percent(policy.utilisation),
  };
}

// Jobs in the system over time.
export function countJobs(replay, policy) {
  return accumulate([
    ...replay.jobs.arrival_s.map((s) => [s, 1]),
    ...policy.completion.filter(Number.isFinite).map((s) => [s, -1]),
  ]);
}
