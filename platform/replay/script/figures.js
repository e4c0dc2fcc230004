// Figures read off the data: what holds at one moment, and jobs in the system over time.

function figuresAt(replay, policy, seconds) {
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
  let inSystem = 0;
  let completed = 0;
  let total = 0;
  replay.jobs.arrival_s.forEach((arrival, job) => {
    if (policy.completion[job] <= seconds) {
      completed++;
      total += policy.jct[job];
    } else if (arrival <= seconds) inSystem++;
  });
  const idle = replay.executors - busy - moving;
  return { inSystem, completed, jctSoFar: total / completed, busy, moving, idle };
}

// Jobs in the system as steps: count[i] holds from time[i] on.
function jobsInSystem(replay, policy) {
  const events = [
    ...replay.jobs.arrival_s.map((s) => [s, 1]),
    ...policy.completion.filter(Number.isFinite).map((s) => [s, -1]),
  ].sort((a, b) => a[0] - b[0]);
  const time = [0];
  const count = [0];
  for (const [s, change] of events) {
    if (s > time.at(-1)) {
      time.push(s);
      count.push(count.at(-1));
    }
    count[count.length - 1] += change;
  }
  return { time, count };
}

function stepAt(steps, seconds) {
  let low = 0;
  let high = steps.time.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps.time[middle] <= seconds) low = middle;
    else high = middle - 1;
  }
  return steps.count[low];
}

// The moment at which two policies that are both at work differ the most in jobs in the system:
// the middle of the longest such stretch. With one policy, the middle of the episode.
function widestGap(replay) {
  const [one, two] = replay.policies.map((policy) => policy.steps);
  if (!two) return replay.end / 2;
  const times = [...new Set([...one.time, ...two.time])].sort((a, b) => a - b);
  let best = { gap: -1, length: 0, at: replay.end / 2 };
  times.forEach((from, i) => {
    const length = (times[i + 1] ?? replay.end) - from;
    const counts = [stepAt(one, from), stepAt(two, from)];
    const gap = Math.min(...counts) > 0 ? Math.abs(counts[0] - counts[1]) : -1;
    if (gap > best.gap || (gap === best.gap && length > best.length)) {
      best = { gap, length, at: from + length / 2 };
    }
  });
  return best.at;
}

function number(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en-GB", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

function secondsText(value) {
  return Number.isFinite(value) ? `${number(value)} s` : "–";
}
