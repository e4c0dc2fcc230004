// Decisions of a learned policy, as decisions.py packed them, and what they say.

const TOLD = 3; // jobs of a decision that its sentence names

function readStep(packed) {
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
  const [jobs, flags, free] = [packed.jobs, packed.flags, packed.free].map((text) => unpack(text));
  const startable = [...unpack(packed.startable)];
  const affinity = levels(packed.affinity);
  const [mean, std] = [levels(packed.mean), levels(packed.std)];
  const attained = unpack(packed.attained_s);
  const rows = Array.from(unpack(packed.order), (row) => {
    const place = startable.indexOf(row);
    return {
      job: jobs[row],
      mean: mean[row],
      std: std[row],
      attained: attained[row],
      heeded: (flags[row] & 1) === 1,
      running: (flags[row] & 2) === 2,
      // Of every machine, NaN where it has no room; null where the job cannot start at all.
      affinity: place < 0 ? null : affinity.slice(place * free.length, (place + 1) * free.length),
    };
  });
  return {
    ...packed,
    rows, // who goes first comes first
    free,
    held: places(packed.held),
    placed: places(packed.placed),
    then: places(packed.then),
  };
}

function machinesOf(places, job) {
  return places.filter((place) => place.job === job);
}

function whereText(places) {
  const machines = places.map(({ machine }) => machine + 1).sort((a, b) => a - b);
  return `${places.length > 1 ? "machines" : "machine"} ${listed(machines)}`;
}

function stepWords(replay, step) {
  const name = (job) => `job ${replay.jobs.name[job]}`;
  const free = step.free.reduce((sum, percent) => sum + percent, 0);
  const all = replay.machines.gpus.reduce((sum, count) => sum + count, 0);
  const room = `${gpusText(free)} of ${all} GPUs free`;
  if (step.kind === "reconsidering") {
    const running = step.rows.filter((row) => row.running).length;
    const waiting = step.rows.length - running;
    const situation = `${waiting} waiting, ${running} running, ${room}: must a running job make way for one that waits?`;
    if (!step.stopped.length) return [situation, "Nobody is stopped."];
    const told = step.stopped.slice(0, TOLD).map((job) => stopWords(step, job, name));
    const more = step.stopped.length - told.length;
    return [situation, `${told.join("; ")}${more ? `; and ${plural(more, "more job")} stopped` : ""}.`];
  }
  const could = step.rows.filter((row) => row.affinity).length;
  const again = step.kind === "again" ? "Now that jobs were stopped: " : "";
  const situation = `${again}${step.rows.length} waiting, ${could} of them could start, ${room}.`;
  const started = step.rows.map(({ job }) => job).filter((job) => machinesOf(step.placed, job).length);
  const told = started.slice(0, TOLD).map((job, i) => {
    const where = whereText(machinesOf(step.placed, job));
    return i ? `${name(job)} to ${where}` : `${name(job)} goes first, to ${where}`;
  });
  const more = started.length - told.length;
  return [situation, `${told.join("; ")}${more ? `; and ${plural(more, "more job")}` : ""}.`];
}

// Whoever starts on a machine that a stopped job held takes its room.
function stopWords(step, job, name) {
  const held = machinesOf(step.held, job);
  const heirs = successors(step, job);
  const why = heirs.length
    ? `${listed(heirs.map(name))} ${heirs.length > 1 ? "start" : "starts"} there`
    : "those before it need the room";
  const moved = machinesOf(step.then, job);
  const again = moved.length ? `, and it goes on at ${whereText(moved)}` : "";
  return `${name(job)} must leave ${whereText(held)}: ${why}${again}`;
}

function successors(step, job) {
  const left = new Set(machinesOf(step.held, job).map(({ machine }) => machine));
  const come = step.then.filter((place) => left.has(place.machine) && place.job !== job);
  return [...new Set(come.map((place) => place.job))];
}
