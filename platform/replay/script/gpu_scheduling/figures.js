// What holds at one moment, and its words.

const ROOM = {
  completed: (jobs) => `${3.5 + String(jobs).length}em`,
  "jct-so-far": () => "4.5em",
  busy: () => "6em",
  spent: () => "4.5em",
};

function figuresAt(replay, policy, seconds) {
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
  let running = 0;
  let stops = 0;
  for (const { start, end, stopped } of schedule.stretches) {
    if (start <= seconds && end > seconds) running++;
    if (stopped && end <= seconds) stops++;
  }
  const { inSystem, completed, jctSoFar } = fatesAt(replay, policy, seconds);
  const all = gpus.reduce((sum, count) => sum + count, 0);
  return {
    counted: inSystem - running,
    texts: {
      waiting: inSystem - running,
      running,
      completed: `${completed} of ${replay.jobs.name.length}`,
      "jct-so-far": secondsText(jctSoFar),
      busy: `${gpusText(busy)} of ${number(all, 0)}`,
      stops,
      spent: dollars(spent, 0),
    },
  };
}

function totalTexts(policy) {
  return {
    jct: secondsText(policy.mean_jct_s ?? NaN),
    fee: dollars(policy.mean_fee ?? NaN),
    makespan: secondsText(policy.makespan_s ?? NaN),
    utilisation: Number.isFinite(policy.utilisation) ? `${number(100 * policy.utilisation, 0)}%` : "–",
    preemptions: number(policy.preemptions, 0),
  };
}

// Jobs in the queue: those that came or were stopped, and do not run yet.
function countedOf(replay, policy) {
  const { stretches } = policy.schedule;
  return stepsOf([
    ...replay.jobs.arrival_s.map((s) => [s, 1]),
    ...stretches.map(({ start }) => [start, -1]),
    ...stretches.filter(({ stopped }) => stopped).map(({ end }) => [end, 1]),
  ]);
}

function marksOf(replay, policy) {
  const stops = policy.schedule.stretches.filter(({ stopped }) => stopped);
  const marks = stops.map(({ job, end }) => ({ job, s: end }));
  const rows = [arrivalMarks(replay), completionMarks(policy)];
  if (marks.length) rows.push({ title: "stop", short: "stop", marks, draw: drawStop });
  return rows;
}

function drawStop(context, x, y) {
  context.beginPath();
  for (const sign of [-1, 1]) {
    context.moveTo(x - 3.5, y - 3.5 * sign);
    context.lineTo(x + 3.5, y + 3.5 * sign);
  }
  context.strokeStyle = context.fillStyle;
  context.lineWidth = 2;
  context.stroke();
}

// Jobs last seconds or days: each time in the unit that suits it.
function secondsText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 99.5) return `${number(value, value < 9.95 ? 1 : 0)} s`;
  if (value < 5970) return `${number(value / 60)} min`;
  return `${number(value / 3600)} h`;
}

function cellText(seconds) {
  return secondsText(seconds);
}

function dollars(value, digits = 2) {
  return Number.isFinite(value) ? `$${number(value, digits)}` : "–";
}
