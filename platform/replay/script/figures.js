// Figures read off the data: jobs that are counted over time, and how numbers are written.

// Jobs as steps, by [moment, change] in any order: count[i] holds from time[i] on.
function stepsOf(changes) {
  const time = [0];
  const count = [0];
  for (const [s, change] of changes.sort((a, b) => a[0] - b[0])) {
    if (s > time.at(-1)) {
      time.push(s);
      count.push(count.at(-1));
    }
    count[count.length - 1] += change;
  }
  return { time, count };
}

// Who has come and gone by a moment, under a policy.
function fatesAt(replay, policy, seconds) {
  let inSystem = 0;
  let completed = 0;
  let total = 0;
  replay.jobs.arrival_s.forEach((arrival, job) => {
    if (policy.completion[job] <= seconds) {
      completed++;
      total += policy.jct[job];
    } else if (arrival <= seconds) inSystem++;
  });
  return { inSystem, completed, jctSoFar: total / completed };
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

// The moment at which two policies that are both at work differ the most in the jobs that are
// counted: the middle of the longest such stretch. With one policy, the middle of the episode.
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

// A moment on the axis, in its unit.
function momentText(unit, seconds) {
  return `${number(seconds / unit.seconds, unit.seconds > 1 ? 2 : 1)} ${unit.name}`;
}

function number(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en-GB", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
    signDisplay: "negative", // no sign before a zero
  });
}
