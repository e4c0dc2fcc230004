// Decisions of SURE, as decision_trace.py packed them, and their text.

import { unpack } from "../data.js";
import { listText, percent, plural } from "../format.js";

const MAX_TASKS = 4; // tasks that the text of a decision names

// A task's row has `read`, the snapshots it drew: { ago (minutes), weight, neighbours (tasks) }, or
// null if the policy reads all of them.
export function unpackDecision(packed) {
  const [change, before, after] = [packed.change, packed.before, packed.after].map(unpack);
  const rows = Array.from(before, (count, task) => ({
    task,
    before: count,
    after: after[task],
    mean: change[task] / 1000 - 1,
    std: packed.std,
    read: null,
  }));
  if (packed.snapshot !== undefined) {
    const [snapshot, weight, neighbour] = [packed.snapshot, packed.weight, packed.neighbour].map(unpack);
    const slots = snapshot.length / rows.length;
    const drawn = neighbour.length / snapshot.length;
    for (const row of rows) {
      const places = Array.from({ length: slots }, (_, slot) => row.task * slots + slot);
      row.read = places
        .filter((place) => snapshot[place] > 0)
        .map((place) => ({
          ago: snapshot[place] - 1,
          weight: weight[place] / 10000,
          neighbours: Array.from(neighbour.slice(place * drawn, (place + 1) * drawn))
            .filter((task) => task > 0)
            .map((task) => task - 1),
        }));
    }
  }
  // The largest changes first.
  rows.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before) || a.task - b.task);
  return { ...packed, rows, restarts: restarts(packed) };
}

// Equal plans are packed to equal texts.
export function restarts({ before, after }) {
  return before !== after;
}

const total = (rows, key) => rows.reduce((sum, row) => sum + row[key], 0);

// The situation and the outcome of a decision.
export function decisionText({ tasks }, { act, probability, rows, restarts: changed }) {
  const before = total(rows, "before");
  const situation = `${plural(before, "instance")}; probability of acting ${percent(probability)}.`;
  if (!act) return [situation, "The gate holds: the plan stays, and the changes below have no effect."];
  if (!changed) return [situation, "The gate acts, but no change is large enough for another instance."];
  const all = rows.filter((row) => row.before !== row.after);
  const named = all.slice(0, MAX_TASKS).map((row) => `${tasks.name[row.task]} from ${row.before} to ${row.after}`);
  if (all.length > MAX_TASKS) named.push(`${all.length - MAX_TASKS} more`);
  return [situation, `The gate acts: ${listText(named)}; ${total(rows, "after")} instances. The job restarts.`];
}

// How often each neighbour is in what a task read, the most frequent first.
export function neighbourCounts({ read }) {
  const counts = new Map();
  for (const { neighbours } of read ?? []) {
    for (const task of neighbours) counts.set(task, (counts.get(task) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
}
