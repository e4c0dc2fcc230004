// Schedules of machines, and figures computed from them.

import { accumulate, jobsAt, unpack } from "../data.js";
import { dollars, durationText, number, percent } from "../format.js";
import { gpuText } from "./format.js";

// A schedule is packed as bars: a run of a job on some of the GPUs of a machine. Bars are sorted by
// machine, then start; those of machine m: first[m] .. first[m + 1].
export function unpackSchedule(packed, replay) {
  const machines = replay.machines.rack.length;
  const [machine, gap, duration, job] = [packed.machine, packed.gap_ms, packed.duration_ms, packed.job].map(unpack);
  const schedule = {
    machine,
    first: new Int32Array(machines + 1),
    start: new Float64Array(packed.bars), // s
    end: new Float64Array(packed.bars), // s
    job: job.map((value) => value >> 1),
    stopped: job.map((value) => value & 1), // whether the job was stopped at the end of the bar
    from: unpack(packed.first), // percent of a GPU, from the first GPU of the machine
    height: unpack(packed.height), // percent of a GPU
  };
  let time = 0;
  for (let bar = 0; bar < packed.bars; bar++) {
    if (bar > 0 && machine[bar] !== machine[bar - 1]) time = 0;
    time += gap[bar];
    schedule.start[bar] = time / 1000;
    schedule.end[bar] = (time + duration[bar]) / 1000;
    schedule.first[machine[bar] + 1] = bar + 1;
  }
  for (let m = 1; m <= machines; m++) {
    schedule.first[m] = Math.max(schedule.first[m], schedule.first[m - 1]); // machines without bars
  }
  schedule.runs = runsOf(schedule);
  return schedule;
}

// The bars of a gang that start together are one run.
function runsOf(schedule) {
  const runs = new Map();
  schedule.job.forEach((job, bar) => {
    const [start, end] = [schedule.start[bar], schedule.end[bar]];
    runs.set(`${job} ${start}`, { job, start, end, stopped: schedule.stopped[bar] === 1 });
  });
  return [...runs.values()].sort((a, b) => a.start - b.start);
}

export function figuresAt(replay, policy, seconds) {
  const { schedule } = policy;
  const { price, gpus } = replay.machines;
  let busy = 0; // percent of a GPU
  let spent = 0;
  schedule.start.forEach((start, bar) => {
    if (start > seconds) return;
    const used = schedule.height[bar];
    const hours = (Math.min(schedule.end[bar], seconds) - start) / 3600;
    spent += (used / 100) * hours * price[schedule.machine[bar]];
    if (schedule.end[bar] > seconds) busy += used;
  });
  const running = schedule.runs.filter(({ start, end }) => start <= seconds && end > seconds).length;
  const { inSystem, completed, jctSoFar } = jobsAt(replay, policy, seconds);
  const waiting = inSystem - running;
  const texts = {
    waiting,
    running,
    completed: `${completed} of ${replay.jobs.name.length}`,
    "jct-so-far": durationText(jctSoFar),
    busy: `${gpuText(busy)} of ${number(gpus.reduce((sum, count) => sum + count, 0), 0)}`,
    stops: schedule.runs.filter(({ stopped, end }) => stopped && end <= seconds).length,
    spent: dollars(spent, 0),
  };
  return { count: waiting, texts };
}

export function totals(policy) {
  return {
    jct: durationText(policy.mean_jct_s ?? NaN),
    fee: dollars(policy.mean_fee ?? NaN),
    makespan: durationText(policy.makespan_s ?? NaN),
    utilisation: percent(policy.utilisation),
    preemptions: number(policy.preemptions, 0),
  };
}

// Jobs in the queue over time: arrived or stopped, and not running.
export function countJobs(replay, { schedule: { runs } }) {
  return accumulate([
    ...replay.jobs.arrival_s.map((s) => [s, 1]),
    ...runs.map(({ start }) => [start, -1]),
    ...runs.filter(({ stopped }) => stopped).map(({ end }) => [end, 1]),
  ]);
}
