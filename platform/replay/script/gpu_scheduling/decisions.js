// Decisions of a learned policy, as decisions.py packed them, and their text.

import { unpack } from "../data.js";
import { listText, plural } from "../format.js";
import { gpuText, jobTitle } from "./format.js";

const MAX_JOBS = 3; // jobs that the text of a decision names

export function unpackDecision(packed) {
  const levels = ({ low, step, levels: text }) =>
    Array.from(unpack(text), (level) => (level ? low + (level - 1) * step : NaN));
  const places = (text) => {
    const flat = unpack(text);
    return Array.from({ length: flat.length / 3 }, (_, i) => ({
      job: flat[3 * i],
      machine: flat[3 * i + 1],
      instances: flat[3 * i + 2],
    }));
  };
  const [jobs, flags, free, attained] = [packed.jobs, packed.flags, packed.free, packed.attained_s].map(unpack);
  const startable = [...unpack(packed.startable)];
  const affinity = levels(packed.affinity);
  const [mean, std] = [levels(packed.mean), levels(packed.std)];
  const rows = Array.from(unpack(packed.order), (row) => {
    const index = startable.indexOf(row);
    return {
      job: jobs[row],
      mean: mean[row],
      std: std[row],
      attained: attained[row],
      eligible: (flags[row] & 1) === 1,
      running: (flags[row] & 2) === 2,
      // By machine, NaN where an instance does not fit; null if the job cannot start.
      affinity: index < 0 ? null : affinity.slice(index * free.length, (index + 1) * free.length),
    };
  });
  return {
    ...packed,
    rows, // in order of priority
    free,
    held: places(packed.held),
    placed: places(packed.placed),
    then: places(packed.then),
  };
}

export function placesOf(places, job) {
  return places.filter((place) => place.job === job);
}

function machinesText(places) {
  const machines = places.map(({ machine }) => machine + 1).sort((a, b) => a - b);
  return `${places.length > 1 ? "machines" : "machine"} ${listText(machines)}`;
}

// The situation and the outcome of a decision.
export function decisionText(replay, decision) {
  const free = decision.free.reduce((sum, percent) => sum + percent, 0);
  const all = replay.machines.gpus.reduce((sum, count) => sum + count, 0);
  const capacity = `${gpuText(free)} of ${all} GPUs free`;
  const more = (jobs, text) =>
    jobs.length > MAX_JOBS ? `; and ${plural(jobs.length - MAX_JOBS, "more job")}${text}` : "";
  if (decision.kind === "reconsidering") {
    const { stopped } = decision;
    const running = decision.rows.filter((row) => row.running).length;
    const situation = `Preemption: ${decision.rows.length - running} waiting, ${running} running, ${capacity}.`;
    if (!stopped.length) return [situation, "No job is stopped."];
    const stops = stopped.slice(0, MAX_JOBS).map((job) => stopText(replay, decision, job));
    return [situation, `${stops.join("; ")}${more(stopped, " stopped")}.`];
  }
  const startable = decision.rows.filter((row) => row.affinity).length;
  const again = decision.kind === "again" ? "After the stops: " : "";
  const situation = `${again}${decision.rows.length} waiting, ${startable} of them can start, ${capacity}.`;
  const started = decision.rows.map(({ job }) => job).filter((job) => placesOf(decision.placed, job).length);
  const starts = started.slice(0, MAX_JOBS).map((job, i) =>
    `${jobTitle(replay, job)} starts ${i ? "" : "first, "}on ${machinesText(placesOf(decision.placed, job))}`);
  return [situation, `${starts.join("; ")}${more(started, "")}.`];
}

function stopText(replay, decision, job) {
  const names = successors(decision, job).map((other) => jobTitle(replay, other));
  const why = names.length
    ? `${listText(names)} ${names.length > 1 ? "start" : "starts"} there`
    : "jobs of higher priority need the GPUs";
  const moved = placesOf(decision.then, job);
  const next = moved.length ? `, and it continues on ${machinesText(moved)}` : "";
  return `${jobTitle(replay, job)} is stopped on ${machinesText(placesOf(decision.held, job))}: ${why}${next}`;
}

// The jobs that start on a machine that a stopped job held.
function successors(decision, job) {
  const left = new Set(placesOf(decision.held, job).map(({ machine }) => machine));
  const next = decision.then.filter((place) => left.has(place.machine) && place.job !== job);
  return [...new Set(next.map((place) => place.job))];
}
